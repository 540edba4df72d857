"""What a GGUF file's model computes with: types and shapes of its matrices, its heads, its context."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from xlm.errors import ModelError
from xlm_engine import gguf_check
from xlm_engine.gguf_header import Header
from xlm_engine.profile.ggml import ggml
from xlm_engine.profile.grid import ModelNeeds
from xlm_engine.profile.points import Shape

OUTPUT: Final = "output.weight"
EMBEDDING: Final = "token_embd.weight"  # also the output matrix, where the file has none of its own


@dataclass(frozen=True, slots=True)
class Matrix:
    """A tensor of the file; ``ne`` as ggml counts, rows first."""

    name: str
    type: str
    ne: tuple[int, int, int, int]


def model_needs(path: str) -> ModelNeeds:
    """ModelError for a file that is no usable model."""
    header = gguf_check.check_file(path)
    return needs(header, list(matrices(path)))


def matrices(path: str) -> Iterator[Matrix]:
    """All tensors, read by ggml's own reader, without their data."""
    g = ggml()
    context = g.ffi.new("void **")
    file = g.lib.gguf_init_from_file(os.fsencode(path), {"no_alloc": True, "ctx": context})
    if not file:
        raise ModelError(f"ggml cannot read {path}", code="model_invalid")
    try:
        numbers = {number: name for name, number in g.types.items()}
        for index in range(g.lib.gguf_get_n_tensors(file)):
            name = g.lib.gguf_get_tensor_name(file, index)
            head = g.ffi.cast("tensor_head *", g.lib.ggml_get_tensor(context[0], name))
            yield Matrix(g.text(name), numbers.get(head.type, ""), tuple(head.ne))
    finally:
        g.lib.gguf_free(file)
        g.lib.ggml_free(context[0])


def needs(header: Header, tensors: list[Matrix]) -> ModelNeeds:
    """Pure. Distinct products and expert products, the largest share of the file first."""
    arch = header.text("general.architecture")
    tied = not any(tensor.name == OUTPUT for tensor in tensors)
    products: dict[tuple[str, int, int, bool], int] = {}
    experts: dict[tuple[str, Shape], int] = {}
    for tensor in tensors:
        k, n, n_expert, _ = tensor.ne
        if not tensor.name.endswith(".weight") or not tensor.type or n == 1:
            continue
        if n_expert > 1 and "_exps" in tensor.name:
            used = min(n_expert, max(1, header.number(f"{arch}.expert_used_count")))
            shape: Shape = (k, n, n_expert, used)
            experts[tensor.type, shape] = experts.get((tensor.type, shape), 0) + k * n * n_expert
        elif n_expert == 1 and (tensor.name.startswith("blk.") or tensor.name == (EMBEDDING if tied else OUTPUT)):
            product = (tensor.type, k, n, not tensor.name.startswith("blk."))
            products[product] = products.get(product, 0) + k * n
    return ModelNeeds(
        products=tuple(sorted(products, key=lambda name: -products[name])),
        experts=tuple(sorted(experts, key=lambda name: -experts[name])),
        heads=heads(header, arch),
        n_embd=header.number(f"{arch}.embedding_length"),
        n_ff=header.number(f"{arch}.feed_forward_length"),
        n_ctx=header.number(f"{arch}.context_length"),
    )


def heads(header: Header, arch: str) -> tuple[int, int, int] | None:
    """(head_dim, heads, KV heads); None where keys and values differ in size or nothing is said."""
    n_head = header.number(f"{arch}.attention.head_count")
    if not n_head:
        return None
    n_head_kv = header.number(f"{arch}.attention.head_count_kv") or n_head
    head_dim = header.number(f"{arch}.attention.key_length") or header.number(f"{arch}.embedding_length") // n_head
    value_dim = header.number(f"{arch}.attention.value_length") or head_dim
    return (head_dim, n_head, n_head_kv) if head_dim == value_dim and n_head % n_head_kv == 0 else None
