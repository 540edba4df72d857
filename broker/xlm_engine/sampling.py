"""Choosing the next token.

Order, the same as llama.cpp's own: repeat penalty, grammar, top-k, top-p,
min-p, temperature, draw. At temperature 0: repeat penalty, grammar, largest
logit (the first of equals).

The draw is counter based: token i of an answer uses the random numbers of
(seed, i) and nothing else. So an answer that goes on in a new process needs no
generator state, and the answer is the same.

Where top-k comes first, only a few tokens that it chooses among are given to
llama.cpp: of a large vocabulary all others would be copied and looked at for nothing.

The grammar is asked about the chosen token first; only if it refuses is the
whole vocabulary filtered and the choice made again (llama.cpp's own shortcut).
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
from collections.abc import Sequence
from typing import Any, Final

import llama_cpp.llama_cpp as C
import numpy as np
import numpy.typing as npt

from xlm.errors import GenerationError
from xlm.protocol.messages import Sampling
from xlm_engine import gbnf, schema

Logits = npt.NDArray[np.float32]

_TOKEN_DATA: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
MAX_REPEAT_LAST_N: Final = 65536
MIN_REPEAT_PENALTY: Final = 0.01  # logits are divided by it: below, they overflow
_LIKELY_WIDTH: Final = 1024
MIN_TEMPERATURE: Final = 1e-6  # below, likewise; the choice is the largest logit's anyway


def token_seed(seed: int, index: int) -> int:
    """The 32-bit seed of token ``index``: well mixed, so neighbours are unrelated."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def resolve_grammar(sampling: Sampling) -> str:
    """The GBNF to use, or empty. GenerationError if it is invalid or given twice."""
    if sampling.grammar and sampling.json_schema:
        raise GenerationError("give a grammar or a JSON schema, not both", code="sampling_invalid")
    if sampling.json_schema:
        return schema.to_gbnf(sampling.json_schema)
    if sampling.grammar:
        gbnf.check(sampling.grammar)
    return sampling.grammar


def effective_temperature(sampling: Sampling) -> float:
    """0, greedy, also for a temperature too small to divide by."""
    return sampling.temperature if sampling.temperature >= MIN_TEMPERATURE else 0.0


def check_penalty(sampling: Sampling) -> None:
    """GenerationError ``sampling_invalid`` for a repeat penalty that logits cannot be divided by."""
    if not sampling.repeat_penalty >= MIN_REPEAT_PENALTY:
        raise GenerationError(
            f"repeat_penalty must be at least {MIN_REPEAT_PENALTY}, not {sampling.repeat_penalty}",
            code="sampling_invalid",
        )


def likely(logits: Logits, k: int) -> npt.NDArray[np.intp] | None:
    """Ids, ascending, of some tokens among which are those of the ``k`` largest logits; None: about all may be."""
    n_rows = len(logits) // _LIKELY_WIDTH
    if k > _LIKELY_WIDTH // 4 or n_rows < 8:
        return None
    largest = logits[: n_rows * _LIKELY_WIDTH].reshape(n_rows, _LIKELY_WIDTH).max(axis=0)
    found = np.flatnonzero(logits >= np.partition(largest, -k)[-k])  # k are as large, in columns of their own
    return found if k <= len(found) <= len(logits) // 8 else None


class Candidates:
    """The vocabulary as llama.cpp's samplers want it; one buffer, filled again for each token."""

    def __init__(self, n_vocab: int) -> None:
        self._ids: Final = np.arange(n_vocab, dtype=np.int32)
        self._data: Final = np.empty(n_vocab, dtype=_TOKEN_DATA)
        self._pointer: Final = self._data.ctypes.data_as(C.llama_token_data_p)
        self._address: Final = self._data.ctypes.data
        self.array: Final[Any] = C.llama_token_data_array()

    def fill(self, logits: Logits) -> None:
        self._data["id"] = self._ids
        self._data["logit"] = logits
        self._data["p"] = 0.0
        self._point(len(self._ids))

    def fill_some(self, ids: npt.NDArray[np.intp], logits: Logits) -> None:
        some = self._data[: len(ids)]
        some["id"], some["logit"], some["p"] = ids, logits[ids], 0.0
        self._point(len(ids))

    def fill_one(self, token: int) -> None:
        """Only that token, to ask the grammar about it."""
        self._data[0] = (token, 1.0, 0.0)
        self._point(1)

    def _point(self, size: int) -> None:
        self.array.data = self._pointer
        self.array.size, self.array.selected, self.array.sorted = size, -1, False

    def reference(self) -> Any:
        return ctypes.byref(self.array)

    @property
    def possible(self) -> bool:
        """Whether any candidate is left; a full grammar mask leaves only -inf."""
        size = self.array.size
        if size == 0:
            return False
        if math.isfinite(self.array.data[0].logit):  # of one left the rest need not be asked
            return True
        return bool(np.isfinite(self._view()["logit"]).any())

    def best(self) -> int:
        view = self._view()
        return int(view["id"][int(np.argmax(view["logit"]))])

    def selected(self) -> int:
        return int(self.array.data[self.array.selected].id)

    def _view(self) -> npt.NDArray[Any]:
        # samplers may have moved the data: read where they point to
        address = ctypes.addressof(self.array.data.contents)
        if address == self._address:
            return self._data[: self.array.size]
        buffer = (ctypes.c_char * (self.array.size * _TOKEN_DATA.itemsize)).from_address(address)
        return np.ndarray((self.array.size,), dtype=_TOKEN_DATA, buffer=buffer)


