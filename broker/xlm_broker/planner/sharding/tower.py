"""A vision tower in the terms of the time model: its sub-layers, and how many patches an image is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any, Final

from xlm.errors import ShapeError
from xlm.protocol.link import Kind, Projector

from .quant import DEFAULT_WEIGHTS
from .tensors import FileTensor, products
from .work import Attention, MatMul, SmallOp, small_ops

# Families whose tower takes an image at (about) its own size; all others scale it to one size, or cut it into slices.
NATIVE_SIZE: Final = frozenset(
    {"qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "pixtral", "kimivl", "glm4v", "mimovl", "dots_ocr"}
)
SLICED: Final = frozenset({"idefics3", "minicpmv", "internvl", "llama4", "lfm2", "granite4_vision", "step3vl"})
WINDOW_KEYS: Final = 256  # keys that a tile of queries meets where attention is in windows
MAX_TOKENS: Final = 4096  # of one image, where the family has no other limit
SHAPE_KEYS: Final = (
    "embedding_length", "feed_forward_length", "block_count", "attention.head_count", "image_size", "patch_size",
    "n_wa_pattern", "spatial_merge_size", "projector.scale_factor", "preproc_image_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TowerUnit:
    """One sub-layer. ``share``: patches that meet its products, of all."""

    index: int
    layer: int
    kind: Kind
    device_bytes: int
    products: tuple[MatMul, ...]
    share: float = 1.0
    windowed: bool = False


@dataclass(frozen=True)
class Tower:
    """``n_sublayers``: entries of a placement, those of the language model before it included."""

    name: str
    kind: str
    units: tuple[TowerUnit, ...]
    small_indices: tuple[int, ...]
    small_bytes: int
    n_sublayers: int
    shape: Mapping[str, int]
    max_tokens: int

    @property
    def width(self) -> int:
        return self.shape["embedding_length"]

    @property
    def hidden(self) -> int:
        return self.shape.get("feed_forward_length") or 4 * self.width

    @property
    def patch(self) -> int:
        return self.shape["patch_size"]

    @property
    def merge(self) -> int:
        """Patches in a row that become one token."""
        return merge_of(self.kind, self.shape)

    @property
    def weight_bytes(self) -> int:
        return self.small_bytes + sum(unit.device_bytes for unit in self.units)

    @property
    def attention(self) -> Attention:
        heads = max(1, self.shape.get("attention.head_count", 1))
        return Attention("F16", max(1, self.width // heads), heads, heads, 4.0 * self.width)

    def small_ops(self, kind: Kind) -> tuple[SmallOp, ...]:
        return small_ops(kind, self.width, n_ff=self.hidden) if kind in ("attention", "ffn") else ()

    def patches(self, width: int, height: int) -> tuple[int, int]:
        """(patches of one run of the tower, runs) for an image of so many pixels; an estimate within some percent."""
        side = max(1, self.shape["image_size"] // self.patch)
        if self.kind in NATIVE_SIZE:
            return self._at_its_size(width, height), 1
        large = self.shape.get("preproc_image_size", 0)
        if self.kind == "idefics3" and large:
            scale = large / max(width, height)
            grid = [ceil(pixels * scale / self.shape["image_size"]) for pixels in (width, height)]
            return side * side, grid[0] * grid[1] + 1
        return side * side, 1

    def _at_its_size(self, width: int, height: int) -> int:
        unit = self.patch * self.merge
        across, down = (max(1, int(pixels / unit + 0.5)) for pixels in (width, height))
        if across * down > self.max_tokens:
            scale = sqrt(self.max_tokens / (width * height / unit / unit))
            across, down = (max(1, int(pixels * scale / unit)) for pixels in (width, height))
        return across * down * self.merge**2

    def tokens(self, patches: int) -> int:
        return max(1, patches // self.merge**2)


def merge_of(kind: str, shape: Mapping[str, int]) -> int:
    given = shape.get("projector.scale_factor") or shape.get("spatial_merge_size")
    return max(1, given or (2 if kind in NATIVE_SIZE else 1))


def tower_from_facts(projector: Projector, n_language: int) -> Tower | None:
    """Of a loaded projector; None if the engine did not say enough. ``n_language``: the language model's sub-layers."""
    subs, shape = projector.sublayers, projector.hparams
    if not subs or min(shape.get("embedding_length", 0), shape.get("patch_size", 0), shape.get("image_size", 0)) < 1:
        return None
    width, merge = shape["embedding_length"], merge_of(projector.kind, shape)
    units: list[TowerUnit] = []
    for sub in sorted((s for s in subs if s.kind not in ("small", "lookup")), key=lambda s: s.index):
        rows = max(1, round(sub.device_bytes / DEFAULT_WEIGHTS.bytes_per_weight / width))
        product = MatMul(DEFAULT_WEIGHTS.name, width, rows, float(sub.device_bytes))
        late = sub.kind == "projector" and any(u.kind == "projector" for u in units)
        units.append(_unit(sub.index, sub.layer, sub.kind, sub.device_bytes, (product,), shape, merge, late=late))
    small = [sub for sub in subs if sub.kind == "small"]
    return Tower(
        name=projector.name, kind=projector.kind, units=tuple(units),
        small_indices=tuple(sub.index for sub in small), small_bytes=sum(sub.device_bytes for sub in small),
        n_sublayers=max(n_language, 1 + max(sub.index for sub in subs)), shape=dict(shape),
        max_tokens=projector.max_image_tokens or MAX_TOKENS,
    )  # fmt: skip


