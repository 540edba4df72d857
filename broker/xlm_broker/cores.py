"""How many threads compute on this machine where nobody says otherwise."""

from __future__ import annotations

import os

import psutil


def physical_cores() -> int:
    """Physical cores this process may use; at least 1. As the engine counts them."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))
