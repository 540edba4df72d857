"""Weight types: size of a weight, and which of them a kernel treats alike."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# ggml type name -> (weights in a block, bytes of a block); ggml-common.h of ggml 0.25.3
BLOCKS: Final[dict[str, tuple[int, int]]] = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_1": (32, 20),
    "Q5_0": (32, 22), "Q5_1": (32, 24), "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176),
    "Q6_K": (256, 210), "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ2_S": (256, 82), "IQ3_XXS": (256, 98),
    "IQ3_S": (256, 110), "IQ1_S": (256, 50), "IQ1_M": (256, 56), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136),
    "TQ1_0": (256, 54), "TQ2_0": (256, 66), "MXFP4": (32, 17),
}  # fmt: skip

DEFAULT_TYPE: Final = "Q4_0"  # times of an unknown type are those of this one, scaled by its bytes
_NAME: Final = re.compile(r"(IQ|TQ|Q|BF|F|MXFP)[0-9]+(_[0-9A-Z]+)?")


@dataclass(frozen=True, slots=True)
class WeightType:
    """``name`` is ggml's. ``bytes_per_weight`` of a mixed file is its mean, not the name's."""

    name: str
    bytes_per_weight: float
    known: bool = True


DEFAULT_WEIGHTS: Final = WeightType("F16", 2.0)


def weight_type(name: str) -> WeightType:
    """By ggml's or a file's name (``Q4_K_M`` is ``Q4_K``); an unknown one is the default's, marked so."""
    found = _NAME.search(name.upper())
    text = found.group(0) if found else ""
    for candidate in (text, re.sub(r"_(S|M|L|XS)$", "", text), text.replace("_K_", "_K")):
        if candidate in BLOCKS:
            block, size = BLOCKS[candidate]
            return WeightType(candidate, size / block)
    block, size = BLOCKS[DEFAULT_TYPE]
    return WeightType(DEFAULT_TYPE, size / block, known=False)


def family(name: str) -> str:
    """float, legacy (32-weight blocks), k (256-weight blocks) or lookup (codebooks): kernels of a family are alike."""
    if name in ("F32", "F16", "BF16"):
        return "float"
    if name.startswith(("IQ", "TQ", "MXFP")):
        return "lookup"
    return "k" if name.endswith("_K") else "legacy"
