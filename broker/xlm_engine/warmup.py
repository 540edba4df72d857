"""First steps after loading: they fault pages in, and tell how much device scratch a step of each size needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xlm_engine.runtime import Row, Runtime


def tiers(n_ubatch: int) -> Iterator[int]:
    """1, 4, 16, 64 … and n_ubatch."""
    size = 1
    while size < n_ubatch:
        yield size
        size *= 4
    yield n_ubatch


def mask_bytes(size: int, n_ctx: int) -> int:
    """The attention mask grows with the cells in use: two bytes (F16) and four (F32) a cell and token."""
    return 6 * size * n_ctx


def measure_scratch(runtime: Runtime, progress: Callable[[float], None]) -> dict[int, int]:
    """Tokens of a step -> device scratch bytes it needs. Runs on the CPU schedule; leaves the KV cache empty."""
    needs: dict[int, int] = {}
    sizes = list(tiers(runtime.config.n_ubatch))
    runtime.device.reset_stats()
    for index, size in enumerate(sizes):
        _step(runtime, size)
        stats = runtime.device.stats()
        seen = stats["scratch_need_decode_bytes"] if size == 1 else stats["scratch_need_prefill_bytes"]
        needs[size] = seen + mask_bytes(size, runtime.config.n_ctx)
        progress((index + 1) / len(sizes))
    runtime.clear()
    runtime.device.reset_stats()
    return needs


def _step(runtime: Runtime, size: int) -> None:
    runtime.clear()
    runtime.device.begin_step(size)
    token = 0
    runtime.decode([Row(token, position, 0, position == size - 1) for position in range(size)])
