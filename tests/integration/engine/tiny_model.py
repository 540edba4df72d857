"""A small GGUF model with random weights and SmolLM2's tokenizer: loads in a moment, speaks nonsense, repeatably."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from tests.support.model import model_path
from xlm_engine import gguf_header

N_LAYER, N_EMBD, N_HEAD, N_KV_HEAD, N_FF = 2, 64, 4, 2, 128

_FIXED_BYTES = 24  # magic, version, number of tensors, number of keys
_ALIGNMENT = 32


def write_tiny_model(path: Path, *, chat_template: str | None = None) -> Path:
    """Llama architecture, 2 layers, 64 wide, F16. ``chat_template`` None keeps SmolLM2's, "" leaves it out."""
    tokenizer, n_vocab = _tokenizer_keys(keep_template=chat_template is None)
    writer = gguf.GGUFWriter(path, "llama")
    if chat_template:
        writer.add_chat_template(chat_template)
    _add_shape(writer)
    for name, data in _tensors(n_vocab).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.write_bytes(_with_keys(path.read_bytes(), tokenizer))
    return path


def _tokenizer_keys(*, keep_template: bool) -> tuple[list[bytes], int]:
    """SmolLM2's tokenizer keys as raw bytes (copying them by value takes ten seconds), and its vocabulary size."""
    keys, n_vocab = [], 0
    with model_path().open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = gguf_header._Reader(data)
        reader.at = _FIXED_BYTES
        for _ in range(struct.unpack_from("<Q", data, 16)[0]):
            start = reader.at
            name, value = reader.string(gguf_header.MAX_KEY), reader.value()
            if name == "tokenizer.ggml.tokens":
                n_vocab = value.length
            if name.startswith("tokenizer.ggml.") or (keep_template and name == "tokenizer.chat_template"):
                keys.append(data[start : reader.at])
    return keys, n_vocab


def _with_keys(raw: bytes, keys: list[bytes]) -> bytes:
    """A GGUF file with further keys put in front of its own."""
    with mmap.mmap(-1, len(raw)) as data:
        data[:] = raw
        reader = gguf_header._Reader(data)
        header = gguf_header._parse(reader)
        body, tensors = raw[_FIXED_BYTES : reader.at], raw[header.data_start :]
    n_tensors, n_keys = struct.unpack_from("<QQ", raw, 8)
    head = raw[:8] + struct.pack("<QQ", n_tensors, n_keys + len(keys)) + b"".join(keys) + body
    return head + bytes(-len(head) % _ALIGNMENT) + tensors


def _add_shape(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_context_length(4096)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_KV_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(N_EMBD // N_HEAD)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def _tensors(n_vocab: int) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(20)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> npt.NDArray[np.float16]:
        values: npt.NDArray[np.float64] = rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)
        return values.astype(np.float16)

    ones = np.ones(N_EMBD, dtype=np.float32)
    kv = N_EMBD // N_HEAD * N_KV_HEAD
    tensors: dict[str, npt.NDArray[Any]] = {
        "token_embd.weight": matrix(n_vocab, N_EMBD, 8.0),
        "output_norm.weight": ones,
        "output.weight": matrix(n_vocab, N_EMBD, 4.0),
    }
    for layer in range(N_LAYER):
        block = f"blk.{layer}."
        tensors |= {
            f"{block}attn_norm.weight": ones,
            f"{block}attn_q.weight": matrix(N_EMBD, N_EMBD, 2.0),
            f"{block}attn_k.weight": matrix(kv, N_EMBD, 2.0),
            f"{block}attn_v.weight": matrix(kv, N_EMBD, 2.0),
            f"{block}attn_output.weight": matrix(N_EMBD, N_EMBD, 2.0),
            f"{block}ffn_norm.weight": ones,
            f"{block}ffn_gate.weight": matrix(N_FF, N_EMBD, 2.0),
            f"{block}ffn_up.weight": matrix(N_FF, N_EMBD, 2.0),
            f"{block}ffn_down.weight": matrix(N_EMBD, N_FF, 2.0),
        }
    return tensors
