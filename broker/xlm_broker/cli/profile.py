"""``xlm profile``: measures this machine once, for the planner."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from xlm.protocol.link import DeviceConfig
from xlm_broker import profiler
from xlm_broker.cli.common import ended_like_ctrl_c
from xlm_broker.cli.pages import print_page
from xlm_broker.config import Options, build
from xlm_broker.planner.sharding.profile import KernelPoint, LinkPoint, MachineProfile
from xlm_broker.planner.sharding.quant import weight_type
from xlm_broker.profile_store import check_profile, default_path, load_profile

_NO_MODEL: Final = "none.gguf"  # the configuration wants a name; the file is not looked at
_PLAIN_STEP: Final = 0.1  # without a terminal: a line for each tenth
_DECODE, _PREFILL = 1, 64
_BUSY_PERCENT: Final = 15


def profile(
    quick: Annotated[bool, typer.Option("--quick", help="A coarse grid, in less than a minute.")] = False,
    model: Annotated[str, typer.Option(help="Measure also what this GGUF file's model computes with.")] = "",
    device: Annotated[str, typer.Option(help="auto, cuda, vulkan, sim (virtual GPU) or cpu.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The profile.  [default: where the broker looks]")] = None,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="Most CPU threads.  [0: physical cores]")] = 0,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Ends after so long, 0: not before it is done.  [default: 42 if quick]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Keep nothing of the file (it becomes NAME.old).")] = False,
    check: Annotated[bool, typer.Option("--check", help="Measure nothing: is the profile of this machine?")] = False,
    sim_vram: Annotated[str, typer.Option(help="Memory of the virtual GPU.")] = "256MiB",
    sim_link: Annotated[str, typer.Option(help="Its link to the host in GB/s.")] = "12",
    sim_set: Annotated[
        list[str] | None, typer.Option(help="NAME=NUMBER, a field of xlm_sim_config; modelled=1 for modelled time.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON; progress on stderr.")] = False,
) -> None:
    """Measures the kernels of CPU and GPU and the link between them, each alone and under the other's load.

    Close games and browsers first: what else runs is measured along. An interrupted run goes on where
    it was; a profile of another machine, driver or ggml is named, set aside as NAME.old and replaced.

    Examples:

      xlm profile --quick

      xlm profile --model npc.gguf

      xlm profile --check --json
    """
    options = Options(
        model=model or _NO_MODEL, device=device, threads=threads, sim_vram=sim_vram, sim_link=sim_link,
        sim_set=tuple(sim_set or ()),
    )  # fmt: skip
    config = build(options)
    path = (out or default_path()).absolute()
    console = Console(stderr=True, highlight=False)
    with ended_like_ctrl_c():
        if check:
            _check(path, config.device, as_json)
            return
        console.print(f"device: {config.device_reason}", markup=False)
        wanted = profiler.Wanted(
            device=config.device, quick=quick, model=Path(config.model.path) if model else None, threads=threads,
            fresh=fresh, seconds=seconds,
        )  # fmt: skip
        with _shown(console) as report:
            outcome = profiler.measure(path, wanted, report)
    _tell(outcome, load_profile(path), console, as_json)


def _check(path: Path, device: DeviceConfig, as_json: bool) -> None:
    """Ends with the typed error profile_missing, profile_corrupt or profile_stale, or says that all is well."""
    found = load_profile(path)
    check_profile(found, profiler.identify(device))
    if as_json:
        print(json.dumps({"path": str(path), "complete": found.complete, "quick": found.quick, "notes": found.notes}))
        return
    state = "complete" if found.complete else "interrupted: run `xlm profile` again to finish it"
    print(f"{path}: of this machine, {'quick, ' if found.quick else ''}{state}")


@contextlib.contextmanager
def _shown(console: Console) -> Iterator[profiler.Report]:
    """A bar on a terminal, some lines elsewhere."""
    if not console.is_terminal:
        yield plain_report(lambda line: console.print(line, markup=False, soft_wrap=True))
        return
    columns = (BarColumn(), TextColumn("{task.completed}/{task.total}"), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("")

        def report(news: profiler.Progress) -> None:
            words = f"about {_duration(news.left_s)} left  {news.what}"
            bar.update(task, completed=news.done, total=news.total, description=words)

        yield report


def plain_report(say: Callable[[str], Any]) -> profiler.Report:
    """One line for each tenth of the work."""
    said = -1.0

    def report(news: profiler.Progress) -> None:
        nonlocal said
        share = news.done / max(1, news.total)
        if share >= said + _PLAIN_STEP or said < 0:
            said = share
            say(f"{news.done}/{news.total}, about {_duration(news.left_s)} left: {news.what}")

    return report


def _duration(seconds: float) -> str:
    whole = round(max(0.0, seconds))
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def _tell(outcome: profiler.Outcome, found: MachineProfile, console: Console, as_json: bool) -> None:
    for line in remarks(outcome, found):
        console.print(line, markup=False, soft_wrap=True)
    if as_json:
        json.dump(outcome.to_json(found), sys.stdout, indent=2)
        print()
        return
    page = Console(highlight=False)
    print_page(page, rates(found))
    page.print(f"{outcome.path}: {len(found.kernels)} kernels, {len(found.links)} transfers", soft_wrap=True)


def remarks(outcome: profiler.Outcome, found: MachineProfile) -> Iterator[str]:
    """What a reader should know before trusting the numbers."""
    if outcome.replaced:
        yield f"set the old profile aside as {outcome.path.name}.old: {outcome.replaced}"
    for task in outcome.skipped:
        yield f"left out, it crashed: {task}"
    if not found.complete:
        yield f"not complete ({outcome.left_out} points left out for time): run it again to finish"
    busy = found.notes.get("others_busy_percent", "")
    if busy.isdecimal() and int(busy) > _BUSY_PERCENT:
        yield f"other programs used {busy} % of the CPU: times may be too long"
    if "virtual GPU" in found.notes.get("link", ""):
        yield f"link: {found.notes['link']}"


def rates(found: MachineProfile) -> Group:
    """For people: what the points come to, by weight type, and the link's rates."""
    products = _table("", "decode, weights read", "prefill of 64", "decode under uploads")
    for row in _product_rows(found):
        products.add_row(*row)
    links = _table("link", "size", "rate")
    for point in _link_rows(found):
        memory = f"{point.direction} {point.memory}, "
        busy = f"CPU busy with {point.cpu_threads}" if point.cpu_threads else "CPU idle"
        links.add_row(memory + busy, f"{point.size_bytes >> 20} MiB", f"{point.size_bytes / point.ns:.1f} GB/s")
    return Group(products, "", links) if found.links else Group(products)


