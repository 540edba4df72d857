"""What the broker and its planning process say to each other. Data only; both come from the same package.

Each message is one msgpack map (tag ``t``) behind its length, four bytes, little-endian.

    broker -> planning      Setup once; then Facts whenever model or device changed, and Ask at any time
    planning -> broker      Standing after each Facts; Answer one or more times for each Ask, the last one ``final``

A newer Ask ends the search for an older one, whose final answer is then not sent.
"""

from __future__ import annotations

import struct
from typing import Final

from msgspec import Struct, msgpack

from xlm.protocol.link import DeviceConfig, DeviceFacts, ExpertStats, ModelFacts, Schedule

MAX_MESSAGE_BYTES: Final = 64 << 20
_LENGTH: Final = struct.Struct("<I")
LENGTH_BYTES: Final = _LENGTH.size


class Message(Struct, tag_field="t", kw_only=True, omit_defaults=True):
    pass


class Setup(Message, tag="setup"):
    """``profile``: path of the machine's profile, which need not exist. ``prompt_tokens`` ...: the expected work."""

    device: DeviceConfig
    profile: str
    prompt_tokens: int
    decode_tokens: int
    objective: str = "interactive"


class Facts(Message, tag="facts"):
    model: ModelFacts
    device: DeviceFacts


class Ask(Message, tag="ask"):
    request_id: int
    budget_bytes: int
    current: Schedule | None = None
    routing: list[ExpertStats] = []


A_MODEL = "MODEL.gguf"  # in an advice: the file of the model in question, which who measures does not know


class Standing(Message, tag="standing"):
    """By which times plans are made. ``state``: measured, partly, missing, corrupt or stale; ``advice``: what to do."""

    state: str
    text: str
    advice: str = ""
    code: str = ""  # of xlm.errors, where something is wrong with the profile


class Answer(Message, tag="answer"):
    """``schedule`` None: nothing was found, because of ``problem``."""

    request_id: int
    schedule: Schedule | None = None
    final: bool = True
    problem: str = ""


ToPlanning = Setup | Facts | Ask
FromPlanning = Standing | Answer

_encoder = msgpack.Encoder()
_to: msgpack.Decoder[ToPlanning] = msgpack.Decoder(ToPlanning)
_from: msgpack.Decoder[FromPlanning] = msgpack.Decoder(FromPlanning)


def pack(message: Message) -> bytes:
    """Length and message."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def length(head: bytes) -> int:
    """Of the message behind these LENGTH_BYTES. ValueError where it cannot be one."""
    (size,) = _LENGTH.unpack(head)
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(f"a message of {size} bytes")
    return int(size)


def to_planning(body: bytes) -> ToPlanning:
    """msgspec.DecodeError for anything else."""
    return _to.decode(body)


def from_planning(body: bytes) -> FromPlanning:
    """msgspec.DecodeError for anything else."""
    return _from.decode(body)
