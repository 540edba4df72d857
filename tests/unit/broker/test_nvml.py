"""NVML in all its ways of not answering."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from nvml_fakes import FakePynvml

from xlm_broker.nvml import GpuMemory, Nvml, NvmlError, NvmlWatcher, Reading

GIB = 1 << 30


def test_reading() -> None:
    nvml = Nvml(FakePynvml(total=8 * GIB, free=6 * GIB))
    assert nvml.memory(0) == GpuMemory(total_bytes=8 * GIB, free_bytes=6 * GIB, used_bytes=2 * GIB)
    assert nvml.name(0) == "Fake RTX"
    assert nvml.device_count() == 1


@pytest.mark.parametrize(
    "fake",
    [
        FakePynvml(error="Not Supported"),
        FakePynvml(error="GPU is lost"),
        FakePynvml(total="N/A", free="N/A"),
        FakePynvml(total=None, free=None),
        FakePynvml(total=0, free=0),
        FakePynvml(total=GIB, free=2 * GIB),
        FakePynvml(total=GIB, free=-1),
    ],
)
def test_no_true_answer_is_an_nvml_error(fake: FakePynvml) -> None:
    with pytest.raises(NvmlError):
        Nvml(fake).memory(0)


def test_no_driver_is_an_nvml_error() -> None:
    with pytest.raises(NvmlError, match="Driver Not Loaded"):
        Nvml(FakePynvml(init_error="Driver Not Loaded"))


def test_an_old_binding_without_a_function_is_an_nvml_error() -> None:
    with pytest.raises(NvmlError, match="nvmlInit"):
        Nvml(object())


@contextmanager
def watching(loader: Callable[[], Nvml]) -> Iterator[queue.Queue[Reading]]:
    readings: queue.Queue[Reading] = queue.Queue()
    watcher = NvmlWatcher(readings.put, period_s=0.001, loader=loader)
    watcher.start()
    try:
        yield readings
    finally:
        watcher.stop()


def test_watcher_reports_changes_error_and_recovery() -> None:
    fake = FakePynvml(total=8 * GIB, free=6 * GIB)
    with watching(lambda: Nvml(fake)) as readings:
        assert isinstance(readings.get(timeout=600), GpuMemory)
        fake.error = "GPU is lost"
        while not isinstance(reading := readings.get(timeout=600), NvmlError):
            pass
        assert "GPU is lost" in str(reading)
        starts = fake.starts
        fake.error, fake.free = "", 1 * GIB
        recovered = readings.get(timeout=600)
        assert isinstance(recovered, GpuMemory)
        assert recovered.free_bytes == GIB
        assert fake.starts > starts


def test_watcher_says_the_same_error_once() -> None:
    attempts: queue.Queue[None] = queue.Queue()

    def no_driver() -> Nvml:
        attempts.put(None)
        raise NvmlError("no driver")

    with watching(no_driver) as readings:
        for _ in range(5):
            attempts.get(timeout=600)
        assert str(readings.get(timeout=600)) == "no driver"
    assert readings.empty()
