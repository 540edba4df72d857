"""Model files with random weights in real proportions, for timing only: they say nothing.

Shapes: ``dense`` is that of TinyLlama 1.1B, ``moe`` that of Granite 3.1 1B-A400M (their public configurations). The
package ``gguf`` writes them; random blocks are valid Q4_0 with weights of the usual size, 1/sqrt(k), and no
denormals. Equal matrices share their random bytes, which no kernel can tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xlm.errors import RequestError, XlmError

Q4_0_BLOCK, Q4_0_BYTES = 32, 18
_STEPS: Final = 4.6  # standard deviation of the 16 levels of a random Q4_0 block


@dataclass(frozen=True)
class Shape:
    """``n_expert`` 0: a dense model, whose n_ff is that of the whole layer."""

    architecture: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    n_vocab: int
    n_ctx: int = 32768
    n_expert: int = 0
    n_expert_used: int = 0
    tied: bool = False


SHAPES: Final = {
    "dense": Shape("llama", 22, 2048, 5632, 32, 4, 32000),
    "moe": Shape("granitemoe", 24, 1024, 512, 16, 8, 49155 // 32 * 32, n_expert=32, n_expert_used=8, tied=True),
    "tiny": Shape("llama", 4, 256, 512, 4, 2, 512),
    "tiny_moe": Shape("granitemoe", 3, 256, 128, 4, 2, 512, n_expert=8, n_expert_used=2, tied=True),
}


def write_model(name: str, path: Path) -> None:
    """Writes it beside and renames it, so that an interrupted run leaves no half file. XlmError without ``gguf``."""
    shape = SHAPES.get(name)
    if shape is None:
        raise RequestError(f"no model shape is named {name!r}", code="option_invalid")
    try:
        import gguf
    except ImportError as error:
        raise XlmError("writing a model needs the package gguf", code="option_invalid", hint="pip install gguf") from (
            error
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    writer = gguf.GGUFWriter(part, shape.architecture)
    _add_keys(writer, gguf, name, shape)
    for tensor, data in _tensors(shape):
        kind = gguf.GGMLQuantizationType.Q4_0 if data.dtype == np.uint8 else None
        writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)


def _add_keys(writer: Any, gguf: Any, name: str, shape: Shape) -> None:
    writer.add_name(f"random {name}")
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.n_embd // shape.n_head)
    writer.add_vocab_size(shape.n_vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    _add_tokenizer(writer, gguf, shape.n_vocab)
    if shape.n_expert:
        writer.add_expert_count(shape.n_expert)
        writer.add_expert_used_count(shape.n_expert_used)
        writer.add_logit_scale(1.0)


def _add_tokenizer(writer: Any, gguf: Any, n_vocab: int) -> None:
    """Enough of one for a file to count as a model: special tokens, all bytes, and words nobody will say."""
    kinds = gguf.TokenType
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256
    tokens += [f"word{index}" for index in range(n_vocab - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * n_vocab)
    writer.add_token_types(types + [kinds.NORMAL] * (n_vocab - len(types)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _tensors(shape: Shape) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    random = _Random()
    ones = np.ones(shape.n_embd, dtype=np.float32)
    kv = shape.n_embd // shape.n_head * shape.n_head_kv
    yield "token_embd.weight", random.matrix(shape.n_vocab, shape.n_embd)
    yield "output_norm.weight", ones
    if not shape.tied:
        yield "output.weight", random.matrix(shape.n_vocab, shape.n_embd)
    for layer in range(shape.n_layer):
        for part, rows in (("attn_q", shape.n_embd), ("attn_k", kv), ("attn_v", kv), ("attn_output", shape.n_embd)):
            yield f"blk.{layer}.{part}.weight", random.matrix(rows, shape.n_embd)
        yield f"blk.{layer}.attn_norm.weight", ones
        yield f"blk.{layer}.ffn_norm.weight", ones
        for part, data in _feed_forward(shape, random):
            yield f"blk.{layer}.{part}.weight", data


def _feed_forward(shape: Shape, random: _Random) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    shapes = (("gate", shape.n_ff, shape.n_embd), ("up", shape.n_ff, shape.n_embd), ("down", shape.n_embd, shape.n_ff))
    if not shape.n_expert:
        for part, rows, columns in shapes:
            yield f"ffn_{part}", random.matrix(rows, columns)
        return
    yield "ffn_gate_inp", random.router(shape.n_expert, shape.n_embd)
    for part, rows, columns in shapes:
        yield f"ffn_{part}_exps", random.matrix(rows, columns, shape.n_expert)


class _Random:
    def __init__(self) -> None:
        self._generator = np.random.default_rng(20)
        self._made: dict[tuple[int, ...], npt.NDArray[np.uint8]] = {}

    def matrix(self, rows: int, columns: int, count: int = 1) -> npt.NDArray[np.uint8]:
        """``count`` matrices of Q4_0 as bytes: an F16 scale and 16 bytes of two levels each, for every 32 weights."""
        key = (rows, columns, count)
        if key not in self._made:
            blocks = rows * count * (columns // Q4_0_BLOCK)
            data = self._generator.integers(0, 256, (blocks, Q4_0_BYTES), dtype=np.uint8)
            scales = self._generator.uniform(0.5, 1.5, blocks) / (_STEPS * np.sqrt(columns))
            data[:, :2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
            shape = (rows, -1) if count == 1 else (count, rows, columns // Q4_0_BLOCK * Q4_0_BYTES)
            self._made[key] = data.reshape(shape)
        return self._made[key]

    def router(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float64] = self._generator.standard_normal((rows, columns)) / np.sqrt(columns)
        return values.astype(np.float32)
