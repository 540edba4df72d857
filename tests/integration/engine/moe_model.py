"""Small mixtures of experts with random weights and SmolLM2's tokenizer, in the forms of several architectures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import numpy.typing as npt

from tests.integration.engine.tiny_model import _tokenizer_keys, _with_keys

Matrix = npt.NDArray[np.float32]

ARCHITECTURES: Final = ("qwen3moe", "llama", "qwen2moe", "deepseek")


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeShape:
    """``skew``: the router's bias against its less liked experts, as a power of their rank; 0 is none."""

    architecture: str = "qwen3moe"
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 4
    n_kv_head: int = 2
    n_expert: int = 12
    n_used: int = 3
    n_ff: int = 64
    skew: float = 0.5
    mixing: float = 2.0  # how much a layer adds to the residual stream; much of it makes all tokens alike
    quantised: bool = False  # experts as Q8_0 and Q4_0 instead of F16

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def shared(self) -> bool:
        return self.architecture in ("qwen2moe", "deepseek")

    @property
    def n_dense(self) -> int:
        return 1 if self.architecture == "deepseek" else 0


def write_moe_model(path: Path, shape: MoeShape) -> Path:
    tokenizer, n_vocab = _tokenizer_keys(keep_template=True)
    writer = gguf.GGUFWriter(path, shape.architecture)
    _add_shape(writer, shape)
    for name, data in _Weights(shape, n_vocab).all().items():
        _add(writer, name, data, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.write_bytes(_with_keys(path.read_bytes(), tokenizer))
    return path


def _add(writer: gguf.GGUFWriter, name: str, data: Matrix, shape: MoeShape) -> None:
    if data.ndim == 1 or "gate_inp" in name:
        writer.add_tensor(name, data)
    elif shape.quantised and "_exps" in name:
        kind = gguf.GGMLQuantizationType.Q8_0 if "down" in name else gguf.GGMLQuantizationType.Q4_0
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, data.astype(np.float16))


def _add_shape(writer: gguf.GGUFWriter, shape: MoeShape) -> None:
    writer.add_name(f"moe {shape.architecture}")
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_kv_head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.n_used)
    if shape.architecture != "llama":
        writer.add_expert_feed_forward_length(shape.n_ff)
    if shape.architecture == "deepseek":
        writer.add_leading_dense_block_count(shape.n_dense)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_scale(1.0)
    if shape.architecture == "qwen2moe":
        writer.add_expert_shared_feed_forward_length(shape.n_ff)


class _Weights:
    def __init__(self, shape: MoeShape, n_vocab: int) -> None:
        self._shape, self._n_vocab = shape, n_vocab
        self._rng = np.random.default_rng(21)
        self._liked = np.sign(self._rng.standard_normal(shape.n_embd))  # a direction that all tokens share

    def all(self) -> dict[str, Matrix]:
        n_embd = self._shape.n_embd
        embedding = self._matrix(self._n_vocab, n_embd, np.sqrt(n_embd)) + 0.9 * self._liked
        tensors: dict[str, Any] = {
            "token_embd.weight": embedding.astype(np.float32),
            "output_norm.weight": np.ones(n_embd, dtype=np.float32),
            "output.weight": self._matrix(self._n_vocab, n_embd, 4.0),
        }
        for layer in range(self._shape.n_layer):
            block = f"blk.{layer}."
            parts = self._attention() | (self._dense() if layer < self._shape.n_dense else self._experts())
            tensors |= {block + name: data for name, data in parts.items()}
        return tensors

    def _matrix(self, rows: int, columns: int, scale: float = 2.0) -> Matrix:
        values: Matrix = (self._rng.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32)
        return values

    def _many(self, rows: int, columns: int) -> Matrix:
        size = (self._shape.n_expert, rows, columns)
        values: Matrix = (self._rng.standard_normal(size) * 2.0 / np.sqrt(columns)).astype(np.float32)
        return values

    def _attention(self) -> dict[str, Matrix]:
        shape = self._shape
        kv, ones = shape.head_dim * shape.n_kv_head, np.ones(shape.n_embd, dtype=np.float32)
        parts = {
            "attn_norm.weight": ones,
            "ffn_norm.weight": ones,
            "attn_q.weight": self._matrix(shape.n_embd, shape.n_embd),
            "attn_k.weight": self._matrix(kv, shape.n_embd),
            "attn_v.weight": self._matrix(kv, shape.n_embd),
            "attn_output.weight": self._matrix(shape.n_embd, shape.n_embd, shape.mixing),
        }
        if shape.architecture == "qwen3moe":
            one = np.ones(shape.head_dim, dtype=np.float32)
            parts |= {"attn_q_norm.weight": one, "attn_k_norm.weight": one}
        return parts

    def _dense(self, suffix: str = "") -> dict[str, Matrix]:
        shape = self._shape
        return {
            f"ffn_gate{suffix}.weight": self._matrix(shape.n_ff, shape.n_embd),
            f"ffn_up{suffix}.weight": self._matrix(shape.n_ff, shape.n_embd),
            f"ffn_down{suffix}.weight": self._matrix(shape.n_embd, shape.n_ff),
        }

    def _experts(self) -> dict[str, Matrix]:
        shape = self._shape
        rank = self._rng.permutation(shape.n_expert)
        bias = -shape.skew * np.log(1.0 + rank)
        router = self._matrix(shape.n_expert, shape.n_embd, 1.4) + bias[:, None] * self._liked / shape.n_embd
        parts = {
            "ffn_gate_inp.weight": router.astype(np.float32),
            "ffn_gate_exps.weight": self._many(shape.n_ff, shape.n_embd),
            "ffn_up_exps.weight": self._many(shape.n_ff, shape.n_embd),
            "ffn_down_exps.weight": self._many(shape.n_embd, shape.n_ff) * np.float32(shape.mixing / 2),
        }
        if shape.shared:
            parts |= self._dense("_shexp")
        if shape.architecture == "qwen2moe":
            parts["ffn_gate_inp_shexp.weight"] = self._matrix(1, shape.n_embd)[0]
        return parts