def _table(first: str, *titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right")
    return table


def _link_rows(found: MachineProfile) -> Iterator[LinkPoint]:
    """The largest transfer of each kind."""
    ordered = sorted(found.links, key=lambda p: (p.direction, p.memory, p.cpu_threads, -p.size_bytes))
    kinds: set[tuple[object, ...]] = set()
    for point in ordered:
        kind = (point.direction, point.memory, point.cpu_threads)
        if kind not in kinds:
            kinds.add(kind)
            yield point


def _product_rows(found: MachineProfile) -> Iterator[tuple[str, str, str, str]]:
    """Per device and type: bytes of weights a second, flop a second, and the slowdown under uploads."""
    threads = max((p.threads for p in found.kernels), default=0)
    products = [p for p in found.kernels if p.op == "MUL_MAT" and p.threads in (0, threads)]
    for device, type_ in dict.fromkeys((p.device, p.type) for p in products):
        own = [p for p in products if (p.device, p.type) == (device, type_)]
        decode, prefill = _largest(own, _DECODE), _largest(own, _PREFILL)
        if decode is None:
            continue
        read = decode.shape[0] * decode.shape[1] * weight_type(type_).bytes_per_weight / decode.ns
        flops = 2 * prefill.shape[0] * prefill.shape[1] * _PREFILL / prefill.ns if prefill else 0.0
        name = f"{device} {type_}" + (f", {threads} threads" if device == "cpu" else "")
        yield name, f"{read:.1f} GB/s", f"{flops:.0f} Gflop/s" if flops else "", _slowdown(own)


def _largest(points: list[KernelPoint], tokens: int) -> KernelPoint | None:
    fitting = [p for p in points if p.tokens == tokens and p.load == "idle"]
    return max(fitting, key=lambda p: p.shape[0] * p.shape[1], default=None)


def _slowdown(points: list[KernelPoint]) -> str:
    """Of decode, under uploads."""
    idle = {p.shape: p.ns for p in points if p.load == "idle" and p.tokens == _DECODE}
    ratios = [p.ns / idle[p.shape] for p in points if p.load == "h2d" and p.tokens == _DECODE and p.shape in idle]
    return f"{ratios[0]:.2f} x the time" if ratios else ""
