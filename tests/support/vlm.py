"""Small vision-language models with random weights, as GGUF files: real graphs of llama.cpp and its libmtmd.

``qwen25vl``: a Qwen2.5-VL tower (window attention, M-RoPE, patches merged by four) and a qwen2vl language model.
``gemma3``: a SigLIP tower with Gemma 3's projector (fixed image size, image tokens attend to each other) and a llama.
``idefics3``: a SigLIP tower with Idefics 3's projector (an image becomes a grid of slices) and a llama.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt

from tests.integration.engine import tiny_model

Tensors = dict[str, npt.NDArray[Any]]
FAMILIES: Final = ("qwen25vl", "gemma3", "idefics3")


class Files(NamedTuple):
    model: Path
    mmproj: Path


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a vision tower and its language model. ``image``: the side that warm-up and fixed-size models use."""

    family: str
    n_layer: int = 2
    n_embd: int = 64
    n_head: int = 2
    n_ff: int = 128
    patch: int = 28
    image: int = 224
    merge: int = 2
    text_embd: int = tiny_model.N_EMBD
    text_layers: int = tiny_model.N_LAYER
    text_ff: int = tiny_model.N_FF


SHAPES: Final = {
    "qwen25vl": Shape("qwen25vl", n_layer=3),
    "gemma3": Shape("gemma3", patch=14, image=224, merge=4),
    "idefics3": Shape("idefics3", patch=16, image=128, merge=4),
}
_PROJECTORS: Final = {"qwen25vl": "qwen2.5vl_merger", "gemma3": "gemma3", "idefics3": "idefics3"}


def write_vlm(folder: Path, family: str, **changes: Any) -> Files:
    """Writes ``model.gguf`` and ``mmproj.gguf``; ``changes`` are fields of Shape."""
    shape = replace(SHAPES[family], **changes)
    folder.mkdir(parents=True, exist_ok=True)
    return Files(_write_text(folder / "model.gguf", shape), write_mmproj(folder / "mmproj.gguf", shape))


def frame(width: int, height: int, seed: int = 0) -> bytes:
    """RGB8 pixels of a picture with edges, gradients and some noise; the same for the same arguments."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    rng = np.random.default_rng(seed)
    waves = [np.sin(x * a + y * b + c) for a, b, c in rng.uniform(0.005, 0.05, (3, 3))]
    image = np.stack(waves, axis=-1) * 100 + 128 + rng.uniform(-20, 20, (height, width, 1))
    image[height // 4 : height // 2, width // 4 : width // 2] = rng.uniform(0, 255, 3)
    return image.clip(0, 255).astype(np.uint8).tobytes()


# -- the language model


def _write_text(path: Path, shape: Shape) -> Path:
    """llama, or qwen2vl with M-RoPE; SmolLM2's tokenizer."""
    tokenizer, n_vocab = tiny_model._tokenizer_keys(keep_template=True)
    if shape.family == "idefics3":
        tokenizer = [_renamed(key) for key in tokenizer]
    arch = "qwen2vl" if shape.family == "qwen25vl" else "llama"
    writer = gguf.GGUFWriter(path, arch)
    _text_keys(writer, shape, mrope=arch == "qwen2vl")
    for name, data in _text_tensors(n_vocab, shape):
        writer.add_tensor(name, data)
    _finish(writer)
    path.write_bytes(tiny_model._with_keys(path.read_bytes(), tokenizer))
    return path


# Idefics 3 stands these around slices; SmolLM2's tokenizer has the others, and no use for them.
_SLICE_TOKENS: Final = {b"<issue_comment>": b"<fake_token_around_image>", b"<issue_closed>": b"<global-img>"}


def _renamed(key: bytes) -> bytes:
    """A key of GGUF with some of its strings replaced, each of which stands behind its length."""
    for old, new in _SLICE_TOKENS.items():
        key = key.replace(len(old).to_bytes(8, "little") + old, len(new).to_bytes(8, "little") + new)
    return key


