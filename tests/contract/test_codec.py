"""The codec against hostile bytes: a message or a ProtocolError, and nothing else."""

from __future__ import annotations

import math
import struct
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm.errors import CODES, ProtocolError
from xlm.protocol import codec, messages
from xlm.protocol.messages import MAX_BYTES, MAX_FRAME_BYTES, Message

pack = msgspec.msgpack.encode
REQUESTS: tuple[type[Message], ...] = get_args(messages.Request)
REPLIES: tuple[type[Message], ...] = get_args(messages.Reply)

# A valid map of each type, by its tag; what is left out has a default.
SAMPLES: dict[str, dict[str, Any]] = {
    "hello": {"version_min": 1, "version_max": 1, "name": "tavern", "pid": 42, "sdk": "python-1", "lease_id": "l"},
    "ping": {},
    "goodbye": {},
    "set_budget": {"cap_bytes": 96 << 20, "deadline_ms": 16.0, "require": "device"},
    "reserve": {"bytes": 1 << 30, "deadline_ms": 4.0},
    "open_session": {"system": "You are Greta.", "overflow": "shift", "resume": "s"},
    "close_session": {"session_id": "s"},
    "say": {
        "session_id": "s",
        "text": "Hi 🔨",
        "max_tokens": 8,
        "stop": ["\n"],
        "priority": -3,
        "images": ["f" * 64],
        "sampling": {
            "temperature": 0.5,
            "top_k": 3,
            "top_p": 0.5,
            "min_p": 0.5,
            "repeat_penalty": 1.1,
            "repeat_last_n": 8,
            "seed": 7,
            "grammar": 'root ::= "a"',
            "json_schema": "{}",
        },
    },
    "cancel": {"say_id": 7},
    "get_status": {},
    "frame": {
        "frames": 6,
        "mean_ms": 16.9,
        "max_ms": 33.3,
        "target_ms": 16.7,
        "gpu_ms": 9.5,
        "over_target": 2,
        "pacing": "shrink",
    },
    "image_begin": {
        "key": "0123456789abcdef" * 4,
        "total_bytes": 24,
        "encoding": "bgra8",
        "width": 2,
        "height": 3,
        "stride": 8,
        "bottom_up": True,
    },
    "image_chunk": {"key": "0123456789abcdef" * 4, "offset": 5, "data": b"\x00\xff"},
    "image_end": {"key": "0123456789abcdef" * 4},
    "image": {"key": "0123456789abcdef" * 4, "received_bytes": 9, "ready": True},
    "welcome": {
        "version": 1,
        "lease_id": "l",
        "heartbeat_ms": 1e3,
        "ttl_ms": 3e3,
        "broker_version": "1",
        "resumed": True,
    },
    "ok": {},
    "pong": {},
    "error": {
        "code": "internal",
        "message": "m",
        "fault": "caller",
        "retryable": True,
        "hint": "h",
        "minimum_bytes": 5,
    },
    "lease": {
        "granted_bytes": 1,
        "used_bytes": 2,
        "device_used_bytes": 3,
        "cap_bytes": 4,
        "reserved_bytes": 5,
        "release_ms": 0.5,
        "deadline_met": False,
    },
    "session": {"session_id": "s", "resumed": True, "n_ctx": 9},
    "tokens": {"seq": 3, "text": "né", "token_ids": [1, 2]},
    "done": {
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 1, "cached_tokens": 2, "completion_tokens": 3, "ttft_ms": 0.5, "tpot_ms": 0.25},
    },
    "notice": {"kind": "shutdown", "text": "t", "detail": {"a": [1, None, {"b": 2.5}]}},
    "status": {
        "broker": {"a": 1},
        "engine": {"b": 1},
        "device": {"c": 1},
        "budget": {"d": 1},
        "schedule": {"e": 1},
        "clients": [{"f": 1}],
        "sessions": [{"g": 1}],
        "throughput": {"h": 1.5},
        "vision": {"i": True},
    },
}


def decoder_of(kind: str) -> Any:
    return codec.decode_request if kind in codec.REQUEST_TYPES else codec.decode_reply


def a_map(kind: str, **changes: Any) -> dict[str, Any]:
    return {"t": kind, "id": 77, "cause": "c", **SAMPLES[kind], **changes}


