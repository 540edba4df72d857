"""Experts in the status: one page of figures out of one entry a layer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from xlm.protocol import link

# Why experts are not handled one by one, for people; see xlm_expert_mode in xlm_device.h.
_WHOLE = {
    "whole_graph": "the graph of this model is of a form that is only handled as a whole",
    "whole_window": "there is no memory for slots or a window of experts",
}


def experts_summary(layers: Sequence[link.ExpertStats]) -> dict[str, Any] | None:
    """None for a model without experts. ``hit_rate``: used experts that were on the device, None before the first."""
    if not layers:
        return None
    asked = sum(layer.n_hits + layer.n_misses for layer in layers)
    names = ("n_slots", "n_slots_filled", "slot_bytes", "bytes_uploaded", "bytes_saved", "n_hits", "n_misses", "n_cpu")
    reasons = sorted({_WHOLE[layer.mode] for layer in layers if layer.mode in _WHOLE})
    return {
        "layers": len(layers),
        "of_a_layer": layers[0].n_experts,
        "modes": dict(Counter(layer.mode for layer in layers)),
        **{name: sum(getattr(layer, name) for layer in layers) for name in names},
        "hit_rate": sum(layer.n_hits for layer in layers) / asked if asked else None,
        "whole_because": "; ".join(reasons),
    }
