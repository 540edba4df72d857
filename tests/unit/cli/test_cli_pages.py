"""Tables and text: wrapped at a terminal's width, whole lines without blanks at their end elsewhere."""

from __future__ import annotations

import io

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from xlm_broker.cli.pages import print_page

LONG = "word " * 60


def page() -> Group:
    table = Table.grid(padding=(0, 2))
    table.add_row("short", LONG.strip())
    table.add_row("longer title", "x")
    return Group(Text(LONG, style="bold"), table, Text("two\nlines"), Text(""))


def printed(*, terminal: bool) -> list[str]:
    file = io.StringIO()
    print_page(Console(file=file, width=80, force_terminal=terminal, color_system=None), page())
    return file.getvalue().splitlines()


def test_without_a_terminal_lines_are_whole_and_end_where_they_end() -> None:
    assert printed(terminal=False) == [
        LONG.strip(), f"short         {LONG.strip()}", "longer title  x", "two", "lines", ""
    ]  # fmt: skip


def test_a_terminal_gets_its_width() -> None:
    assert max(map(len, printed(terminal=True))) <= 80
