"""Routing and cache of experts, read from the device now and then: a page of figures a layer is no matter of 4 Hz."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from xlm.protocol import link
from xlm_native import Device

PERIOD_S: Final = 2.0


class ExpertFigures:
    """``read`` may be called from any thread. Says nothing for models without experts."""

    def __init__(self, device: Device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device: Final = device
        self._clock: Final = clock
        self._layers: Final = [sublayer for sublayer in device.sublayers() if sublayer.n_experts > 1]
        self._next_s = 0.0

    def read(self) -> list[link.ExpertStats]:
        """One entry a layer; empty when it is not time yet, or when there is nothing to tell."""
        now_s = self._clock()
        if not self._layers or now_s < self._next_s:
            return []
        self._next_s = now_s + PERIOD_S
        return [self._device.experts(layer)[0] for layer in self._layers]