def _unit(
    index: int, layer: int, kind: Kind, size: int, found: tuple[MatMul, ...], shape: Mapping[str, int], merge: int,
    *, late: bool,
) -> TowerUnit:  # fmt: skip
    pattern = shape.get("n_wa_pattern", 0)
    windowed = kind == "attention" and pattern > 0 and (layer + 1) % pattern != 0
    return TowerUnit(index, layer, kind, size, found, 1.0 / merge**2 if late else 1.0, windowed)


def tower_from_header(name: str, header: Mapping[str, Any]) -> Tower:
    """From a projector file's header (gguf_describe). ShapeError shape_invalid for one that says too little."""
    metadata = header["metadata"]
    kind = str(metadata.get("clip.projector_type") or metadata.get("clip.vision.projector_type") or "")
    shape = {key: int(metadata[f"clip.vision.{key}"]) for key in SHAPE_KEYS if _number(metadata, key)}
    if metadata.get("general.architecture") != "clip" or not kind or not {
        "embedding_length", "patch_size", "image_size"
    } <= set(shape):  # fmt: skip
        raise ShapeError(f"{name} is no projector of a vision model", code="shape_invalid")
    units, small = _units(header["tensors"], shape, merge_of(kind, shape))
    return Tower(name, kind, tuple(units), (), small, len(units), shape, MAX_TOKENS)


def _number(metadata: Mapping[str, Any], key: str) -> bool:
    return isinstance(metadata.get(f"clip.vision.{key}"), int | float)


def _units(raw: Sequence[Sequence[Any]], shape: Mapping[str, int], merge: int) -> tuple[list[TowerUnit], int]:
    groups: dict[tuple[int, Kind], list[FileTensor]] = {}
    small = 0
    for entry in raw:
        tensor = FileTensor.of(*entry)
        place = _place(tensor)
        if place is None:
            small += tensor.n_bytes
        else:
            groups.setdefault(place, []).append(tensor)
    units = [
        _unit(i, layer, kind, sum(t.n_bytes for t in groups[layer, kind]), products(groups[layer, kind]), shape, merge,
              late=layer > 0 and kind == "projector")
        for i, (layer, kind) in enumerate(sorted(groups, key=lambda key: (key[0], key[1])))
    ]  # fmt: skip
    return units, small


def _place(tensor: FileTensor) -> tuple[int, Kind] | None:
    """(layer, kind) in the order of execution; None: small."""
    name = tensor.name
    if tensor.n_elements <= tensor.n_columns or "norm" in name or "_ln" in name or name.endswith(".bias"):
        return None
    if name.startswith("v.blk."):
        layer, rest = name[len("v.blk.") :].split(".", 1)
        return int(layer), "attention" if rest.startswith("attn") else "ffn"
    return (-1, "projector") if name.startswith("v.") else (1 << 20, "projector")
