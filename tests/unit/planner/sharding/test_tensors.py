"""A model file's tensors as operations of its sub-layers."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from xlm.protocol.link import ModelFacts, SubLayer, Weight
from xlm_broker.planner.sharding.facts import work_from_facts
from xlm_broker.planner.sharding.tensors import FileTensor, classify, grouped

Q8_0, F32, UNKNOWN = 8, 0, 99
HEADS = {"n_embd": 64, "n_head": 4, "n_head_kv": 2, "head_dim": 16, "n_expert": 8, "n_expert_used": 2}


def weight(name: str, columns: int, rows: int, type_id: int = Q8_0) -> Weight:
    size = columns * rows * 34 // 32 if type_id == Q8_0 else 4 * columns * rows
    return Weight(name=name, type=type_id, n_columns=columns, n_elements=columns * rows, n_bytes=size)


def model(weights: list[Weight], *, sparse: bool = False) -> ModelFacts:
    """One layer whose sub-layers are exactly these tensors, and a tied output."""
    groups = grouped(FileTensor.of(w.name, w.type, w.n_columns, w.n_elements, w.n_bytes) for w in weights)
    kinds = ("small", "attention", "experts" if sparse else "ffn", "output")
    subs = [
        SubLayer(
            index=i, layer=-1 if kind in ("small", "output") else 0, kind=kind,  # type: ignore[arg-type]
            device_bytes=sum(t.n_bytes for (_, k), group in groups.items() if k == kind for t in group),
            kv_bytes=2 * 2 * 32 * 2 * 256 * 3 if kind == "attention" else 0,
        )
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    return ModelFacts(
        name="m", sublayers=subs, n_ctx=256, n_ubatch=64, n_sessions=3, hparams=HEADS, quantisation="Q4_0",
        weights=weights, scratch_bytes={1: 1000, 64: 64000},
    )  # fmt: skip


DENSE = [
    weight("token_embd.weight", 64, 1000), weight("output_norm.weight", 64, 1, F32),
    weight("blk.0.attn_norm.weight", 64, 1, F32), weight("blk.0.attn_q.weight", 64, 64),
    weight("blk.0.attn_output.weight", 64, 64), weight("blk.0.ffn_up.weight", 64, 128),
    weight("blk.0.ffn_down.weight", 128, 64),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", (-1, "lookup")), ("output.weight", (-1, "output")), ("output_norm.weight", (-1, "small")),
        ("blk.3.attn_k.weight", (3, "attention")), ("blk.3.attn_k.bias", (3, "small")),
        ("blk.12.ffn_down_exps.weight", (12, "experts")), ("blk.12.ffn_up_shexp.weight", (12, "shared_experts")),
        ("blk.1.ffn_gate_inp.weight", (1, "small")), ("blk.1.ffn_gate.weight", (1, "ffn")),
        ("blk.0.altup_proj.weight", (0, "extras")),
    ],
)  # fmt: skip
def test_names(name: str, expected: tuple[int, str]) -> None:
    assert classify(name) == expected


def test_exact_shapes_where_the_engine_sends_them() -> None:
    work = work_from_facts(model(DENSE))
    assert work.fallbacks == ()
    attention, ffn, output = work.units
    assert [(m.type, m.k, m.n) for m in attention.matmuls] == [("Q8_0", 64, 64)] * 2
    assert [(m.k, m.n) for m in ffn.matmuls] == [(64, 128), (128, 64)]
    assert [(m.k, m.n) for m in output.matmuls] == [(64, 1000)]  # tied
    assert attention.attention is not None
    assert attention.attention.kv_bytes_per_token == 2 * 2 * 32 * 2  # of one session, not of all three


def test_experts_are_stacked() -> None:
    experts = [weight("blk.0.ffn_up_exps.weight", 64, 8 * 32), weight("blk.0.ffn_down_exps.weight", 32, 8 * 64)]
    work = work_from_facts(model([t for t in DENSE if "ffn" not in t.name] + experts, sparse=True))
    assert [(e.k, e.n, e.n_expert, e.n_used) for e in work.units[1].experts] == [(64, 32, 8, 2), (32, 64, 8, 2)]


def test_tensors_that_are_not_what_the_engine_counts_are_not_used() -> None:
    facts = model(DENSE)
    subs = [replace(s, device_bytes=3 * s.device_bytes) if s.kind == "ffn" else s for s in facts.sublayers]
    work = work_from_facts(replace(facts, sublayers=subs))
    assert len(work.units[1].matmuls) == 1
    assert work.units[1].matmuls[0].weight_bytes == work.units[1].device_bytes


def test_an_unknown_type_is_named() -> None:
    odd = replace(DENSE[5], type=UNKNOWN)
    work = work_from_facts(model([*DENSE[:5], odd, DENSE[6]]))
    assert any("unknown quantisation of blk.0.ffn_up.weight" in note for note in work.fallbacks)
