"""Frames to messages and back, with limits.

Whatever bytes arrive, decoding answers with a message or raises
``ProtocolError``, nothing else. The error's code is ``frame_too_large``,
``unknown_type`` or ``bad_request``; its ``request_id`` is the id the frame
carried where that can still be read (0 otherwise), so that a refusal can be
addressed. Every function may be called from any thread.
"""

from __future__ import annotations

from typing import Any, Final, get_args

import msgspec

from xlm.errors import ProtocolError
from xlm.protocol.messages import MAX_FRAME_BYTES, Message, Reply, Request

_MAX_ID: Final = (1 << 53) - 1

_encoder: Final = msgspec.msgpack.Encoder()
_request_decoder: Final[msgspec.msgpack.Decoder[Request]] = msgspec.msgpack.Decoder(Request)
_reply_decoder: Final[msgspec.msgpack.Decoder[Reply]] = msgspec.msgpack.Decoder(Reply)


class _Envelope(msgspec.Struct):
    """The two keys an answer to a broken frame needs, unparsed: neither their type nor the rest is trusted."""

    t: msgspec.Raw = msgspec.Raw(b"\xc0")
    id: msgspec.Raw = msgspec.Raw(b"\xc0")


_envelope_decoder: Final = msgspec.msgpack.Decoder(_Envelope)
_scalar_decoder: Final = msgspec.msgpack.Decoder()


def _tags(union: Any) -> frozenset[str]:
    return frozenset(str(kind.__struct_config__.tag) for kind in get_args(union))


REQUEST_TYPES: Final = _tags(Request)
REPLY_TYPES: Final = _tags(Reply)


def encode(message: Message) -> bytes:
    """One frame. Raises ProtocolError: ``frame_too_large``, or ``bad_request`` for text that is no UTF-8."""
    try:
        frame = _encoder.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _error("bad_request", f"the message cannot be encoded: {error}", message.id) from None
    _check_length(len(frame), message.id)
    return frame


def decode_request(frame: bytes | memoryview) -> Request:
    """A client's message, every limit of messages.py checked. Raises ProtocolError, see the module's text."""
    _check_length(len(frame), 0)
    try:
        return _request_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError, MemoryError) as error:
        raise _refusal(frame, REQUEST_TYPES, error) from None


def decode_reply(frame: bytes | memoryview) -> Reply:
    """A broker's message. Raises ProtocolError, see the module's text."""
    _check_length(len(frame), 0)
    try:
        return _reply_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError, MemoryError) as error:
        raise _refusal(frame, REPLY_TYPES, error) from None


def peek_id(frame: bytes | memoryview) -> int:
    """The request id a frame carries, or 0 where it cannot be read. Never raises."""
    return _peek(frame)[1]


def _peek(frame: bytes | memoryview) -> tuple[str | None, int]:
    if len(frame) > MAX_FRAME_BYTES:
        return None, 0
    try:
        envelope = _envelope_decoder.decode(frame)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError, MemoryError):
        return None, 0
    kind, identity = _scalar(envelope.t), _scalar(envelope.id)
    known_id = type(identity) is int and 0 <= identity <= _MAX_ID
    return (kind if isinstance(kind, str) else None), (identity if known_id else 0)


def _scalar(raw: msgspec.Raw) -> Any:
    try:
        return _scalar_decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError, OverflowError, MemoryError):
        return None


def _refusal(frame: bytes | memoryview, known: frozenset[str], cause: BaseException) -> ProtocolError:
    kind, request_id = _peek(frame)
    if kind is not None and kind not in known:
        return _error("unknown_type", f"unknown message type {kind[:64]!r}", request_id)
    if isinstance(cause, RecursionError):
        return _error("bad_request", "the message is nested too deeply", request_id)
    return _error("bad_request", str(cause) or type(cause).__name__, request_id)


def _check_length(length_bytes: int, request_id: int) -> None:
    if length_bytes > MAX_FRAME_BYTES:
        raise _error("frame_too_large", f"a frame of {length_bytes} bytes is over {MAX_FRAME_BYTES}", request_id)


def _error(code: str, message: str, request_id: int) -> ProtocolError:
    error = ProtocolError(message, code=code)
    error.request_id = request_id
    return error
