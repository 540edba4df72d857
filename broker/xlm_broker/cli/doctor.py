"""``xlm doctor``: what is here, what is missing, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from xlm._commands import to_type
from xlm_broker.cli.checks import Check, all_checks
from xlm_broker.cli.common import EXIT_FAILED
from xlm_broker.cli.pages import print_page

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    endpoint: Annotated[str, typer.Option(help="Look at this endpoint instead of the default one.")] = "",
) -> None:
    """Checks this machine: Python, packages, llama.cpp, native libraries, devices, endpoint, memory.

    Native libraries are tried in processes of their own, so one that crashes is reported.
    Exit code 1 if something that is needed is broken; warnings do not count.

    Example:  xlm doctor --json | jq '.checks[] | select(.state != "ok")'
    """
    console = Console(highlight=False)
    found: list[Check] = []
    for check in all_checks(endpoint):
        found.append(check)
        if not as_json:
            print_check(console, check)
    if as_json:
        print(json.dumps(report(found), indent=2))
    else:
        print_page(console, Text("\n" + conclusion(found), style="bold"))
    if any(check.state == "fail" for check in found):
        raise typer.Exit(EXIT_FAILED)


def report(found: Sequence[Check]) -> dict[str, Any]:
    """The machine-readable form: {"ok": bool, "checks": [{name, state, detail, advice, data}]}."""
    return {"ok": all(check.state != "fail" for check in found), "checks": [asdict(check) for check in found]}


def print_check(console: Console, check: Check) -> None:
    line = Text()
    line.append(f"{check.state:<5}", style=_STYLES[check.state])
    line.append(f"{check.name:<15}", style="bold").append(check.detail)
    console.print(line, soft_wrap=True)
    if check.advice:
        console.print(Text(f"{'':<20}do: {to_type(check.advice)}", style=_STYLES[check.state]), soft_wrap=True)


def conclusion(found: Sequence[Check]) -> str:
    failed = [check.name for check in found if check.state == "fail"]
    if failed:
        return f"Broken: {', '.join(failed)}."
    warned = [check.name for check in found if check.state == "warn"]
    return f"Ready; see the notes on {', '.join(warned)}." if warned else "Ready."
