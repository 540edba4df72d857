"""Budgets and schedules that change between answers, over software Vulkan: the process lives, and says the same.

Mesa's software driver (22.3) counts references to every buffer of a bound descriptor set, also to those that no shader
reads. One of them was gone now and then; that left the heap corrupt, and the process died of it some answers later
(decision 31). Such deaths are rare, so the driver of the child has a fence around what it frees: one access ends it.
"""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.integration import test_vulkan
from tests.integration.test_vulkan import LIBRARY, Outcome, Session, run_child
from xlm.protocol import link
from xlm_engine.bench.models import write_model
from xlm_native.device import Device, DeviceOptions

FENCE = Path(__file__).resolve().parents[1] / "support" / "driver_fence.c"
N_ANSWERS, N_TOKENS = 30, 4
SHARES = (0.15, 0.3, 0.5, 0.8, 1.2, 0.0, 2.0)  # budgets, of what everything on the device takes
SCRATCH_BYTES = 256 << 10
N_ROUNDS, N_STREAMED_TOKENS = 2, 40


# -- in the child


class TinySession(Session):
    def prompt(self) -> list[int]:
        return [5, 9, 200, 31, 77]


def drawn_places(device: Device, left_bytes: int, draw: random.Random) -> bytes:
    """About half of what fits is resident, the rest streams or runs on the CPU."""
    places = bytearray()
    for layer in device.sublayers():
        need = layer.device_bytes + layer.kv_bytes
        if layer.kind == "lookup":
            places.append(link.CPU)
        elif layer.kind == "small" or (need <= left_bytes and draw.random() < 0.5):
            places.append(link.RESIDENT)
            left_bytes -= need
        else:
            places.append(draw.choice((link.STREAM, link.STREAM, link.STREAM, link.CPU)))
    return bytes(places)


def drawn_schedule(device: Device, budget_bytes: int, number: int, draw: random.Random) -> link.Schedule:
    ring_bytes = budget_bytes // 1024 * 256
    reserve_bytes = ring_bytes + SCRATCH_BYTES
    places = drawn_places(device, budget_bytes - reserve_bytes, draw)
    return link.Schedule(
        schedule_id=number,
        budget_bytes=budget_bytes,
        tiers=[link.Tier(max_tokens=1 << 20, placement=places)],
        priority=list(range(len(places))),
        ring_bytes=ring_bytes,
        reserve_bytes=reserve_bytes,
    )


def answers(running: Session, device: Device) -> list[list[int]]:
    draw = random.Random(7)
    whole_bytes = sum(layer.device_bytes + layer.kv_bytes for layer in device.sublayers() if layer.kind != "lookup")
    said = []
    for number in range(1, N_ANSWERS + 1):
        budget_bytes = int(whole_bytes * draw.choice(SHARES))
        device.set_budget(budget_bytes, timeout_ns=10**12)
        device.set_schedule(drawn_schedule(device, budget_bytes, number, draw))
        while device.settle(4 << 20):
            pass
        said.append(running.greedy(N_TOKENS)[0])
    return said


MALLINFO = ["arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


class HeapUse(ctypes.Structure):
    """struct mallinfo2"""

    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLINFO)


def heap_bytes() -> int:
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = HeapUse
    use = ask()
    return int(use.uordblks + use.hblkhd)


class Child(test_vulkan.Child):
    def tiny(self) -> Path:
        path = self.out.parent / "tiny.gguf"
        write_model("tiny", path)
        return path

    def budgets(self) -> None:
        path = self.tiny()
        with closing(TinySession(None, path=path)) as plain:
            self.tell("cpu", tokens=plain.greedy(N_TOKENS)[0])
        device = Device.open(DeviceOptions(inner="vulkan", inner_library=LIBRARY, n_threads=1))
        with closing(TinySession(device.ggml_device(), device, path)) as running:
            self.tell("xlm", answers=answers(running, device), stats=device.stats())
            self.tell("fence", freed=ctypes.CDLL(None).driver_fence_freed())
        device.close()

    def streams(self) -> None:
        path = self.tiny()
        options = DeviceOptions(
            inner="vulkan", inner_library=LIBRARY, n_threads=1, budget_bytes=test_vulkan.BUDGET_BYTES
        )
        device = Device.open(options)
        with closing(TinySession(device.ggml_device(), device, path)) as running:
            device.set_schedule(test_vulkan.schedule(device, link.STREAM, 1))
            running.greedy(N_STREAMED_TOKENS)
            before = heap_bytes()
            for _ in range(N_ROUNDS):
                running.greedy(N_STREAMED_TOKENS)
            self.tell("heap", grown=heap_bytes() - before, pieces=device.stats()["n_pieces_streamed"])
        device.close()


# -- in pytest


@pytest.fixture(scope="module")
def fence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("fence") / "libdriver_fence.so"
    subprocess.run(["cc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", FENCE, "-o", library, "-ldl"], check=True)
    return library


def test_the_process_lives_and_every_answer_is_the_cpus(fence: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    found: Outcome = run_child("budgets", tmp_path, __file__, LD_PRELOAD=str(fence))
    assert found["xlm"]["answers"] == [found["cpu"]["tokens"]] * N_ANSWERS
    stats = found["xlm"]["stats"]
    assert stats["n_pieces_streamed"] > 0
    assert stats["n_evictions"] > N_ANSWERS / 2
    assert stats["n_replays"] == 0
    assert found["fence"]["freed"] > N_ANSWERS  # else the fence had nothing to show


def test_what_is_streamed_leaves_nothing_behind(tmp_path: Path) -> None:
    """ggml-vulkan keeps what it made for an event until the host waits for it: some 7 KiB for each piece. As over other
    drivers, where no instance is renewed."""
    pytest.importorskip("gguf")
    heap = run_child("streams", tmp_path, __file__, XLM_VULKAN_RENEW="0")["heap"]
    assert heap["pieces"] > 10 * N_ROUNDS * N_STREAMED_TOKENS
    assert heap["grown"] < 2048 * heap["pieces"]


if __name__ == "__main__":
    getattr(Child(Path(sys.argv[2])), sys.argv[1])()
