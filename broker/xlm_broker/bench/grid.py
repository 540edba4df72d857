"""Which cases there are: model x card x budget x (prompt, depth)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

DECODE_TOKENS: Final = 64
PROMPTS: Final = (64, 512, 4096)
DEPTHS: Final = (512, 4096, 16384)
SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.9, 1.1)
CELL_PAD: Final = 256  # llama.cpp rounds contexts up to this
UBATCH: Final = 512


@dataclass(frozen=True, slots=True, order=True)
class Work:
    """A conversation: ``before`` positions are cached, a prompt brings it to ``depth``, then 64 tokens are decoded."""

    prompt: int
    depth: int

    @property
    def before(self) -> int:
        return self.depth - self.prompt

    @property
    def n_ctx(self) -> int:
        """The context both sides allocate: what the conversation needs, no more."""
        return -(-(self.depth + DECODE_TOKENS) // CELL_PAD) * CELL_PAD

    def ubatches(self, n_ubatch: int) -> int:
        return -(-self.prompt // n_ubatch)


@dataclass(frozen=True, slots=True)
class Case:
    model: str
    card: str
    share: float  # budget over model file
    budget_bytes: int
    work: Work


@dataclass(frozen=True, slots=True)
class Grid:
    """``shares``: budgets as parts of the model file."""

    models: tuple[str, ...] = ("dense", "moe", "real")
    cards: tuple[str, ...] = ("laptop", "mid", "top")
    shares: tuple[float, ...] = SHARES
    prompts: tuple[int, ...] = PROMPTS
    depths: tuple[int, ...] = DEPTHS
    thin: int = 1  # of the cases every so many-th, in diagonals: each card, budget and work stays, with each other

    def works(self) -> list[Work]:
        """A prompt longer than the depth it leads to cannot be: those pairs do not exist."""
        return [Work(p, d) for d in self.depths for p in self.prompts if p <= d]

    def survey(self) -> list[Work]:
        """The shallowest and the deepest, with the middle prompt: enough to tell which kinds of settings can win."""
        works = sorted(self.works(), key=lambda work: (work.depth, work.prompt))
        ends = [[work for work in works if work.depth == depth] for depth in (works[0].depth, works[-1].depth)]
        chosen = [some[len(some) // 2] for some in ends]
        return chosen[:1] if chosen[0] == chosen[1] else chosen

    def contexts(self) -> list[int]:
        return sorted({work.n_ctx for work in self.works()})

    def cases(self, model: str, file_bytes: int) -> Iterator[Case]:
        for c, card in enumerate(self.cards):
            for s, share in enumerate(self.shares):
                for w, work in enumerate(self.works()):
                    if (c + s + w) % self.thin == 0:
                        yield Case(model, card, share, round(share * file_bytes), work)


QUICK: Final = Grid(models=("dense", "moe"), cards=("mid",), shares=(0.3, 0.7), prompts=(512,), depths=(4096,))


def ttft_ns(first: float, last: float, ubatches: int) -> float:
    """Of a prompt, from its first and its last full step: in between, time grows with the depth in a straight line."""
    return first if ubatches == 1 else ubatches * (first + last) / 2.0


def depths_to_time(work: Work, n_ubatch: int) -> Sequence[tuple[int, int]]:
    """(depth, lead) of the prompt's steps to measure: the only one; or the first, and the last, behind another."""
    if work.ubatches(n_ubatch) == 1:
        return [(work.before, 0)]
    return [(work.before, 0), (work.depth - 2 * n_ubatch, 1)]
