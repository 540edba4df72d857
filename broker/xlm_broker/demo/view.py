"""The demo in the terminal: a live page where there is a terminal, plain lines where there is none.

Both only read the recorder. The live page is drawn a few times a second by
rich's own thread; the game loop never draws.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from xlm_broker.demo.record import BudgetChange, Memory, Recorder, Turn
from xlm_broker.demo.story import Phase, phase_at
from xlm_broker.demo.summary import MIB, mib, percentile

_REFRESH_PER_S: Final = 6
_RECENT_FRAMES: Final = 300  # five seconds
_RECENT_S: Final = 2.0
_BAR_PARTS: Final = (
    ("resident_bytes", "weights", "blue"),
    ("kv_bytes", "KV", "cyan"),
    ("scratch_bytes", "scratch", "yellow"),
    ("ring_bytes", "ring", "green"),
)
_VOICE_STYLES: Final = ("dark_orange", "magenta")


def choose_view(record: Recorder, console: Console, *, live: bool, title: str) -> AbstractContextManager[object]:
    """The live page if it was asked for and there is a terminal that can show it."""
    if live and console.is_terminal and not console.is_dumb_terminal:
        return LiveView(record, console, title)
    return PlainView(record, console)


# -- figures ---------------------------------------------------------------------


def last_memory(record: Recorder) -> Memory | None:
    return record.memory[-1] if record.memory else None


def streamed_per_s(samples: list[Memory], now_s: float, window_s: float = _RECENT_S) -> float:
    """Bytes streamed to the device per second over the last ``window_s``."""
    recent = [sample for sample in samples[-64:] if sample.t_s >= now_s - window_s]
    if len(recent) < 2 or recent[-1].t_s <= recent[0].t_s:
        return 0.0
    return max(0, recent[-1].bytes_streamed - recent[0].bytes_streamed) / (recent[-1].t_s - recent[0].t_s)


def spoken_per_s(turns: list[Turn], now_s: float, window_s: float = _RECENT_S) -> float:
    """Tokens per second over the last ``window_s``, all characters together."""
    recent = (count for turn in turns[-6:] for t_s, count in list(turn.arrivals) if t_s >= now_s - window_s)
    return sum(recent) / window_s


def bar_cells(sample: Memory | None, device_bytes: int, width: int) -> list[tuple[str, int]]:
    """The card as a bar: (style, cells) for each part held, what is free under the budget, and the game's share."""
    if sample is None or device_bytes <= 0:
        return [("game", width)]
    edges, total = [], 0
    for name, _, style in _BAR_PARTS:
        total += getattr(sample, name)
        edges.append((style, total))
    budget = min(max(sample.budget_bytes, total), device_bytes)
    edges += [("free", budget), ("game", device_bytes)]
    cells, drawn = [], 0
    for style, edge_bytes in edges:
        end = min(width, round(width * min(edge_bytes, device_bytes) / device_bytes))
        cells.append((style, max(0, end - drawn)))
        drawn = max(drawn, end)
    return cells


# -- the live page -----------------------------------------------------------------


