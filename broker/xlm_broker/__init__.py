"""The broker: owns leases, budgets, sessions and schedules; never loads a GPU library or a model."""

from __future__ import annotations


def broker_version() -> str:
    """Version of the installed distribution; "0+source" when run from a checkout that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # the commands' entry must come before any such weight

    try:
        return version("xlm")
    except PackageNotFoundError:
        return "0+source"
