"""This machine's CPU, measured by the product's own profiler, and the cards scaled to it.

The profile knows the CPU only; a card's times are its configured rates (planner/sharding/modelled.py), as for any
virtual GPU. So the planner knows what it would know of a real card from `xlm profile`, and nothing of the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from xlm.protocol.link import DeviceConfig
from xlm_broker import profiler
from xlm_broker.bench.cards import MACHINES, Rates, cpu_times, scaled
from xlm_broker.planner.sharding.profile import MachineProfile
from xlm_broker.profile_store import load_profile

Say = Callable[[str], None]


@dataclass(frozen=True)
class Cards:
    rates: dict[str, Rates]
    profile: MachineProfile
    threads: int


def machine_threads(wanted: int) -> int:
    return wanted or profiler.identify(DeviceConfig(kind="none")).n_cores


def profiled_cards(folder: Path, names: Iterable[str], models: Iterable[Path], threads: int, say: Say) -> Cards:
    """Measures what the folder's profile does not have yet: less than a minute the first time, seconds a model."""
    path, device = folder / "cpu.sqlite", DeviceConfig(kind="none")
    for model in models:
        say(f"profile of the CPU for {model.name}")
        profiler.measure(path, profiler.Wanted(device=device, quick=True, model=model, threads=threads), _quiet)
    profile = load_profile(path)
    times = cpu_times(profile, threads)
    rates = {str(row["machine"]): scaled(row, times) for row in MACHINES if row["machine"] in set(names)}
    return Cards(rates, profile, threads)


def _quiet(_progress: profiler.Progress) -> None:
    """The steps in between are of no interest here."""
