"""Pages of text and tables: as wide as the terminal; elsewhere each line whole, without blanks at its end."""

from __future__ import annotations

import io
from typing import Final

from rich.console import Console, RenderableType

_WIDE: Final = 100_000  # characters: no line of ours is longer


def print_page(console: Console, page: RenderableType) -> None:
    """``console`` is where it goes. For a file or another program nothing is wrapped or padded."""
    if console.is_terminal:
        console.print(page)
        return
    for line in whole_lines(page):
        console.file.write(f"{line}\n")


def whole_lines(page: RenderableType) -> list[str]:
    wide = Console(file=io.StringIO(), width=_WIDE, force_terminal=False, color_system=None, highlight=False)
    with wide.capture() as captured:
        wide.print(page)
    return [line.rstrip() for line in captured.get().split("\n")[:-1]]
