"""Messages between clients and the broker: the one definition of the wire protocol.

Each message is one ZeroMQ frame holding one msgpack map with string keys. Key
``t`` names the type, ``id`` the request (chosen by the client, echoed in every
answer to it), ``cause`` an opaque causal id echoed on the wire and in logs.
Receivers ignore keys they do not know. HELLO and WELCOME never change their
encoding. docs/protocol.md is generated from this file.

Bytes are sizes in bytes, ``*_ms`` milliseconds, floats are finite.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

VERSION_MIN = 1
VERSION_MAX = 1
MAX_FRAME_BYTES = 1 << 20
MAX_BYTES = (1 << 62) - 1

Id = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Size = Annotated[int, Meta(ge=0, le=MAX_BYTES)]
Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=512 * 1024)]
Millis = Annotated[float, Meta(ge=0.0, le=86_400_000.0)]
LONGEST_FRAME_MS = (1 << 47) - 1  # over any 64-bit count of nanoseconds: a PC may sleep within a frame
FrameMillis = Annotated[float, Meta(ge=0.0, le=LONGEST_FRAME_MS)]
Count = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Unit = Annotated[float, Meta(ge=0.0, le=1.0)]
IMAGE_CHUNK_BYTES = 256 << 10
IMAGE_WINDOW = 4  # chunks a client may have under way without an answer
ImageKey = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Side = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
# "encoded": a PNG, JPEG, WebP … file; the others: 8 bits a channel, in this order in memory, x is ignored
ImageEncoding = Literal["encoded", "rgb8", "rgba8", "rgbx8", "bgra8", "bgrx8"]


class Message(Struct, tag_field="t", omit_defaults=True, kw_only=True):
    """Base of all messages."""

    id: Id = 0
    cause: Name = ""


# -- client -> broker ---------------------------------------------------------


class Hello(Message, tag="hello"):
    """First message of a connection. The broker picks the highest version both know."""

    version_min: int
    version_max: int
    name: Name
    pid: int = 0
    sdk: Name = ""
    lease_id: Name = ""  # to take up a lease that is still alive, after a reconnect


class Ping(Message, tag="ping"):
    """Heartbeat: renews the lease. An expired lease is not revived; the answer is an error."""


class Goodbye(Message, tag="goodbye"):
    """Ends the lease, its cap, reservation and sessions. Answered by OK, the last message to this client."""


class SetBudget(Message, tag="set_budget"):
    """Cap: the model may use at most ``cap_bytes``; null lifts this client's cap.

    Answered by LEASE once the bytes are really released.
    """

    cap_bytes: Size | None
    deadline_ms: Millis | None = None
    require: Literal["any", "device"] = "any"  # "device": refuse a cap too small to run anything on the device


class Reserve(Message, tag="reserve"):
    """Keep ``bytes`` of the device free for this client; 0 ends it. Answered by LEASE."""

    bytes: Size
    deadline_ms: Millis | None = None


class Sampling(Struct, omit_defaults=True, kw_only=True):
    """How tokens are chosen. temperature 0 is greedy."""

    temperature: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.8
    top_k: Annotated[int, Meta(ge=0, le=1_000_000)] = 40
    top_p: Unit = 0.95
    min_p: Unit = 0.05
    repeat_penalty: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    repeat_last_n: Annotated[int, Meta(ge=0, le=65536)] = 64
    seed: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] | None = None
    grammar: Text = ""  # GBNF
    json_schema: Text = ""  # JSON text of a schema; at most one of the two


class OpenSession(Message, tag="open_session"):
    """A conversation. ``overflow``: what happens when the context is full."""

    system: Text = ""
    overflow: Literal["error", "shift"] = "error"
    resume: Name = ""  # session id of this client name, to go on with it


class CloseSession(Message, tag="close_session"):
    session_id: Name


class Say(Message, tag="say"):
    """One user turn. Answered by TOKENS … DONE, or ERROR; ``id`` names the answer."""

    session_id: Name
    text: Text
    max_tokens: Annotated[int, Meta(ge=1, le=1_000_000)] = 256
    sampling: Sampling = field(default_factory=Sampling)
    stop: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=16)] = []
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    images: Annotated[list[ImageKey], Meta(max_length=64)] = []  # uploaded before, in the order the model sees them


class Cancel(Message, tag="cancel"):
    """Stops the answer ``say_id``; it ends with DONE, finish_reason "cancelled". Unknown ids are ignored."""

    say_id: Id


class GetStatus(Message, tag="get_status"):
    pass


class Frame(Message, tag="frame"):
    """How the game's frames went since the last report, about ten times a second. Never answered, but for errors.

    A broker that does not know it answers ``unknown_type``; the client then sends no more of them.
    ``pacing``: what the broker may do to hold the target: nothing, space out its steps, or that and take less memory.
    """

    frames: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
    mean_ms: FrameMillis  # of a frame, begin to begin
    max_ms: FrameMillis  # the longest one
    target_ms: Annotated[float, Meta(gt=0.0, le=LONGEST_FRAME_MS)]  # how long a frame may take
    gpu_ms: FrameMillis = 0.0  # mean time on the GPU; 0: not measured
    over_target: Count = 0  # frames that took longer than the target
    pacing: Literal["off", "steps", "shrink"] = "steps"


class ImageBegin(Message, tag="image_begin"):
    """The bytes of an image will follow. Answered by IMAGE; ``ready``: the broker has it already, send nothing.

    ``key`` names what is uploaded: see docs/protocol.md, "Images". Beginning anew forgets an unfinished upload.
    """

    key: ImageKey
    total_bytes: Size
    encoding: ImageEncoding = "encoded"
    width: Side = 0  # of all but "encoded", where the file says it
    height: Side = 0
    stride: Size = 0  # bytes from row to row; the last row has no padding
    bottom_up: bool = False  # the first row in memory is the lowest one


class ImageChunk(Message, tag="image_chunk"):
    """The next bytes of an image, without gap or overlap. Answered by IMAGE."""

    key: ImageKey
    offset: Size
    data: Annotated[bytes, Meta(min_length=1, max_length=IMAGE_CHUNK_BYTES)]


class ImageEnd(Message, tag="image_end"):
    """All bytes were sent. Answered by IMAGE, ``ready``, if they are those of ``key``."""

    key: ImageKey


Request = (
    Hello
    | Ping
    | Goodbye
    | SetBudget
    | Reserve
    | OpenSession
    | CloseSession
    | Say
    | Cancel
    | GetStatus
    | Frame
    | ImageBegin
    | ImageChunk
    | ImageEnd
)


# -- broker -> client ---------------------------------------------------------


class Welcome(Message, tag="welcome"):
    version: int
    lease_id: Name
    heartbeat_ms: Millis
    ttl_ms: Millis  # three missed heartbeats
    broker_version: Name = ""
    resumed: bool = False


class Ok(Message, tag="ok"):
    pass


class Pong(Message, tag="pong"):
    pass


class Error(Message, tag="error"):
    """The request failed; code is one of xlm.errors.CODES."""

    code: str
    message: str
    fault: str = "broker"
    retryable: bool = False
    hint: str = ""
    minimum_bytes: int | None = None


class Lease(Message, tag="lease"):
    """What holds now. Sent as the answer to set_budget and reserve."""

    granted_bytes: Size  # the budget in force for the model, after all clients' wishes
    used_bytes: Size  # device memory the model holds, by our ledger
    device_used_bytes: Size  # the device's own counter
    cap_bytes: Size | None = None  # this client's cap
    reserved_bytes: Size = 0  # this client's reservation
    release_ms: float = 0.0  # request received -> bytes released
    deadline_met: bool = True


class Session(Message, tag="session"):
    session_id: Name
    resumed: bool = False
    n_ctx: int = 0


class Tokens(Message, tag="tokens"):
    """The next piece of an answer: whole UTF-8 characters; ``seq`` counts messages from 0."""

    seq: int
    text: str
    token_ids: list[int] = []


class Usage(Struct, omit_defaults=True, kw_only=True):
    prompt_tokens: int = 0  # of this turn, with the conversation before it
    cached_tokens: int = 0  # of those, found in the KV cache
    completion_tokens: int = 0
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0  # mean time per output token after the first


class Done(Message, tag="done"):
    finish_reason: Literal["stop", "length", "cancelled"]
    usage: Usage = field(default_factory=Usage)


class Notice(Message, tag="notice"):
    """Something happened that no request asked for.

    kinds: engine_restarting, engine_ready, engine_failed, engine_unresponsive, device_lost,
    device_restored, degraded, budget_changed, lease_expiring, shutdown.
    """

    kind: Name
    text: str = ""
    detail: dict[str, Any] = {}


class Image(Message, tag="image"):
    """How far an upload is."""

    key: ImageKey
    received_bytes: Size = 0
    ready: bool = False  # whole and verified: SAY may name it


class Status(Message, tag="status"):
    """Answer to get_status: the maps' keys are described in docs/protocol.md."""

    broker: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    device: dict[str, Any] = {}
    budget: dict[str, Any] = {}
    schedule: dict[str, Any] = {}
    clients: list[dict[str, Any]] = []
    sessions: list[dict[str, Any]] = []
    throughput: dict[str, Any] = {}
    vision: dict[str, Any] = {}


Reply = Welcome | Ok | Pong | Error | Lease | Session | Tokens | Done | Notice | Status | Image
