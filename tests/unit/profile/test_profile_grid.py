"""Which points are measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm_broker.planner.sharding.profile import KernelPoint, LinkPoint, ProfileKey
from xlm_broker.profile_store import MAX_FILE_BYTES, ProfileWriter
from xlm_engine.profile.grid import (
    BusyLinkTask,
    Facts,
    KernelTask,
    LinkTask,
    ModelNeeds,
    cost_s,
    flops,
    repeated,
    tasks,
    thread_counts,
)
from xlm_engine.profile.points import KernelId, LinkId

SMOL = ModelNeeds(
    products=(("Q4_1", 576, 1536, False), ("Q8_0", 576, 49152, True), ("Q4_1", 576, 576, False)),
    heads=(64, 9, 3),
    n_embd=576,
    n_ff=1536,
    n_ctx=8192,
)
MOE = ModelNeeds(products=(("F32", 2048, 64, False),), experts=(("IQ4_XS", (2048, 768, 128, 8)),), heads=(128, 32, 4))


def every(facts: Facts) -> list[tuple[object, ...]]:
    return [tuple(point) for task in tasks(facts) for point in task.points()]


@given(st.integers(1, 64), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([ModelNeeds(), SMOL, MOE]))
def test_each_point_once_but_for_the_idle_ones_that_are_compared(
    n_threads: int, quick: bool, gpu: bool, link: bool, model: ModelNeeds
) -> None:
    facts = Facts(n_threads=n_threads, quick=quick, gpu=gpu, link=link, model=model)
    loaded = {
        tuple(point._replace(load="idle"))
        for task in tasks(facts)
        if isinstance(task, KernelTask) and len(task.loads) > 1
        for point in task.points()
    }
    counts = Counter(every(facts))
    twice = {point for point, count in counts.items() if count > 1}
    assert twice <= loaded
    assert all(counts[point] >= 1 for point in loaded)
    names = [task.name for task in tasks(facts)]
    assert len(names) == len(set(names))  # a crashed task is skipped by its name


@pytest.mark.parametrize("model", [SMOL, MOE])
def test_a_full_profile_of_a_large_machine_fits_the_file(model: ModelNeeds, tmp_path: Path) -> None:
    """Stored as it would be; room is left for other models."""
    points = every(Facts(n_threads=64, gpu=True, link=True, model=model))
    writer = ProfileWriter(tmp_path / "p.sqlite", ProfileKey("cpu", 64, "AVX2", "gpu", "1", "0"))
    writer.add(
        [KernelPoint(*point, ns=10**9) for point in points if len(point) == 7],  # type: ignore[arg-type]
        [LinkPoint(*point, ns=10**9) for point in points if len(point) == 4],  # type: ignore[arg-type]
    )
    writer.finish()
    writer.close()
    assert (tmp_path / "p.sqlite").stat().st_size < 0.75 * MAX_FILE_BYTES


def test_the_quick_grid_is_small_and_of_one_thread_count() -> None:
    quick = Facts(n_threads=8, quick=True, gpu=True, link=True, model=SMOL)
    assert len(every(quick)) < 450
    assert {threads for task in tasks(quick) if isinstance(task, KernelTask) for threads in task.threads} == {0, 8}


def test_without_a_link_nothing_needs_one() -> None:
    for task in tasks(Facts(n_threads=4)):
        assert isinstance(task, KernelTask)
        assert task.device == "cpu"
        assert task.loads == ("idle",)


def test_all_that_the_issue_names_is_in_the_full_grid() -> None:
    points = [point for task in tasks(Facts(n_threads=8, gpu=True, link=True)) for point in task.points()]
    kernels = [point for point in points if len(point) == 7]
    for type_ in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K"):
        for device in ("cpu", "gpu"):
            own = [p for p in kernels if p[:3] == (device, "MUL_MAT", type_)]
            assert {p[4] for p in own} >= {1, 4, 16, 64, 512}
            assert len({p[3] for p in own}) >= 2
    assert {p[6] for p in kernels} == {"idle", "h2d", "d2h", "both"}
    assert {p[5] for p in kernels if p[6] == "both"} == {1, 2, 4, 8}
    assert {p[1] for p in kernels} >= {"MUL_MAT_ID", "FLASH_ATTN_EXT", "RMS_NORM", "ADD", "MUL", "SILU", "ROPE"}
    links = [point for point in points if len(point) == 4]
    assert {(p[0], p[1]) for p in links} == {(d, m) for d in ("h2d", "d2h") for m in ("pinned", "pageable")}
    assert {p[3] for p in links} == {0, 1, 2, 4, 8}


def test_the_models_own_kernels_come_first() -> None:
    kinds = [task for task in tasks(Facts(n_threads=2, quick=True, model=SMOL)) if isinstance(task, KernelTask)]
    assert [task.shape[:2] for task in kinds[1:4]] == [(576, 1536), (576, 49152), (576, 576)]
    assert max(kinds[2].tokens) <= 16  # the output matrix sees few tokens
    assert any(
        task.type == "IQ4_XS" and task.op == "MUL_MAT_ID"
        for task in tasks(Facts(2, model=MOE))
        if isinstance(task, KernelTask)
    )


def test_attention_never_sees_more_tokens_than_context() -> None:
    for task in tasks(Facts(n_threads=2, model=SMOL)):
        if isinstance(task, KernelTask) and task.op == "FLASH_ATTN_EXT":
            assert max(task.tokens) <= task.shape[3]


def test_a_quick_profile_has_a_whole_step_of_the_models_own_attention() -> None:
    quick = tasks(Facts(n_threads=2, quick=True, model=SMOL))
    steps = {
        task.shape: max(task.tokens)
        for task in quick
        if isinstance(task, KernelTask) and task.op == "FLASH_ATTN_EXT" and task.shape[3] >= 512
    }
    assert {shape: n for shape, n in steps.items() if n == 512} == {(64, 9, 3, 1024): 512, (64, 9, 3, 4096): 512}
    assert {n for shape, n in steps.items() if shape[:3] != SMOL.heads} == {64}


def test_what_starts_the_threads_and_the_models_own_rows_are_looked_at_again() -> None:
    again = repeated(Facts(n_threads=2, quick=True, gpu=True, model=SMOL))
    assert {task.device for task in again} == {"cpu"}
    assert [task.op for task in again].count("GRAPH") == 1
    assert {task.shape[0] for task in again if task.op == "SWIGLU"} == {576, 1536}


@pytest.mark.parametrize(("n", "full"), [(1, (1,)), (2, (1, 2)), (4, (1, 2, 4)), (6, (1, 3, 6)), (16, (1, 4, 8, 16))])
def test_thread_counts(n: int, full: tuple[int, ...]) -> None:
    assert thread_counts(n, quick=False) == full
    assert thread_counts(n, quick=True) == (n,)


def test_names_are_for_people() -> None:
    assert KernelTask("cpu", "MUL_MAT", "Q4_K", (4096, 14336, 0, 0), (1,), (2,)).name == "cpu MUL_MAT Q4_K 4096x14336"
    assert LinkTask("h2d", "pinned", (1,)).name == "link h2d pinned"
    assert BusyLinkTask("d2h", "Q8_0", (1,), (2,)).name == "link d2h while the CPU computes"


def test_larger_steps_cost_more_time() -> None:
    def points(op: str) -> list[KernelId]:
        task = KernelTask("cpu", op, "Q4_K", (64, 32, 8, 2), (1, 64, 1024), (1,))
        return list(task.points())

    for op in ("MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT"):
        costs = [cost_s(point, 0.1) for point in points(op)]
        assert costs == sorted(set(costs))
        assert costs[0] > 0.1
    assert flops(points("MUL_MAT")[0]) == 2 * 64 * 32
    assert flops(points("MUL_MAT_ID")[0]) == 2 * 64 * 32 * 2
    assert flops(points("FLASH_ATTN_EXT")[0]) == 4 * 64 * 32 * 2
    assert flops(points("ADD")[2]) == 0.0
    assert cost_s(LinkId("h2d", "pinned", 1, 0), 0.1) == 0.1
