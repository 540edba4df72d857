"""From token pieces (bytes) to text that is always whole UTF-8 and never runs into a stop string.

Pure. The rule that makes restarts simple: how much text has been released is a
function of *which tokens* have been released. A token is released as a whole,
once all of its text, and the character it may end in the middle of, can no
longer be the beginning of a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple


class Utf8Stream:
    """Incremental decoder: invalid bytes become U+FFFD, an unfinished character waits for its rest."""

    def __init__(self) -> None:
        self._decoder: Final = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(data)

    @property
    def pending(self) -> bool:
        """Whether a character has begun and is not finished."""
        return bool(self._decoder.getstate()[0])


def held_back(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that begins a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest


def find_stop(text: str, stops: Sequence[str], start: int) -> int:
    """Where the first stop string begins that ends after ``start``, or -1."""
    found = [at for stop in stops if (at := text.find(stop, max(0, start - len(stop) + 1))) >= 0]
    return min(found, default=-1)


class Part(NamedTuple):
    """A piece of an answer that is ready to be sent."""

    text: str
    token_ids: list[int]


@dataclass(slots=True)
class _Token:
    id: int
    start: int  # index of the first character that any of its bytes belongs to
    end: int  # length of the text decoded after it
    needs: int  # length of text that must be safe before it is released


class AnswerText:
    """The text of one answer, token by token."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops: Final = tuple(stops)
        self._decoder: Final = Utf8Stream()
        self._tokens: Final[list[_Token]] = []
        self._text = ""
        self._released = 0  # tokens
        self.stopped = False

    @property
    def text(self) -> str:
        """All text so far, with what is still held back."""
        return self._text

    @property
    def token_ids(self) -> list[int]:
        return [token.id for token in self._tokens]

    def feed(self, token_id: int, piece: bytes) -> None:
        """Appends a token. Afterwards ``stopped`` says whether a stop string is complete; its tokens are dropped."""
        start = len(self._text)
        self._text += self._decoder.feed(piece)
        end = len(self._text)
        self._tokens.append(_Token(token_id, start, end, end + self._decoder.pending))
        self._cut_at_stop(start)

    def _cut_at_stop(self, start: int) -> None:
        at = find_stop(self._text, self._stops, start)
        if at >= 0:
            self.stopped = True
            self._text = self._text[:at]
            while self._tokens and self._tokens[-1].start >= at:
                self._tokens.pop()

    def take(self) -> Part:
        """What can be sent now and was not taken before. Text may be empty; then no tokens come either."""
        safe = len(self._text) - held_back(self._text, self._stops)
        count = self._released
        while count < len(self._tokens) and self._tokens[count].needs <= safe:
            count += 1
        return self._release(count, self._end(count)) if self._end(count) > self._end(self._released) else Part("", [])

    def finish(self) -> Part:
        """Everything that is left, when no token follows. Bytes of a character that never got whole are no text."""
        return self._release(len(self._tokens), len(self._text))

    def skip(self) -> None:
        """Marks all tokens fed so far as sent: an earlier process sent them."""
        self._released = len(self._tokens)

    def _end(self, count: int) -> int:
        return self._tokens[count - 1].end if count else 0

    def _release(self, count: int, end: int) -> Part:
        part = Part(self._text[self._end(self._released) : end], [t.id for t in self._tokens[self._released : count]])
        self._released = count
        return part
