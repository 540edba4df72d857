"""A pynvml to order: the real one needs a driver, and the interesting cases are those where it fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class FakeNVMLError(Exception):
    pass


class FakePynvml:
    """The five functions that are used; ``error`` is raised by the memory query while set."""

    def __init__(self, total: Any = 0, free: Any = 0, *, error: str = "", init_error: str = "") -> None:
        self.total, self.free, self.error, self.init_error = total, free, error, init_error
        self.starts = 0
        self.shut_down = False

    def nvmlInit(self) -> None:
        if self.init_error:
            raise FakeNVMLError(self.init_error)
        self.starts += 1

    def nvmlShutdown(self) -> None:
        self.shut_down = True

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle {index}"

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"Fake RTX"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        if self.error:
            raise FakeNVMLError(self.error)
        used = self.total - self.free if isinstance(self.total, int) and isinstance(self.free, int) else self.total
        return SimpleNamespace(total=self.total, free=self.free, used=used)