def _text_keys(writer: gguf.GGUFWriter, shape: Shape, *, mrope: bool) -> None:
    head = shape.text_embd // tiny_model.N_HEAD
    writer.add_name("tiny vlm")
    writer.add_context_length(16384)
    writer.add_embedding_length(shape.text_embd)
    writer.add_block_count(shape.text_layers)
    writer.add_feed_forward_length(shape.text_ff)
    writer.add_head_count(tiny_model.N_HEAD)
    writer.add_head_count_kv(tiny_model.N_KV_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head)
    if mrope:
        writer.add_rope_dimension_sections([head // 8, head // 2 - head // 8 - head // 8 * 1, head // 8, 0])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def _text_tensors(n_vocab: int, shape: Shape) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    make = _Random(20)
    wide, ff = shape.text_embd, shape.text_ff
    kv = wide // tiny_model.N_HEAD * tiny_model.N_KV_HEAD
    ones = np.ones(wide, dtype=np.float32)
    yield "token_embd.weight", make.matrix(n_vocab, wide, 8.0)
    yield "output_norm.weight", ones
    yield "output.weight", make.matrix(n_vocab, wide, 4.0)
    for layer in range(shape.text_layers):
        block = f"blk.{layer}."
        yield f"{block}attn_norm.weight", ones
        yield f"{block}ffn_norm.weight", ones
        for name, rows, columns in (
            ("attn_q", wide, wide),
            ("attn_k", kv, wide),
            ("attn_v", kv, wide),
            ("attn_output", wide, wide),
            ("ffn_gate", ff, wide),
            ("ffn_up", ff, wide),
            ("ffn_down", wide, ff),
        ):
            yield f"{block}{name}.weight", make.matrix(rows, columns, 2.0)
        if shape.family == "qwen25vl":
            for name, size in (("attn_q", wide), ("attn_k", kv), ("attn_v", kv)):
                yield f"{block}{name}.bias", make.vector(size)


# -- the vision tower


def write_mmproj(path: Path, shape: Shape) -> Path:
    writer = gguf.GGUFWriter(path, "clip")
    _vision_keys(writer, shape)
    for name, data in _vision_tensors(shape):
        writer.add_tensor(name, data)
    _finish(writer)
    return path


def _vision_keys(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"tiny {shape.family}")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", _PROJECTORS[shape.family])
    writer.add_bool("clip.use_silu" if shape.family == "qwen25vl" else "clip.use_gelu", True)
    for key, value in (
        ("embedding_length", shape.n_embd),
        ("feed_forward_length", shape.n_ff),
        ("block_count", shape.n_layer),
        ("projection_dim", shape.text_embd),
        ("attention.head_count", shape.n_head),
        ("image_size", shape.image),
        ("patch_size", shape.patch),
    ):
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    if shape.family == "qwen25vl":
        writer.add_uint32("clip.vision.n_wa_pattern", shape.n_layer)  # full attention in the last layer only
    else:
        writer.add_uint32("clip.vision.projector.scale_factor", shape.merge)
    if shape.family == "idefics3":
        writer.add_uint32("clip.vision.preproc_image_size", 4 * shape.image)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def _vision_tensors(shape: Shape) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    make = _Random(30)
    yield "v.patch_embd.weight", make.kernel(shape)
    if shape.family == "qwen25vl":
        yield "v.patch_embd.weight.1", make.kernel(shape)
        yield from _qwen_layers(shape, make)
        yield "v.post_ln.weight", np.ones(shape.n_embd, dtype=np.float32)
        wide = 4 * shape.n_embd
        yield "mm.0.weight", make.matrix(wide, wide)
        yield "mm.0.bias", make.vector(wide)
        yield "mm.2.weight", make.matrix(shape.text_embd, wide, 8.0)
        yield "mm.2.bias", make.vector(shape.text_embd)
        return
    yield "v.patch_embd.bias", make.vector(shape.n_embd)
    yield "v.position_embd.weight", make.matrix((shape.image // shape.patch) ** 2, shape.n_embd).astype(np.float32)
    yield from _siglip_layers(shape, make)
    yield "v.post_ln.weight", np.ones(shape.n_embd, dtype=np.float32)
    yield "v.post_ln.bias", make.vector(shape.n_embd)
    if shape.family == "gemma3":
        yield "mm.input_projection.weight", make.matrix(shape.n_embd, shape.text_embd, 8.0)
        yield "mm.soft_emb_norm.weight", np.ones(shape.n_embd, dtype=np.float32)
    else:
        yield "mm.model.fc.weight", make.matrix(shape.text_embd, shape.n_embd * shape.merge**2, 8.0)


def _qwen_layers(shape: Shape, make: _Random) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    wide, ff = shape.n_embd, shape.n_ff
    for layer in range(shape.n_layer):
        block = f"v.blk.{layer}."
        for name in ("ln1", "ln2"):
            yield f"{block}{name}.weight", np.ones(wide, dtype=np.float32)
        matrices = [(name, wide, wide) for name in ("attn_q", "attn_k", "attn_v", "attn_out")]
        matrices += [("ffn_gate", ff, wide), ("ffn_up", ff, wide), ("ffn_down", wide, ff)]
        yield from _linear(block, matrices, make)


def _siglip_layers(shape: Shape, make: _Random) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    wide, ff = shape.n_embd, shape.n_ff
    for layer in range(shape.n_layer):
        block = f"v.blk.{layer}."
        for name in ("ln1", "ln2"):
            yield f"{block}{name}.weight", np.ones(wide, dtype=np.float32)
            yield f"{block}{name}.bias", make.vector(wide)
        matrices = [(name, wide, wide) for name in ("attn_q", "attn_k", "attn_v", "attn_out")]
        yield from _linear(block, [*matrices, ("ffn_up", ff, wide), ("ffn_down", wide, ff)], make)


def _linear(block: str, matrices: list[tuple[str, int, int]], make: _Random) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for name, rows, columns in matrices:
        yield f"{block}{name}.weight", make.matrix(rows, columns, 1.5)
        yield f"{block}{name}.bias", make.vector(rows)


# -- helpers


class _Random:
    """Weights that keep activations of order one."""

    def __init__(self, seed: int) -> None:
        self._rng: Final = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int, scale: float = 1.0) -> npt.NDArray[np.float16]:
        values = self._rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(scale / np.sqrt(columns))
        return values.astype(np.float16)

    def vector(self, size: int) -> npt.NDArray[np.float32]:
        return (self._rng.standard_normal(size) * 0.1).astype(np.float32)

    def kernel(self, shape: Shape) -> npt.NDArray[np.float16]:
        """Of a convolution over patches: [n_embd, 3, patch, patch]."""
        size = 3 * shape.patch * shape.patch
        return self.matrix(shape.n_embd, size, 2.0).reshape(shape.n_embd, 3, shape.patch, shape.patch)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