def refusal(decode: Any, frame: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode(frame)
    assert caught.value.code in CODES
    return caught.value


# -- what is understood ----------------------------------------------------------------


def test_every_type_has_a_sample() -> None:
    assert set(SAMPLES) == codec.REQUEST_TYPES | codec.REPLY_TYPES
    assert not codec.REQUEST_TYPES & codec.REPLY_TYPES


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_round_trip_keeps_every_field(kind: str) -> None:
    decode = decoder_of(kind)
    message = decode(pack(a_map(kind)))
    assert msgspec.to_builtins(message, builtin_types=(bytes,)) == a_map(kind)
    assert decode(codec.encode(message)) == message


@pytest.mark.parametrize("kind", sorted(SAMPLES))
def test_unknown_keys_are_ignored(kind: str) -> None:
    later = a_map(kind, zz_later=[1, {"a": None}], zz_more=b"\xff\xfe")
    assert decoder_of(kind)(pack(later)) == decoder_of(kind)(pack(a_map(kind)))


HELLO = "85a174a568656c6c6fab76657273696f6e5f6d696e01ab76657273696f6e5f6d617801a46e616d65a161a2696401"
WELCOME = (
    "86a174a777656c636f6d65a776657273696f6e01a86c656173655f6964a16cac6865617274626561745f6d73cb408f400000000000"
    "a674746c5f6d73cb40a7700000000000a2696401"
)


def test_hello_and_welcome_keep_their_encoding() -> None:
    """The bytes of version 1, written down: they never change, so that any two versions understand each other."""
    hello = messages.Hello(id=1, version_min=1, version_max=1, name="a")
    welcome = messages.Welcome(id=1, version=1, lease_id="l", heartbeat_ms=1000.0, ttl_ms=3000.0)
    assert (codec.encode(hello).hex(), codec.encode(welcome).hex()) == (HELLO, WELCOME)
    assert codec.decode_request(bytes.fromhex(HELLO)) == hello
    assert codec.decode_reply(bytes.fromhex(WELCOME)) == welcome


def test_a_memoryview_will_do() -> None:
    assert codec.decode_request(memoryview(pack({"t": "ping", "id": 5}))) == messages.Ping(id=5)


# -- what is refused -------------------------------------------------------------------


WRONG_VALUES: list[tuple[str, str, tuple[Any, ...]]] = [
    (
        "set_budget",
        "cap_bytes",
        (-1, MAX_BYTES + 1, (1 << 64) - 1, 1.0, 0.5, math.nan, math.inf, True, "5", [], {}, b"5"),
    ),
    ("set_budget", "deadline_ms", (-1.0, math.nan, math.inf, -math.inf, 1e300, True, "x", [])),
    ("set_budget", "require", ("gpu", None, 1)),
    ("reserve", "bytes", (-1, None, MAX_BYTES + 1, "1MiB")),
    ("say", "max_tokens", (0, -1, 1_000_001, 0.5, None)),
    ("say", "stop", ("a", [""], ["a"] * 17, ["a" * 257], [1], None)),
    ("say", "text", (5, None, b"bytes", ["a"], "a" * (512 * 1024 + 1))),
    (
        "say",
        "sampling",
        (
            [],
            None,
            {"temperature": -0.1},
            {"temperature": 10.1},
            {"temperature": math.nan},
            {"temperature": "hot"},
            {"top_p": -0.1},
            {"top_p": 1.1},
            {"top_p": math.nan},
            {"seed": -1},
            {"seed": 1 << 32},
            {"seed": 0.5},
        ),
    ),
    ("cancel", "say_id", (-1, None, 1 << 53)),
    ("hello", "name", ("a" * 257, None)),
    ("hello", "version_min", ("1", None, 1.5)),
    ("open_session", "overflow", ("wrap", None)),
]


@pytest.mark.parametrize(
    ("kind", "change"), [(kind, {field: value}) for kind, field, values in WRONG_VALUES for value in values]
)
def test_wrong_values_name_their_field_and_keep_the_id(kind: str, change: dict[str, Any]) -> None:
    error = refusal(codec.decode_request, pack(a_map(kind, **change)))
    assert (error.code, error.request_id) == ("bad_request", 77)
    assert next(iter(change)) in error.message


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_broken_numbers_of_a_broker_are_refused_too(value: float) -> None:
    assert refusal(codec.decode_reply, pack(a_map("welcome", ttl_ms=value))).request_id == 77


@pytest.mark.parametrize("kind", sorted(codec.REQUEST_TYPES))
def test_a_broker_takes_no_replies_and_a_client_no_requests(kind: str) -> None:
    assert refusal(codec.decode_reply, pack(a_map(kind))).code == "unknown_type"
    assert refusal(codec.decode_request, pack(a_map("ok"))).code == "unknown_type"


@pytest.mark.parametrize(
    ("frame", "code", "request_id"),
    [
        (b"", "bad_request", 0),
        (b"\xc1", "bad_request", 0),
        (b"HELLO", "bad_request", 0),
        (pack([1, 2]), "bad_request", 0),
        (pack(None), "bad_request", 0),
        (pack("ping"), "bad_request", 0),
        (pack({}), "bad_request", 0),
        (pack({"id": 9}), "bad_request", 9),
        (pack({"t": 5, "id": 9}), "bad_request", 9),
        (pack({"t": ["ping"], "id": 9}), "bad_request", 9),
        (pack({"t": "nope", "id": 9}), "unknown_type", 9),
        (pack({"t": "n" * 5000, "id": 9}), "unknown_type", 9),
        (pack({"t": "ping", "id": -1}), "bad_request", 0),
        (pack({"t": "ping", "id": 1 << 53}), "bad_request", 0),
        (pack({"t": "ping", "id": True}), "bad_request", 0),
        (pack({"t": "ping", "id": "9"}), "bad_request", 0),
        (pack({"t": "ping", "id": [9] * 100}), "bad_request", 0),
        (pack({"t": "ping"}) + b"\x00", "bad_request", 0),
        (b"\x82\xa1t\xa4ping\x05\x05", "bad_request", 0),  # a key that is no string
        (b"\x82\xa1t\xa4ping\xa2id\xcf", "bad_request", 0),  # cut off
        (b"\x83\xa1t\xa3say\xa2id\x09\xa4text\xa2\xff\xff", "bad_request", 9),  # invalid UTF-8
    ],
)
def test_broken_frames(frame: bytes, code: str, request_id: int) -> None:
    error = refusal(codec.decode_request, frame)
    assert (error.code, error.request_id) == (code, request_id)
    assert codec.peek_id(frame) == request_id
    assert len(str(error)) < 500


@pytest.mark.parametrize("size_bytes", [MAX_FRAME_BYTES + 1, 3 * MAX_FRAME_BYTES])
def test_large_frames(size_bytes: int) -> None:
    assert refusal(codec.decode_request, b"\x00" * size_bytes).code == "frame_too_large"
    assert refusal(codec.decode_reply, b"\x00" * size_bytes).code == "frame_too_large"
    assert codec.peek_id(b"\x00" * size_bytes) == 0


def test_the_largest_frame_is_taken() -> None:
    body = pack({"t": "ping", "id": 3, "zz": b""})
    fill = MAX_FRAME_BYTES - len(body) - 3  # bin 8 with no bytes becomes bin 32: three more length bytes
    frame = pack({"t": "ping", "id": 3, "zz": b"\0" * fill})
    assert len(frame) == MAX_FRAME_BYTES
    assert codec.decode_request(frame) == messages.Ping(id=3)


@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1a"])
@pytest.mark.parametrize("key", ["zz", "t", "id", "stop", "sampling"])
def test_deep_nesting_is_refused(opener: bytes, key: str) -> None:
    head = {name: value for name, value in a_map("say").items() if name != key}
    packed = pack(head)
    frame = bytes([packed[0] + 1]) + packed[1:] + pack(key) + opener * 200_000 + b"\x01"
    assert refusal(codec.decode_request, frame).code == "bad_request"
    notice = pack(a_map("notice", detail={}))
    cut = notice.index(b"detail") + len(b"detail")
    assert refusal(codec.decode_reply, notice[:cut] + b"\x81\xa1a" + opener * 200_000 + b"\x01").code == "bad_request"


@pytest.mark.parametrize("marker", [b"\xdd", b"\xdf", b"\xdb", b"\xc6"])
@pytest.mark.parametrize("count", [(1 << 32) - 1, 1 << 24])
@pytest.mark.parametrize("key", ["zz", "stop", "text"])
def test_a_length_that_lies_costs_no_memory(marker: bytes, count: int, key: str) -> None:
    head = pack({"t": "say", "id": 1, "session_id": "s"})
    frame = bytes([head[0] + 1]) + head[1:] + pack(key) + marker + struct.pack(">I", count)
    assert refusal(codec.decode_request, frame).code == "bad_request"


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        codec.encode(messages.OpenSession(id=4, system="\ud800"))
    assert (caught.value.code, caught.value.request_id) == ("bad_request", 4)
    with pytest.raises(ProtocolError) as caught:
        codec.encode(messages.OpenSession(id=4, system="🔨" * 300_000))
    assert (caught.value.code, caught.value.request_id) == ("frame_too_large", 4)
    with pytest.raises(ProtocolError):
        codec.encode(messages.Notice(kind="a", detail={"a": object()}))
    with pytest.raises(ProtocolError):
        codec.encode(messages.Notice(kind="a", detail={"a": 1 << 80}))


# -- whatever comes --------------------------------------------------------------------

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
)


