"""Timing of single steps on a llama.cpp context, the same code for both sides.

A step is one ubatch: decode call to logits, as a program that samples would wait. Belongs to one thread.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import llama_cpp.llama_cpp as C
import numpy as np
import numpy.typing as npt

from xlm.errors import EngineError
from xlm_engine.bench.fill import filled_state

WARM_STEPS: Final = 1
LEAST_STEPS: Final = 2
REPEATED_BELOW_S: Final = 0.4  # a prompt's step that is shorter is timed twice
ENOUGH_S: Final = 0.6  # of one measurement, once there are the least steps


class Steps:
    """``begin`` announces a step's tokens, ``stop`` ends a running one from another thread (after ``limit_s``)."""

    def __init__(
        self, context: Any, n_ubatch: int, begin: Callable[[int], None] | None, stop: Callable[[], None] | None
    ) -> None:
        self._context: Final = context
        self._memory: Final[Any] = C.llama_get_memory(context)
        vocab = C.llama_model_get_vocab(C.llama_get_model(context))
        self.n_vocab: Final[int] = C.llama_vocab_n_tokens(vocab)
        self._batch: Final[Any] = C.llama_batch_init(n_ubatch, 0, 1)
        self._n_ubatch: Final = n_ubatch
        self._begin: Final = begin
        self._stop: Final = stop
        self._filled = 0
        self._state: tuple[int, npt.NDArray[np.uint8]] | None = None  # the last one made; many measurements want it
        self.fills = 0  # how often the cache was filled

    def close(self) -> None:
        C.llama_batch_free(self._batch)

    # -- the cache

    def fill(self, depth: int) -> None:
        """Empties the cache and makes ``depth`` positions used."""
        C.llama_memory_clear(self._memory, False)
        self._filled = 0
        self.fills += 1
        if depth <= 0:
            return
        if self._state is None or self._state[0] != depth:
            self._state = (depth, self._made_state(depth))
        state = self._state[1]
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if C.llama_state_seq_set_data(self._context, pointer, state.nbytes, 0) != state.nbytes:
            raise EngineError(f"a cache of {depth} positions could not be filled", code="internal")
        self._filled = depth

    def _made_state(self, depth: int) -> npt.NDArray[np.uint8]:
        self.step(0, [1])
        size = C.llama_state_seq_get_size(self._context, 0)
        one = (ctypes.c_uint8 * size)()
        C.llama_state_seq_get_data(self._context, one, size, 0)
        C.llama_memory_clear(self._memory, False)
        return filled_state(bytes(one), depth)

    def rewind(self, depth: int) -> None:
        """Positions ``depth`` and later are free again; fills where there are fewer."""
        if depth > self._filled:
            self.fill(depth)
        C.llama_memory_seq_rm(self._memory, 0, depth, -1)
        self._filled = min(self._filled, depth)

    # -- computing

    def step(self, position: int, tokens: list[int], announced: int = 0) -> int:
        """One step; the most likely next token. EngineError where llama_decode refuses."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index], batch.pos[index] = token, position + index
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, 0
            batch.logits[index] = index == len(tokens) - 1
        if self._begin is not None:
            self._begin(announced or len(tokens))
        status = C.llama_decode(self._context, batch)
        if status != 0:
            raise EngineError(f"llama_decode returned {status}", code="internal")
        logits = C.llama_get_logits_ith(self._context, len(tokens) - 1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (self.n_vocab,))))

    def _tokens(self, position: int, count: int) -> list[int]:
        """Any tokens, different from place to place."""
        return [(position + index) * 7919 % max(2, self.n_vocab - 1) + 1 for index in range(count)]

    def _timed(self, position: int, count: int) -> int:
        tokens = self._tokens(position, count)
        start = time.perf_counter_ns()
        self.step(position, tokens)
        return time.perf_counter_ns() - start

    def decode(self, depth: int, steps: int) -> list[int]:
        """ns of single-token steps at a depth, after one that is not counted."""
        times: list[int] = []
        for index in range(WARM_STEPS + steps):
            times.append(self._timed(depth + index, 1))
            if index + 1 >= WARM_STEPS + LEAST_STEPS and sum(times) > ENOUGH_S * 1e9:
                break
        self.rewind(depth)
        return times[WARM_STEPS:]

    def prefill(self, depth: int, count: int, limit_s: float, lead: int) -> int:
        """ns of one step of ``count`` tokens at a depth; 0 where it was stopped after ``limit_s``. Short ones twice,
        the faster counts: what disturbs a step can only make it longer.

        ``lead``: steps of the same size right before it, not counted, for a step in the middle of a prompt.
        """
        first = self.prompt_step(depth, count, limit_s, lead)
        if not 0 < first < REPEATED_BELOW_S * 1e9:
            return first
        return min(first, self.prompt_step(depth, count, limit_s, lead) or first)

    def prompt_step(self, depth: int, count: int, limit_s: float, lead: int) -> int:
        """``prefill``, once."""
        timer = threading.Timer(limit_s, self._stop) if self._stop is not None and limit_s > 0 else None
        if timer is not None:
            timer.start()
        try:
            for step in range(lead):
                self._timed(depth + step * count, count)
            took = self._timed(depth + lead * count, count)
        except EngineError:
            if timer is None or timer.is_alive():
                raise
            took = 0
        finally:
            if timer is not None:
                timer.cancel()
        self.rewind(depth)
        return took

    def greedy(self, prompt: list[int], count: int) -> tuple[list[int], list[int]]:
        """(tokens, ns of each step) after a prompt, from an empty cache."""
        self.fill(0)
        for start in range(0, len(prompt), self._n_ubatch):
            token = self.step(start, prompt[start : start + self._n_ubatch])
        found, times = [], []
        for index in range(count):
            found.append(token)
            start_ns = time.perf_counter_ns()
            token = self.step(len(prompt) + index, [token])
            times.append(time.perf_counter_ns() - start_ns)
        return found, times
