"""``xlm status``: what a running broker says about itself."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import xlm
from xlm_broker.cli import status_brief
from xlm_broker.cli.pages import print_page
from xlm_broker.cli.status_brief import size as _size

_WATCH_S = 1.0
_STYLES = {"warning": "yellow"}
_MORE = "(--all: every figure; --json: for programs)"
_PARTS = ("broker", "engine", "device", "budget", "schedule", "throughput")
_LISTS = ("clients", "sessions")


def status(
    endpoint: Annotated[str, typer.Option("--endpoint", "-e", help="Where the broker listens.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="The whole answer as JSON (one object a line with --watch).")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Every figure, some hundred lines.")] = False,
    wait: Annotated[
        float, typer.Option(min=0.0, max=86_400.0, help="How long to wait for a broker, in seconds.")
    ] = 2.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second, until Ctrl-C.")] = False,
) -> None:
    """Shows what a running broker holds, for whom, and what is not as it should be. With --all every figure of it.

    Examples:

      xlm status

      xlm status --all

      xlm status --json | jq .budget

      xlm status --watch --endpoint tcp://127.0.0.1:17861
    """
    with xlm.connect(endpoint or None, name="xlm status", timeout=wait) as client:
        shown = page if everything else brief
        if as_json:
            _print_json(client, watch)
        elif watch:
            _watch(client, shown)
        else:
            print_page(Console(highlight=False), shown(client.status()))


def _print_json(client: xlm.Client, watch: bool) -> None:
    while True:
        print(json.dumps(dict(client.status()), indent=None if watch else 2, default=str), flush=True)
        if not watch:
            return
        time.sleep(_WATCH_S)


def _watch(client: xlm.Client, shown: Callable[[Mapping[str, Any]], RenderableType]) -> None:
    console = Console(highlight=False)
    while not console.is_terminal:  # a file or another program: page by page
        print_page(console, shown(client.status()))
        sys.stdout.flush()
        time.sleep(_WATCH_S)
    with Live(shown(client.status()), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(_WATCH_S)
            live.update(shown(client.status()), refresh=True)


def brief(status: Mapping[str, Any]) -> RenderableType:
    """The answer for people on one screen: the summary, then a row for each of the parts that matter."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", min_width=10)
    table.add_column()
    previous = ""
    for title, text in status_brief.rows(status):
        table.add_row(plain(title if title != previous else ""), plain(text, _STYLES.get(title, "")))
        previous = title
    return Group(plain(summary(status), "bold"), table, Text(_MORE, style="grey62"))


def plain(text: str, style: str = "") -> Text:
    """As it stands: names are the games', and neither markup nor what a terminal would obey."""
    return Text("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text), style=style)


def page(status: Mapping[str, Any]) -> RenderableType:
    """The answer for people: the summary, then one block a part; what is empty is left out."""
    parts: list[RenderableType] = []
    for name in _PARTS:
        if status.get(name):
            parts.append(_block(name, status[name]))
    if (status.get("vision") or {}).get("projector"):
        parts.append(_block("vision", status["vision"]))
    for name in _LISTS:
        parts += [_block(f"{name[:-1]} {number}", entry) for number, entry in enumerate(status.get(name) or [], 1)]
    return Group(plain(summary(status), "bold"), *parts) if parts else Text("the broker reported nothing")


def summary(status: Mapping[str, Any]) -> str:
    """One line: the engine's state, what it holds of its budget and what limits it, device, model's file, speed."""
    budget, device, engine = (status.get(name) or {} for name in ("budget", "device", "engine"))
    used, effective = _size(budget.get("used_bytes", device.get("used_bytes"))), _size(budget.get("effective_bytes"))
    limit = f" (limited by {budget['limited_by']})" if budget.get("limited_by") else ""
    model = str((engine.get("model") or {}).get("path") or "").replace("\\", "/").rsplit("/", 1)[-1]
    words = [str(engine.get("state") or "no engine"), f"uses {used} of a budget of {effective}{limit}"]
    if device.get("kind"):
        words.append(f"on {device['kind']}, {_size(device.get('total_bytes'))}")
    words += [model] if model else []
    if rate := (status.get("throughput") or {}).get("tokens_per_s"):
        words.append(f"{rate:.1f} tokens/s")
    return "; ".join(words)


def _block(title: str, values: Mapping[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", min_width=10)
    table.add_column(style="grey62")
    table.add_column()
    for index, (key, value) in enumerate(flat(values)):
        table.add_row(*map(plain, (title if index == 0 else "", key, value)))
    return table


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """(name, text) of each value, nested maps with dotted names."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows += flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)) and value and all(isinstance(item, Mapping) for item in value):
            rows += [(f"{name}.{number}", _in_words(item)) for number, item in enumerate(value, 1)]
        elif value not in (None, "", [], ()):  # a field without a value tells nothing
            rows.append((name, shown(name, value)))
    return rows


def _in_words(values: Mapping[str, Any]) -> str:
    """One line for an entry of a list, such as a tier."""
    pairs = [(name.removeprefix("n_"), shown(name, value)) for name, value in values.items()]
    return ", ".join(f"{name} {value}" for name, value in pairs)


def shown(name: str, value: object) -> str:
    """Bytes as KiB, MiB or GiB, other numbers short, the rest as it is."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and name.endswith(("_bytes", "bytes_streamed")):
        return xlm.format_size(int(value))
    if isinstance(value, float):
        return f"{value:.2f}"
    return ", ".join(str(item) for item in value) if isinstance(value, (list, tuple)) else str(value)
