"""What the measuring process and its parent say to each other: one JSON object a line.

parent -> child, on stdin     Request, then (answering Identity) Known
child -> parent, on stdout    Identity, then Begin and Points and Progress in turn, Note at any time, at last Done;
                              or Failed at any time, with an error's code

The parent owns the file. It learns the machine's identity first, and says which points it has already.
"""

from __future__ import annotations

import sys
from typing import IO, Final

import msgspec

from xlm.errors import XlmError
from xlm.protocol.link import DeviceConfig
from xlm_engine.profile.points import KernelPoint, LinkPoint


class Request(msgspec.Struct, kw_only=True, omit_defaults=True):
    """``seconds``: stop after so long, 0 for no limit. ``skip``: task names not to touch (they crashed)."""

    device: DeviceConfig
    quick: bool = False
    model: str = ""
    n_threads: int = 0  # 0: physical cores
    seconds: float = 0.0
    skip: list[str] = []
    identify_only: bool = False


class Known(msgspec.Struct):
    """Identities of the points that need no measuring."""

    kernels: list[tuple[str, str, str, tuple[int, int, int, int], int, int, str]] = []
    links: list[tuple[str, str, int, int]] = []


class Message(msgspec.Struct, tag_field="t", kw_only=True):
    pass


class Identity(Message, tag="identity"):
    """The fields of the profile's key."""

    cpu: str
    n_cores: int
    isa: str
    gpu: str
    driver: str
    ggml: str


class Begin(Message, tag="begin"):
    task: str


class Points(Message, tag="points"):
    kernels: list[KernelPoint] = []
    links: list[LinkPoint] = []


class Progress(Message, tag="progress"):
    """``left_s``: estimate of the time that is left."""

    done: int
    total: int
    left_s: float
    what: str


class Note(Message, tag="note"):
    """A fact about the measurement for the profile's notes."""

    name: str
    text: str


class Done(Message, tag="done"):
    """``left_out``: points of the grid that the time limit left unmeasured."""

    measured: int
    left_out: int


class Failed(Message, tag="failed"):
    code: str
    message: str
    hint: str = ""


class Channel:
    """Line by line, flushed. Not thread-safe; the measuring thread owns it."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source: Final = source
        self._sink: Final = sink
        self._encoder: Final = msgspec.json.Encoder()

    def send(self, message: Message) -> None:
        self._sink.write(self._encoder.encode(message) + b"\n")
        self._sink.flush()

    def request(self) -> Request:
        """msgspec.DecodeError or ValidationError for anything else."""
        return msgspec.json.decode(self._source.readline(), type=Request)

    def known(self) -> Known:
        return msgspec.json.decode(self._source.readline(), type=Known)

    def fail(self, error: BaseException) -> None:
        typed = isinstance(error, XlmError)
        code = error.code if isinstance(error, XlmError) else "internal"
        hint = error.hint if isinstance(error, XlmError) else ""
        text = error.message if isinstance(error, XlmError) else f"{type(error).__name__}: {error}"
        self.send(Failed(code=code, message=text, hint=hint if typed else ""))


def note_to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