class LiveView:
    """A page that redraws itself until left."""

    def __init__(self, record: Recorder, console: Console, title: str) -> None:
        self._record, self._console, self._title = record, console, title
        self._live = Live(
            get_renderable=self.page,
            console=console,
            refresh_per_second=_REFRESH_PER_S,
            transient=True,
            vertical_overflow="crop",
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def page(self) -> RenderableType:
        """The whole page for this moment."""
        now_s = self._record.now_s()
        phase = phase_at(self._record.phases, now_s)
        rows = max(8, self._console.size.height)
        parts: list[RenderableType] = [self._scene(phase, now_s), self._card(), self._figures(now_s)]
        body = Group(*parts, self._changes(rows), self._talk(rows))
        return Panel(body, title=self._title, title_align="left", border_style="grey50")

    def _scene(self, phase: Phase, now_s: float) -> Text:
        end_s = self._record.phases[-1].end_s
        text = Text(no_wrap=True, overflow="crop")
        text.append(f"{min(now_s, end_s):4.1f} of {end_s:.0f} s  ", style="grey62")
        text.append(f"{phase.title.upper()}  ", style="bold")
        text.append(phase.happens)
        return text

    def _card(self) -> Text:
        width = max(20, self._console.size.width - 8)
        full, empty = ("#", ".") if self._console.options.ascii_only else ("█", "░")
        text = Text("\n")
        for style, cells in bar_cells(last_memory(self._record), self._record.device_bytes, width):
            if style == "game":
                text.append(empty * cells, style="grey42")
            elif style == "free":
                text.append("_" * cells, style="grey62")
            else:
                text.append(full * cells, style=style)
        text.append("\n")
        self._key(text, full, empty)
        return text

    def _key(self, text: Text, full: str, empty: str) -> None:
        """What the bar's colours mean, with how much there is of each."""
        sample = last_memory(self._record)
        for attribute, name, style in _BAR_PARTS:
            size = getattr(sample, attribute) if sample else 0
            text.append(full, style=style).append(f" {name} {size / MIB:.1f}  ")
        text.append("_", style="grey62").append(" free  ")
        text.append(empty, style="grey42").append(" game  (MiB)\n")

    def _figures(self, now_s: float) -> Text:
        record, sample = self._record, last_memory(self._record)
        frames = [frame.frame_ms for frame in record.frames[-_RECENT_FRAMES:]]
        p50, p99 = percentile(frames, 50) or 0.0, percentile(frames, 99) or 0.0
        cells = [
            ("budget", mib(sample.budget_bytes if sample else None)),
            ("used", mib(sample.used_bytes if sample else None)),
            ("streamed", f"{streamed_per_s(record.memory, now_s) / MIB:.0f} MiB/s"),
            ("speech", f"{spoken_per_s(record.turns, now_s):.0f} tokens/s"),
        ]
        text = Text()
        for name, value in cells:
            text.append(f"{name} ", style="grey62").append(f"{value}  ", style="bold")
        text.append("\nframe time ", style="grey62").append(f"p50 {p50:.1f} ms  p99 {p99:.1f} ms", style="bold")
        return text

    def _changes(self, rows: int) -> Text:
        text = Text("\n", no_wrap=True, overflow="crop")
        for change in self._record.changes[-(4 if rows >= 30 else 2) :]:
            style = "green" if change.deadline_met else "red"
            text.append(change_line(change) + "\n", style=style if change.is_reclaim else "grey62")
        return text

    def _talk(self, rows: int) -> Table:
        names = list(dict.fromkeys(turn.npc for turn in list(self._record.turns)))
        table = Table.grid(expand=True, padding=(0, 1))
        lines = max(4, min(14, rows - 16))
        panels = []
        for name, style in zip(names, _VOICE_STYLES, strict=False):
            table.add_column(ratio=1)
            turns = [turn for turn in list(self._record.turns) if turn.npc == name]
            width = max(16, (self._console.size.width - 6) // max(1, len(names)) - 5)
            body = last_lines(dialogue(turns, name, style), self._console, width, lines)
            panels.append(Panel(body, title=name, border_style=style, height=lines + 2))
        if panels:
            table.add_row(*panels)
        return table


def dialogue(turns: list[Turn], name: str, style: str) -> Text:
    """The last few turns as they are being spoken."""
    text = Text()
    for turn in turns[-4:]:
        text.append(f"You: {turn.player}\n", style="grey62")
        text.append(f"{name}: ", style=style).append(f"{turn.spoken()}\n")
    return text


def last_lines(text: Text, console: Console, width: int, lines: int) -> Text:
    """The end of a text that fits ``lines`` lines of ``width``."""
    return Text("\n").join(text.wrap(console, width)[-lines:])


def change_line(change: BudgetChange) -> str:
    """One line about a budget change, for people."""
    if not change.is_reclaim:
        return f"{change.asked_s:5.1f} s  {change.phase:<9} budget {mib(change.to_bytes)}"
    verdict = "in time" if change.deadline_met else f"TOO LATE, {change.deadline_ms:.0f} ms were allowed"
    return (
        f"{change.asked_s:5.1f} s  {change.phase:<9} budget {mib(change.to_bytes)}: "
        f"{mib(change.released_bytes)} back in {change.answered_ms:.2f} ms (broker: {change.release_ms:.2f}), {verdict}"
    )


# -- plain lines ---------------------------------------------------------------------


class PlainView:
    """Prints each scene, budget change and finished answer once, from a thread of its own."""

    def __init__(self, record: Recorder, console: Console) -> None:
        self._record, self._console = record, console
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xlm-demo-view", daemon=True)
        self._phase: Phase | None = None
        self._changes = 0
        self._told: set[int] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.tell(self._record.now_s())

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            self.tell(self._record.now_s())

    def tell(self, now_s: float) -> None:
        """Prints what is new since the last call."""
        phase = phase_at(self._record.phases, now_s)
        if phase is not self._phase:
            self._phase = phase
            self._print(f"-- {phase.title}: {phase.happens}")
        for change in self._record.changes[self._changes :]:
            self._changes += 1
            self._print(change_line(change))
        for index, turn in enumerate(list(self._record.turns)):
            if turn.ended_s is not None and index not in self._told:
                self._told.add(index)
                self._print(f"{turn.ended_s:5.1f} s  {turn.npc}: {turn.spoken()}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
