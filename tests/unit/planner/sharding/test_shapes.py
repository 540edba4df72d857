"""Models and machines from facts: sizes come out as published, nonsense is refused."""

from __future__ import annotations

from typing import Any

import pytest

from xlm.errors import ShapeError
from xlm_broker.planner.sharding.facts import work_from_facts
from xlm_broker.planner.sharding.hardware import card, machine_from_row
from xlm_broker.planner.sharding.quant import weight_type
from xlm_broker.planner.sharding.shapes import model_work, shape_from_entry

from . import examples

GIB = 1 << 30


@pytest.mark.parametrize("entry", [examples.DENSE, examples.SPARSE], ids=["dense", "sparse"])
def test_sizes_add_up_to_the_file(entry: dict[str, Any]) -> None:
    shape = shape_from_entry("m", entry)
    work = model_work(shape, n_ctx=1024, n_ubatch=512)
    embedding = shape.n_vocab * shape.n_embd * shape.output.bytes_per_weight  # looked up on the host
    assert work.weight_bytes + embedding == pytest.approx(entry["file_gib"] * GIB, rel=0.02)


def test_kv_is_two_rows_of_each_kv_head() -> None:
    work = model_work(shape_from_entry("m", examples.DENSE), n_ctx=4096, n_ubatch=512)
    assert sum(unit.kv_bytes for unit in work.units) == 40 * 2 * 8 * 128 * 2 * 4096


@pytest.mark.parametrize(
    "change",
    [
        {"n_layer": 0}, {"n_layer": "40"}, {"n_layer": True}, {"n_embd": -1}, {"n_head_kv": 5}, {"n_ff": None},
        {"file_gib": 3.0}, {"n_vocab": 1 << 30},
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ShapeError) as caught:
        shape_from_entry("m", examples.DENSE | change)
    assert caught.value.code == "shape_invalid"


def test_more_experts_used_than_there_are() -> None:
    with pytest.raises(ShapeError, match="experts"):
        shape_from_entry("m", examples.SPARSE | {"n_expert_used": 200})


def test_an_unknown_quantisation_is_a_named_fallback() -> None:
    shape = shape_from_entry("m", examples.DENSE | {"weights": "Z9_Q", "file_gib": 15.7})
    assert any("unknown quantisation" in note for note in shape.fallbacks)
    assert shape.weights.bytes_per_weight == pytest.approx(2.0, rel=0.2)  # by the file's size


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Q4_K_M", "Q4_K"),
        ("q8_0", "Q8_0"),
        ("F16", "F16"),
        ("IQ4_XS", "IQ4_XS"),
        ("Q2_K mix", "Q2_K"),
        ("BF16", "BF16"),
    ],
)
def test_names_of_types(name: str, expected: str) -> None:
    found = weight_type(name)
    assert (found.name, found.known) == (expected, True)


@pytest.mark.parametrize("context", [0, -1])
def test_a_context_must_be_positive(context: int) -> None:
    with pytest.raises(ShapeError):
        model_work(shape_from_entry("m", examples.DENSE), n_ctx=context, n_ubatch=512)


def test_cards_are_found_by_any_of_their_names() -> None:
    assert card("NVIDIA GeForce RTX 5070 Ti") == card("RTX 5070 Ti") != card("RTX 5070")
    with pytest.raises(ShapeError) as caught:
        card("Voodoo 2")
    assert caught.value.code == "machine_invalid"


@pytest.mark.parametrize("change", [{"ram_bandwidth_gb_s": ""}, {"pcie_h2d_gb_s": "-3"}, {"gpu_vram_gib": "nan"}])
def test_a_machine_with_impossible_numbers(change: dict[str, Any]) -> None:
    with pytest.raises(ShapeError) as caught:
        machine_from_row(examples.DESKTOP | change)
    assert caught.value.code == "machine_invalid"


def test_facts_of_a_loaded_model() -> None:
    work = work_from_facts(examples.facts(experts=True))
    assert [u.kind for u in work.units] == ["attention", "experts"] * 6 + ["output"]
    assert work.n_sublayers == 15
    assert work.small_indices == (0,)
    assert any("heads unknown" in note for note in work.fallbacks)
    known = {"n_embd": 1024, "n_head": 16, "n_head_kv": 4, "head_dim": 64, "n_expert": 32, "n_expert_used": 4}
    work = work_from_facts(examples.facts(experts=True, hparams=known))
    assert work.n_embd == 1024
    assert work.fallbacks == ()
    assert work.units[1].experts[0].n_used == 4


def test_facts_with_a_sub_layer_twice() -> None:
    facts = examples.facts()
    with pytest.raises(ShapeError):
        work_from_facts(examples.facts(sublayers=[*facts.sublayers, facts.sublayers[1]]))
