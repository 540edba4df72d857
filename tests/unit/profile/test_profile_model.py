"""What is read from a model file, and from the system."""

from __future__ import annotations

from pathlib import Path

import pytest

from xlm.errors import ModelError
from xlm.protocol.link import DeviceConfig, SimConfig
from xlm_broker.config import demo_model
from xlm_engine.gguf_header import Header
from xlm_engine.profile.identity import cpu_name, driver, last_level_cache_bytes
from xlm_engine.profile.model import Matrix, model_needs, needs


def header(**values: object) -> Header:
    return Header(metadata={"general.architecture": "a", **{f"a.{k.replace('__', '.')}": v for k, v in values.items()}})


def matrix(name: str, type_: str, *ne: int) -> Matrix:
    full = (*ne, 1, 1, 1)[:4]
    return Matrix(f"{name}.weight", type_, (full[0], full[1], full[2], full[3]))


def test_products_by_their_share_of_the_file() -> None:
    found = needs(
        header(embedding_length=64, feed_forward_length=256, context_length=512, attention__head_count=4),
        [
            matrix("token_embd", "Q8_0", 64, 1000),
            matrix("output", "Q6_K", 64, 1000),
            matrix("blk.0.attn_q", "Q4_K", 64, 64),
            matrix("blk.0.ffn_up", "Q4_K", 64, 256),
            matrix("blk.1.ffn_up", "Q4_K", 64, 256),
            matrix("blk.0.attn_norm", "F32", 64),
        ],
    )
    assert found.products == (("Q6_K", 64, 1000, True), ("Q4_K", 64, 256, False), ("Q4_K", 64, 64, False))
    assert found.types == ("Q4_K", "Q6_K")
    assert found.heads == (16, 4, 4)
    assert (found.n_embd, found.n_ff, found.n_ctx) == (64, 256, 512)


def test_a_tied_embedding_is_the_output_matrix() -> None:
    assert needs(header(), [matrix("token_embd", "Q8_0", 64, 1000)]).products == (("Q8_0", 64, 1000, True),)


def test_experts_and_their_router() -> None:
    found = needs(
        header(expert_used_count=8),
        [matrix("blk.0.ffn_up_exps", "Q4_K", 64, 32, 128), matrix("blk.0.ffn_gate_inp", "F32", 64, 128)],
    )
    assert found.experts == (("Q4_K", (64, 32, 128, 8)),)
    assert found.products == (("F32", 64, 128, False),)


def test_types_ggml_does_not_have_and_other_tensors_are_passed_over() -> None:
    assert needs(header(), [matrix("blk.0.x", "", 64, 64), matrix("v.blk.0.attn_q", "F16", 64, 64)]).products == ()


def test_heads_of_different_key_and_value_sizes_are_not_measured() -> None:
    facts = header(attention__head_count=4, attention__key_length=192, attention__value_length=128)
    assert needs(facts, []).heads is None
    assert needs(header(), []).heads is None


def test_the_real_model() -> None:
    try:
        path = demo_model()
    except ModelError:
        pytest.skip("the demo model is not installed")
    found = model_needs(str(path))
    assert found.heads == (64, 9, 3)
    assert found.n_embd == 576
    assert ("Q4_1", 576, 1536, False) in found.products
    assert sum(is_output for *_, is_output in found.products) == 1


def test_a_file_that_is_no_model_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError):
        model_needs(str(tmp_path / "m.gguf"))
    with pytest.raises(ModelError) as missing:
        model_needs(str(tmp_path / "none.gguf"))
    assert missing.value.code == "model_not_found"


def test_the_cpu_is_named_as_the_system_does(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n", encoding="utf-8")
    assert cpu_name(info) == "Some CPU @ 3 GHz"
    info.write_text("processor\t: 0\nHardware\t: Some board\n", encoding="utf-8")
    assert cpu_name(info) == "Some board"
    assert cpu_name(tmp_path / "none")


def test_the_last_level_cache(tmp_path: Path) -> None:
    for index, size in enumerate(("32K", "1024K", "32768K", "nonsense")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n", encoding="ascii")
    assert last_level_cache_bytes(tmp_path) == 32 << 20
    assert last_level_cache_bytes(tmp_path / "none") > 0


def test_the_virtual_gpus_settings_are_its_driver() -> None:
    def of(**values: float) -> str:
        return driver(DeviceConfig(kind="sim", sim=SimConfig(modelled=True, extra=dict(values))), "")

    assert of(op_launch_ns=1.0) != of(op_launch_ns=2.0)
    assert of(op_launch_ns=1.0, n_threads=1.0) == of(op_launch_ns=1.0, n_threads=2.0)
    assert driver(DeviceConfig(kind="none"), "") == ""
