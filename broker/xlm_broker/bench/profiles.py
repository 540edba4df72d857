"""Profiles of this machine's CPU beside each modelled card, by the product's own profiler.

The CPU is measured once, without a card, which also scales the cards; its points are then put into each card's profile
before that is completed. So the planner knows of each card what `xlm profile` would have told it, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from xlm.protocol.link import DeviceConfig
from xlm_broker import profiler
from xlm_broker.bench.cards import MACHINES, Rates, cpu_times, scaled
from xlm_broker.planner.sharding.profile import MachineProfile
from xlm_broker.profile_store import ProfileWriter, load_profile

Say = Callable[[str], None]


@dataclass(frozen=True)
class Cards:
    rates: dict[str, Rates]
    profiles: dict[str, MachineProfile]
    cpu: str
    ggml: str
    threads: int


def machine_threads(wanted: int) -> int:
    return wanted or profiler.identify(DeviceConfig(kind="none")).n_cores


def profiled_cards(
    folder: Path, names: Iterable[str], models: Iterable[Path], threads: int, vram_bytes: int, say: Say
) -> Cards:
    """Measures what the folder does not have yet: about a minute the first time, for each model some seconds."""
    models = list(models)
    cpu = _measured(folder / "cpu.sqlite", DeviceConfig(kind="none"), models, threads, say)
    times = cpu_times(cpu, threads)
    rates = {str(row["machine"]): scaled(row, times) for row in MACHINES if row["machine"] in set(names)}
    profiles = {}
    for name, card in rates.items():
        path, device = folder / f"{name}.sqlite", card.device(vram_bytes)
        _seed(path, device, cpu)
        profiles[name] = _measured(path, device, models, threads, say)
    return Cards(rates, profiles, cpu.key.cpu, cpu.key.ggml, threads)


def _measured(path: Path, device: DeviceConfig, models: Iterable[Path], threads: int, say: Say) -> MachineProfile:
    for model in models:
        say(f"profile {path.stem} for {model.name}")
        wanted = profiler.Wanted(device=device, quick=True, model=model, threads=threads)
        profiler.measure(path, wanted, lambda _progress: None)
    return load_profile(path)


def _seed(path: Path, device: DeviceConfig, cpu: MachineProfile) -> None:
    """The CPU's own points; those under the link's load are the card's business."""
    key = profiler.identify(device)
    profiler.set_aside(path, key, False)
    if path.is_file():
        return
    writer = ProfileWriter(path, key, quick=True)
    try:
        writer.add([p for p in cpu.kernels if p.device == "cpu" and p.load == "idle"])
    finally:
        writer.close()
