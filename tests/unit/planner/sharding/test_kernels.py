"""Interpolation on measured points, and what is assumed without them."""

from __future__ import annotations

import pytest

from xlm_broker.planner.sharding.kernels import Profiled, Roofline
from xlm_broker.planner.sharding.profile import KernelPoint, Load, MachineProfile, ProfileKey
from xlm_broker.planner.sharding.work import Attention, Experts, MatMul

from . import examples

KEY = ProfileKey("cpu", 8, "AVX2", "card", "1", "ggml 1")
SQUARE = MatMul("Q4_0", 1024, 1024, 1024 * 1024 * 0.5625)


def product(size: int, tokens: int, ns: int, load: Load = "idle", threads: int = 8) -> KernelPoint:
    return KernelPoint("cpu", "MUL_MAT", "Q4_0", (size, size, 0, 0), tokens, threads, load, ns)


def profiled(*points: KernelPoint, threads: int = 8) -> Profiled:
    return Profiled(MachineProfile(KEY, points), threads, Roofline(examples.machine(examples.DESKTOP)))


def test_measured_points_come_back_as_they_are() -> None:
    kernels = profiled(product(512, 1, 100), product(1024, 1, 500), product(1024, 64, 9000), product(2048, 1, 2100))
    assert kernels.matmul("cpu", SQUARE, 1) == pytest.approx(500)
    assert kernels.matmul("cpu", SQUARE, 64) == pytest.approx(9000)
    assert kernels.fallbacks() == {}


def test_between_points_it_is_linear_in_logs() -> None:
    kernels = profiled(product(1024, 1, 400), product(1024, 16, 1600))
    assert kernels.matmul("cpu", SQUARE, 4) == pytest.approx(800)  # halfway in both logs
    kernels = profiled(product(512, 1, 100), product(2048, 1, 1600))
    assert kernels.matmul("cpu", SQUARE, 1) == pytest.approx(400)


def test_beyond_the_points_time_grows_at_most_in_proportion() -> None:
    kernels = profiled(product(1024, 16, 1000), product(1024, 64, 8000))  # steeper than in proportion
    assert kernels.matmul("cpu", SQUARE, 128) == pytest.approx(16_000)
    kernels = profiled(product(512, 1, 100))
    assert kernels.matmul("cpu", SQUARE, 1) == pytest.approx(400)  # one size only: by weights


def test_a_busy_link_slows_by_the_measured_ratio() -> None:
    kernels = profiled(product(1024, 1, 500), product(1024, 1, 700, "h2d"), product(1024, 4, 900))
    assert kernels.matmul("cpu_busy", SQUARE, 1) == pytest.approx(700)
    assert kernels.matmul("cpu_busy", SQUARE, 4) == pytest.approx(900 * 1.4)


def test_the_nearest_thread_count_is_used_and_named() -> None:
    kernels = profiled(product(1024, 1, 500, threads=2), product(1024, 1, 200, threads=6), threads=8)
    assert kernels.matmul("cpu", SQUARE, 1) == pytest.approx(200)
    assert "times of 6 threads for 8" in kernels.fallbacks()


def test_what_was_not_measured_is_assumed_and_counted() -> None:
    kernels = profiled(product(1024, 1, 500))
    other = MatMul("Q6_K", 1024, 1024, 860_000)
    assert kernels.matmul("cpu", other, 1) == Roofline(kernels.fallback.machine).matmul("cpu", other, 1)  # type: ignore[attr-defined]
    kernels.matmul("gpu", SQUARE, 1)
    names = kernels.fallbacks()
    assert names["no points: Q6_K product"] == 1
    assert names["no points: Q4_0 product"] == 1


def test_attention_needs_the_same_heads() -> None:
    heads = Attention("F16", 128, 32, 8, 4096.0)
    points = [KernelPoint("gpu", "FLASH_ATTN_EXT", "F16", (128, 32, 8, c), 1, 0, "idle", c * 10) for c in (512, 2048)]
    kernels = profiled(*points)
    assert kernels.attention("gpu", heads, 1, 1024) == pytest.approx(10_240)
    kernels.attention("gpu", Attention("F16", 64, 32, 8, 2048.0), 1, 1024)
    assert "no points: attention" in kernels.fallbacks()


@pytest.mark.parametrize("where", ["cpu", "cpu_busy", "gpu"])
def test_roofline_is_bound_by_bytes_then_by_flops(where: str) -> None:
    roofline = Roofline(examples.machine(examples.DESKTOP))
    op = MatMul("F16", 4096, 4096, 2.0 * 4096 * 4096)
    one, many, more = (roofline.matmul(where, op, tokens) for tokens in (2, 4096, 8192))  # type: ignore[arg-type]
    assert one < many
    assert more == pytest.approx(2 * many, rel=0.05)
    assert roofline.matmul("cpu_busy", op, 1) >= roofline.matmul("cpu", op, 1)


def test_experts_touch_more_with_more_tokens() -> None:
    op = Experts("Q4_0", 2048, 768, 128, 8, 1e8)
    shares = [op.used_share(tokens) for tokens in (1, 4, 64, 1024)]
    assert shares[0] == pytest.approx(8 / 128)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0, abs=1e-6)