def attempt(decode: Any, frame: bytes) -> Any:
    try:
        return decode(frame)
    except ProtocolError as error:
        return error


def never_worse(frame: bytes) -> None:
    for decode in (codec.decode_request, codec.decode_reply):
        got = attempt(decode, frame)
        if isinstance(got, ProtocolError):
            assert got.code in ("bad_request", "unknown_type", "frame_too_large")
            assert got.request_id == codec.peek_id(frame)
        else:
            again = codec.encode(got)
            assert codec.encode(decode(again)) == again


@given(st.binary(max_size=400))
def test_random_bytes(frame: bytes) -> None:
    never_worse(frame)


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_messages_with_random_bytes_changed(kind: str, data: st.DataObject) -> None:
    frame = bytearray(pack(a_map(kind)))
    for _ in range(data.draw(st.integers(1, 6))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(frame)))
    never_worse(bytes(frame))
    never_worse(bytes(frame[:cut]))


@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_messages_with_random_values(kind: str, data: st.DataObject) -> None:
    message = a_map(kind)
    field = data.draw(st.sampled_from(sorted(message)))
    message[field] = data.draw(anything)
    message[data.draw(st.text(max_size=10))] = data.draw(anything)
    never_worse(pack(message))


@given(anything)
def test_random_values(value: Any) -> None:
    never_worse(pack(value))
