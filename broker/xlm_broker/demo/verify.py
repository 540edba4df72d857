"""The proof at the end of the demo: the same lines again at one fixed, full budget, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xlm_broker.demo.record import Turn


@dataclass(frozen=True, slots=True)
class Comparison:
    """``compared``: tokens of the turns that both runs finished; ``different``: how many of them differ."""

    compared: int
    different: int
    turns: int
    first_difference: str = ""


def _differences(first: Sequence[int], second: Sequence[int]) -> int:
    same = sum(a == b for a, b in zip(first, second, strict=False))
    return max(len(first), len(second)) - same


def _finished(turns: Sequence[Turn]) -> dict[tuple[str, int], Turn]:
    return {(turn.npc, turn.index): turn for turn in turns if turn.ended_s is not None}


def compare(story: Sequence[Turn], replay: Sequence[Turn]) -> Comparison:
    """Token by token over the turns both runs finished; position counts, so a lost token makes the rest differ."""
    first, second = _finished(story), _finished(replay)
    compared = different = 0
    where = ""
    both = sorted(first.keys() & second.keys())
    for key in both:
        ours, theirs = first[key].token_ids, second[key].token_ids
        compared += max(len(ours), len(theirs))
        wrong = _differences(ours, theirs)
        if wrong and not where:
            where = f"{key[0]}, turn {key[1] + 1}"
        different += wrong
    return Comparison(compared, different, len(both), where)
