from __future__ import annotations

import contextlib
import errno
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm.errors import ModelError
from xlm_engine import gguf_check, gguf_header


def write(path: Path, *, leave_out: str = "", architecture: str = "llama", model: str = "gpt2", blocks: int = 2,
          epsilon: float = 1e-5) -> Path:  # fmt: skip
    writer = gguf.GGUFWriter(path, architecture)
    strings = {"tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"]}
    for key, value in strings.items():
        if key != leave_out:
            writer.add_array(key, value)
    if leave_out != "tokenizer.ggml.model":
        writer.add_string("tokenizer.ggml.model", model)
    writer.add_block_count(blocks)
    writer.add_layer_norm_rms_eps(epsilon)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_tensor("token_embd.weight", np.zeros((3, 64), dtype=np.float16))
    writer.add_tensor("output_norm.weight", np.zeros(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def check(path: str, available: int) -> None:
    header = gguf_check.check_file(path)
    gguf_check.check_memory(header, 1024, "f16", available)
    gguf_check.check_complete(header, path)


def code_of(path: Path | str, available: int = 1 << 40) -> str:
    with pytest.raises(ModelError) as caught:
        check(str(path), available)
    assert caught.value.message
    return caught.value.code


def test_a_good_file_passes_whatever_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "модель 模型 🗡.gguf")
    header = gguf_check.check_model(str(path), 1024, "f16")
    assert header.text("general.architecture") == "llama"
    assert header.tensor_bytes == 3 * 64 * 2 + 64 * 4
    assert header.needed_file_bytes <= path.stat().st_size
    assert gguf_check.kv_bytes(header, 1000, "f16") == 2 * 1000 * 2 * (16 + 16) * 2


@pytest.mark.parametrize(
    ("key", "named"),
    [
        ("tokenizer.ggml.model", "tokenizer.ggml.model"),
        ("tokenizer.ggml.tokens", "tokenizer.ggml.tokens"),
        ("tokenizer.ggml.merges", "tokenizer.ggml.merges"),
    ],
)
def test_a_missing_tokenizer_key_is_named(tmp_path: Path, key: str, named: str) -> None:
    path = write(tmp_path / "m.gguf", leave_out=key)
    with pytest.raises(ModelError, match=named) as caught:
        gguf_check.check_file(str(path))
    assert caught.value.code == "model_missing_tokenizer"


def test_merges_are_not_asked_of_sentencepiece(tmp_path: Path) -> None:
    gguf_check.check_file(str(write(tmp_path / "m.gguf", leave_out="tokenizer.ggml.merges", model="llama")))


@pytest.mark.parametrize("architecture", ["", "clip"])
def test_files_that_are_no_language_model(tmp_path: Path, architecture: str) -> None:
    assert code_of(write(tmp_path / "m.gguf", architecture=architecture)) == "model_unknown_architecture"


def test_a_model_without_layers_is_refused(tmp_path: Path) -> None:
    assert code_of(write(tmp_path / "m.gguf", blocks=0)) == "model_invalid"


@pytest.mark.parametrize("epsilon", [0.0, -1e-5, float("nan"), float("inf")])
def test_an_epsilon_that_makes_nan_of_everything_is_refused(tmp_path: Path, epsilon: float) -> None:
    path = write(tmp_path / "m.gguf", epsilon=epsilon)
    assert code_of(path) == "model_invalid"
    with pytest.raises(ModelError, match=r"llama\.attention\.layer_norm_rms_epsilon"):
        gguf_check.check_file(str(path))


def test_faults_of_the_entry(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "zip").write_bytes(b"PK\x03\x04" + bytes(100))
    assert code_of(tmp_path / "missing") == "model_not_found"
    assert code_of(tmp_path) == "model_is_directory"
    assert code_of(tmp_path / "empty") == "model_empty"
    assert code_of(tmp_path / "zip") == "model_bad_magic"
    assert code_of("bad\0path") in ("model_not_found", "model_unreadable")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    path.chmod(0)
    assert code_of(path) == "model_unreadable"


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert code_of(tmp_path / "pipe") == "model_unreadable"


def test_every_shorter_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    whole = path.read_bytes()
    needed = gguf_header.parse(path).needed_file_bytes
    for length in range(4, needed, 7):
        path.write_bytes(whole[:length])
        assert code_of(path) in ("model_truncated", "model_bad_magic")


def test_too_large_for_memory(tmp_path: Path) -> None:
    assert code_of(write(tmp_path / "m.gguf"), available=1 << 20) == "model_too_large"


def header_bytes(n_tensors: int = 0, n_kv: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_kv) + rest


HOSTILE = {
    "tensor count": header_bytes(n_tensors=1 << 60),
    "key count": header_bytes(n_kv=1 << 60),
    "key length": header_bytes(n_kv=1, rest=struct.pack("<Q", 1 << 60)),
    "array length": header_bytes(n_kv=1, rest=struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 60)),
    "string array": header_bytes(n_kv=1, rest=struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 1 << 60)),
    "string in array": header_bytes(n_kv=1, rest=struct.pack("<Q1sIIQQ", 1, b"k", 9, 8, 1, 1 << 60)),
    "nested array": header_bytes(n_kv=1, rest=struct.pack("<Q1sIIQ", 1, b"k", 9, 9, 1)),
    "value type": header_bytes(n_kv=1, rest=struct.pack("<Q1sI", 1, b"k", 77)),
    "dimensions": header_bytes(n_tensors=1, rest=struct.pack("<Q1sI", 1, b"t", 1 << 30)),
    "version": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    "nothing more": b"GGUF",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(HOSTILE[name])
    assert code_of(path) in ("model_truncated", "model_invalid")


@given(st.binary(max_size=200))
def test_nothing_else_than_a_typed_error_comes_out(tmp_path_factory: pytest.TempPathFactory, rest: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "random.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + rest)
    with contextlib.suppress(ModelError):
        gguf_check.check_model(str(path), 16, "f16")


def test_type_sizes_are_those_of_the_gguf_package() -> None:
    for kind, sizes in gguf.GGML_QUANT_SIZES.items():
        if int(kind) in gguf_header.TYPE_SIZES:
            assert gguf_header.TYPE_SIZES[int(kind)] == sizes, kind


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("llama_model_load: error loading model: unknown model architecture: 'foo'", "model_unknown_architecture"),
        ("error loading model: key not found in model: tokenizer.ggml.model", "model_missing_tokenizer"),
        ("error loading model: tensor 'x' data is not within the file bounds", "model_truncated"),
        ("alloc_tensor_range: failed to allocate CPU buffer of size 1", "model_too_large"),
        ("error loading model: missing tensor 'blk.0.attn_q.weight'", "model_invalid"),
    ],
)
def test_what_llama_says_becomes_a_code(line: str, code: str) -> None:
    error = gguf_check.explain_load_failure(["something before", line])
    assert (error.code, line in error.message or "error loading" not in line) == (code, True)


def test_a_silent_failure_is_still_an_error() -> None:
    assert gguf_check.explain_load_failure([]).code == "model_invalid"


def test_no_memory_to_read_a_file_is_no_matter_of_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(_: Path) -> gguf_header.Header:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(gguf_header, "parse", no_memory)
    with pytest.raises(ModelError, match=os.strerror(errno.ENOMEM)) as caught:
        gguf_check.check_file(str(write(tmp_path / "m.gguf")))
    assert "memory" in caught.value.hint