class Sampler:
    """The choice of one answer's tokens. ``close`` frees the native samplers. One thread."""

    def __init__(self, vocab: Any, candidates: Candidates, sampling: Sampling) -> None:
        self._vocab: Final = vocab
        self._candidates: Final = candidates
        self._temperature: Final = effective_temperature(sampling)
        self._top_k: Final = sampling.top_k
        self._seed: Final = sampling.seed if sampling.seed is not None else int.from_bytes(os.urandom(4), "little")
        self._index = 0
        self._owned: list[Any] = []
        check_penalty(sampling)
        grammar = resolve_grammar(sampling)
        try:
            self._penalties: Final = self._make_penalties(sampling)
            self._grammar: Final = self._make_grammar(grammar)
            self._shape: Final = self._make_shape(sampling)
        except BaseException:
            self.close()
            raise

    # -- construction

    def _own(self, sampler: Any, what: str) -> Any:
        if not sampler:
            raise GenerationError(f"{what} was refused by llama.cpp", code="sampling_invalid")
        self._owned.append(sampler)
        return sampler

    def _make_penalties(self, sampling: Sampling) -> Any:
        if sampling.repeat_penalty == 1.0 or sampling.repeat_last_n == 0:
            return None
        last_n = min(sampling.repeat_last_n, MAX_REPEAT_LAST_N)
        n_vocab = C.llama_vocab_n_tokens(self._vocab)
        native = C.llama_sampler_init_penalties(n_vocab, last_n, sampling.repeat_penalty, 0.0, 0.0)
        return self._own(native, "repeat_penalty")

    def _make_grammar(self, text: str) -> Any:
        if not text:
            return None
        native = C.llama_sampler_init_grammar(self._vocab, text.encode(), b"root")
        if not native:
            raise GenerationError("llama.cpp cannot use this grammar", code="grammar_invalid")
        return self._own(native, "grammar")

    def _make_shape(self, sampling: Sampling) -> Any:
        """A chain, so that one call applies all of it."""
        if self._temperature == 0.0:
            return None
        chain = self._own(C.llama_sampler_chain_init(C.llama_sampler_chain_default_params()), "sampling")
        parts = [C.llama_sampler_init_top_k(sampling.top_k)] if sampling.top_k else []
        if sampling.top_p < 1.0:
            parts.append(C.llama_sampler_init_top_p(sampling.top_p, 1))
        if sampling.min_p > 0.0:
            parts.append(C.llama_sampler_init_min_p(sampling.min_p, 1))
        parts.append(C.llama_sampler_init_temp(self._temperature))
        for part in parts:
            C.llama_sampler_chain_add(chain, part)  # which frees it
        return chain

    def close(self) -> None:
        """Frees the native samplers. Safe to call twice."""
        for native in self._owned:
            C.llama_sampler_free(native)
        self._owned.clear()

    # -- use

    def prime(self, tokens: Sequence[int]) -> None:
        """Tells the repeat penalty of the conversation so far."""
        if self._penalties is not None:
            for token in tokens[-MAX_REPEAT_LAST_N:]:
                C.llama_sampler_accept(self._penalties, token)

    def accept(self, token: int) -> None:
        """Takes a token as generated: one just chosen, or one that an earlier process chose.

        GenerationError ``grammar_invalid`` if the grammar does not allow it here.
        """
        if self._grammar is not None:
            if not self._allows(token):
                raise GenerationError("the answer left its grammar", code="grammar_invalid")
            C.llama_sampler_accept(self._grammar, token)
        if self._penalties is not None:
            C.llama_sampler_accept(self._penalties, token)
        self._index += 1

    def choose(self, logits: Logits) -> int:
        """The next token; not yet accepted. GenerationError ``grammar_invalid`` if no token fits the grammar."""
        if self._temperature == 0.0 and self._penalties is None:
            token = int(logits.argmax())
        else:
            token = self._choose(logits, masked=False)
        if self._grammar is None or self._allows(token):
            return token
        return self._choose(logits, masked=True)

    def _choose(self, logits: Logits, *, masked: bool) -> int:
        candidates = self._candidates
        first = self._top_k and self._temperature > 0.0 and self._penalties is None and not masked
        some = likely(logits, self._top_k) if first else None
        candidates.fill(logits) if some is None else candidates.fill_some(some, logits)
        if self._penalties is not None:
            C.llama_sampler_apply(self._penalties, candidates.reference())
        if masked:
            C.llama_sampler_apply(self._grammar, candidates.reference())
        if not candidates.possible:
            raise GenerationError("no token of the model fits the grammar here", code="grammar_invalid")
        return candidates.best() if self._temperature == 0.0 else self._draw()

    def _draw(self) -> int:
        C.llama_sampler_apply(self._shape, self._candidates.reference())
        draw = C.llama_sampler_init_dist(token_seed(self._seed, self._index))
        try:
            C.llama_sampler_apply(draw, self._candidates.reference())
        finally:
            C.llama_sampler_free(draw)
        return self._candidates.selected()

    def _allows(self, token: int) -> bool:
        self._candidates.fill_one(token)
        C.llama_sampler_apply(self._grammar, self._candidates.reference())
        return self._candidates.possible
