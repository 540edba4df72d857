"""The virtual GPU of a measuring process: its rates change between measurements, its memory does not."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from xlm.protocol.link import SimConfig
from xlm_engine.bench.wire import Card, Request
from xlm_native import Sim

NO_TIME: Final = 1e18  # a rate at which nothing takes time


class BenchSim:
    def __init__(self, request: Request) -> None:
        self._sim: Final = Sim()
        self._modelled: Final = not request.exact
        self._threads: Final = float(request.n_threads)
        self._vram_bytes: Final = request.vram_bytes
        self.path: Final[Path] = self._sim.path
        self.free_of_charge()

    def free_of_charge(self) -> None:
        """Copies and kernels of the device take no time until ``charge``."""
        self.charge(Card())

    def charge(self, card: Card) -> None:
        self._sim.configure(
            SimConfig(
                modelled=self._modelled,
                vram_bytes=self._vram_bytes,
                link_bytes_per_s=card.link_bytes_per_s,
                link_latency_ns=card.link_latency_ns,
                extra={
                    "compute_flops_per_s": card.flops_per_s or NO_TIME,
                    "memory_bytes_per_s": card.memory_bytes_per_s or NO_TIME,
                    "op_launch_ns": card.op_launch_ns,
                    "graph_launch_ns": card.graph_launch_ns,
                    "n_threads": self._threads,
                },
            )
        )

    def used_bytes(self) -> int:
        return self._sim.counters().used_bytes
