"""Messages between the broker and its engine child, and the planner's data.

Private to one release: broker and engine always come from the same package,
so there is no version negotiation. One msgpack map a frame, tag field ``t``.
The broker is the truth: an engine can be killed at any moment and everything
it held is rebuilt from what the broker sends.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from xlm.protocol.messages import ImageEncoding, Sampling, Usage

# -- the planner's view of a model -----------------------------------------------

# xlm_placement in xlm_device.h. STREAM_KV: the KV cache is copied for the step too, and does not stay.
CPU, STREAM, RESIDENT, STREAM_KV = 0, 1, 2, 3

Kind = Literal["small", "attention", "ffn", "experts", "shared_experts", "extras", "output", "lookup", "projector"]
KINDS: tuple[Kind, ...] = (
    "small",
    "attention",
    "ffn",
    "experts",
    "shared_experts",
    "extras",
    "output",
    "lookup",
    "projector",
)


class SubLayer(Struct, kw_only=True, frozen=True):
    """One unit of placement. ``index`` is the native index; sizes are device bytes."""

    index: int
    layer: int  # -1: none
    kind: Kind
    device_bytes: int
    host_bytes: int = 0
    kv_bytes: int = 0
    largest_piece_bytes: int = 0
    model_id: int = 0
    # experts only: K slots take at most K * expert_bytes + expert_overhead_bytes
    n_experts: int = 0
    expert_bytes: int = 0  # one expert, all its matrices: what a miss uploads
    expert_overhead_bytes: int = 0
    largest_expert_bytes: int = 0  # its largest matrix; the window must hold two of them


class Weight(Struct, kw_only=True, frozen=True, array_like=True):
    """One tensor of the model's file. ``type``: ggml_type; ``n_columns``: its first dimension."""

    name: str
    type: int
    n_columns: int
    n_elements: int
    n_bytes: int


class Projector(Struct, kw_only=True, frozen=True):
    """The vision part of a model, from its projector file."""

    name: str
    kind: str = ""  # clip.projector_type
    file_bytes: int = 0
    n_embd: int = 0
    max_image_tokens: int = 0  # of one image in the context; 0: unknown
    # the tower, for the planner: its sub-layers (native indices, behind the language model's), and the numbers of the
    # file under clip.vision. that its work depends on; empty: the engine makes the vision phase by itself
    sublayers: list[SubLayer] = []
    hparams: dict[str, int] = {}


class ModelFacts(Struct, kw_only=True, frozen=True):
    """What the planner knows of the loaded model."""

    name: str
    sublayers: list[SubLayer]
    n_ctx: int
    n_ubatch: int
    # device scratch a step that runs wholly on the device needs: tokens of the step -> bytes (measured at load)
    scratch_bytes: dict[int, int] = {}
    architecture: str = ""
    n_params: int = 0
    file_bytes: int = 0
    n_layer: int = 0
    n_vocab: int = 0
    n_ctx_train: int = 0
    quantisation: str = ""
    # shapes for the timing model, where known: n_embd, n_head, n_head_kv, head_dim, n_ff, n_expert, n_expert_used
    hparams: dict[str, int] = {}
    n_sessions: int = 1  # kv_bytes of the sub-layers are those of so many sequences of n_ctx
    kv_type: str = "f16"
    weights: list[Weight] = []  # the file's tensors, for their exact shapes and types; empty: not known
    projector: Projector | None = None  # None: the model takes no images


# kv_streaming: attention on the device without a lasting KV copy. ring_across_steps: what is prefetched at a step's end
# is there in the next. expert_slots: a compact cache of single experts. output_chunks: a large matrix in parts of rows.
CAPABILITIES: tuple[str, ...] = ("kv_streaming", "ring_across_steps", "expert_slots", "output_chunks")
# What the planner may count on in this release: a KV cache may be copied for a step instead of a lasting copy, experts
# go one by one, the ring keeps what was prefetched for the next step. Matrices larger than the ring do stream by rows,
# but tied embeddings do not; the planner does not count on it yet.
ENGINE_CAPABILITIES: tuple[str, ...] = ("kv_streaming", "ring_across_steps", "expert_slots")


class DeviceFacts(Struct, kw_only=True, frozen=True):
    kind: str  # none | sim | vulkan | cuda
    description: str = ""
    total_bytes: int = 0
    link_bytes_per_s: float = 0.0  # 0: unknown
    degraded: bool = False
    # what the engine's native backend can do beyond the basics; CAPABILITIES has the names
    capabilities: list[str] = []
    # what a profile depends on (cpu, n_cores, isa, gpu, driver, ggml), as the engine sees it; empty: not known
    identity: dict[str, str] = {}
    n_threads: int = 0  # CPU threads the engine computes with; 0: not known


class Tier(Struct, kw_only=True, frozen=True):
    max_tokens: int
    placement: bytes  # [n_sublayers] CPU | STREAM | RESIDENT | STREAM_KV, by sub-layer index
    scratch_bytes: int = 0
    reserve_bytes: int = 0  # kept free in its steps, if less than the schedule's: the rest is lent to copies


class ExpertPolicy(Struct, kw_only=True, frozen=True):
    """How an experts sub-layer that is not resident as a whole is kept (xlm_expert_policy). Times by the timing
    model: a missing expert is uploaded, or computed on the CPU beside the device, whichever ends sooner."""

    n_slots: int = 0  # experts kept on the device; fewer where memory is short
    upload_ns: int = 0  # one expert over the link
    cpu_ns: int = 0  # one expert for one token on the CPU; 0: never there
    cpu_token_ns: int = 0  # each further token of the same step
    cpu_fixed_ns: int = 0  # once a step and layer
    cpu_threads: int = 0  # that compute it; 0: all
    cpu_part_ns: int = 0  # once more where the device computes others of the layer


class Schedule(Struct, kw_only=True, frozen=True):
    """A table: per token tier, where each sub-layer runs. Wrong is slow, never wrong in its result."""

    schedule_id: int
    budget_bytes: int
    tiers: list[Tier]
    priority: list[int]  # sub-layer indices; the last is evicted first
    ring_bytes: int = 0
    reserve_bytes: int = 0  # ring + scratch of the largest tier, kept free of resident copies
    resident_bytes: int = 0  # weights + KV the plan keeps on the device
    summary: str = ""  # one line for people
    predicted: dict[str, float] = {}
    experts: dict[int, ExpertPolicy] = {}  # by sub-layer index; placement must be STREAM (or RESIDENT)
    expert_window_bytes: int = 0  # experts without a slot go through this; 0: a share of ring_bytes
    # the vision phase: max_tokens counts patches; empty: the engine makes its own for the tower it loaded
    vision_tiers: list[Tier] = []
    vision_ring_bytes: int = 0


# -- broker -> engine ------------------------------------------------------------


class ToEngine(Struct, tag_field="t", kw_only=True, omit_defaults=True):
    pass


class SimConfig(Struct, kw_only=True, omit_defaults=True):
    vram_bytes: int = 256 << 20
    link_bytes_per_s: float = 12e9
    link_latency_ns: float = 8000.0
    modelled: bool = False
    extra: dict[str, float] = {}  # further fields of xlm_sim_config by name


class DeviceConfig(Struct, kw_only=True, omit_defaults=True):
    kind: Literal["none", "sim", "vulkan", "cuda"] = "none"
    library: str = ""  # inner backend library; empty: found by the engine
    index: int = 0
    sim: SimConfig = field(default_factory=SimConfig)


class ModelConfig(Struct, kw_only=True, omit_defaults=True):
    path: str
    n_ctx: int = 4096  # per session
    n_sessions: int = 4  # sequences that can hold KV at once
    n_ubatch: int = 64
    n_threads: int = 0  # 0: physical cores
    kv_type: Literal["f16", "q8_0"] = "f16"
    chat_template: str = ""
    mmproj: str = ""  # projector file; empty: none


class Start(ToEngine, tag="start"):
    """First message: open the device, load the model. Answered by Progress …, then Loaded or Failed."""

    device: DeviceConfig
    model: ModelConfig
    budget_bytes: int = 0


class SetEngineBudget(ToEngine, tag="budget"):
    """Handled at once, beside a running step. Answered by Released."""

    seq: int
    budget_bytes: int
    cause: str = ""


class SetSchedule(ToEngine, tag="schedule"):
    """In force from the next step on. Answered by ScheduleApplied."""

    schedule: Schedule


class Generate(ToEngine, tag="generate"):
    """One turn. ``context`` is every token of the conversation before it, as Finished.context_delta reported
    them (little-endian int32, 4 bytes each); the engine reuses what its KV cache still holds of it.

    ``replay``: tokens of this very answer that were already delivered before an engine died; the engine
    takes them as generated (sampler state included), and goes on after them.
    """

    gen_id: int
    session_id: str
    system: str = ""  # used while context is empty
    context: bytes = b""
    text: str = ""
    max_tokens: int = 256
    sampling: Sampling = field(default_factory=Sampling)
    stop: list[str] = []
    priority: int = 0
    overflow: Literal["error", "shift"] = "error"
    replay: list[int] = []
    cause: str = ""
    images: list[str] = []  # upload keys of this turn's images, in order
    context_images: list[str] = []  # those of the images within ``context``, in order


class CancelGeneration(ToEngine, tag="cancel"):
    gen_id: int


class DropSession(ToEngine, tag="drop_session"):
    session_id: str


class Probe(ToEngine, tag="probe"):
    """Answered by Stats. ``recover``: try a lost device again."""

    recover: bool = False


class Stop(ToEngine, tag="stop"):
    pass


class SetPace(ToEngine, tag="pace"):
    """How much of the time steps may take; the rest is idle between two steps, never within one. At once in force.

    ``duty``: computing / (computing + idle), over 0; 1: no idling. ``max_gap_ns``: no idling is longer than this.
    """

    duty: float = 1.0
    max_gap_ns: int = 1_000_000_000


class ImagePart(ToEngine, tag="image_part"):
    """Some bytes of an image, as WantImage asked; ``total_bytes`` 0: the broker has no such image (any more)."""

    key: str
    total_bytes: int = 0
    encoding: ImageEncoding = "encoded"
    width: int = 0
    height: int = 0
    stride: int = 0
    bottom_up: bool = False
    offset: int = 0
    data: bytes = b""


BrokerToEngine = (
    Start
    | SetEngineBudget
    | SetSchedule
    | Generate
    | CancelGeneration
    | DropSession
    | Probe
    | Stop
    | SetPace
    | ImagePart
)


# -- engine -> broker ------------------------------------------------------------


class FromEngine(Struct, tag_field="t", kw_only=True, omit_defaults=True):
    pass


class Started(FromEngine, tag="started"):
    """Sent first, before Start is read: the process lives and its libraries could be imported."""

    pid: int
    versions: dict[str, str] = {}


class Progress(FromEngine, tag="progress"):
    stage: str  # device | load | warmup
    fraction: float = 0.0


class Loaded(FromEngine, tag="loaded"):
    model: ModelFacts
    device: DeviceFacts
    host_rss_bytes: int = 0
    load_ms: float = 0.0


class Failed(FromEngine, tag="failed"):
    """Start failed, or the engine cannot go on. code is one of xlm.errors.CODES."""

    code: str
    message: str
    hint: str = ""


class Released(FromEngine, tag="released"):
    """The budget ``seq`` is in force and used_bytes is at or under it."""

    seq: int
    budget_bytes: int
    used_bytes: int
    device_used_bytes: int
    released_bytes: int = 0
    release_ns: int = 0
    completed: bool = True  # False: not within the engine's patience; a further Released follows
    cause: str = ""


class ScheduleApplied(FromEngine, tag="schedule_applied"):
    schedule_id: int
    ok: bool = True
    message: str = ""


class Piece(FromEngine, tag="piece"):
    """Next piece of an answer: whole UTF-8. token_ids are those sampled since the last piece."""

    gen_id: int
    text: str
    token_ids: list[int] = []


class Finished(FromEngine, tag="finished"):
    """context_delta: tokens to append to the conversation (template, user text, answer), int32 little-endian;
    context_keep: how many tokens of the context sent with Generate stay before it (fewer after a context shift).
    """

    gen_id: int
    finish_reason: Literal["stop", "length", "cancelled"]
    usage: Usage = field(default_factory=Usage)
    context_delta: bytes = b""
    context_keep: list[tuple[int, int]] = []  # ranges [start, end) of the old context that stay, in order
    text: str = ""
    context_images: list[str] = []  # upload keys of the images in the context as it then is, in order


class GenerationFailed(FromEngine, tag="generation_failed"):
    gen_id: int
    code: str
    message: str
    hint: str = ""


class ExpertStats(Struct, kw_only=True, frozen=True):
    """Routing and cache of one experts sub-layer (xlm_expert_info). Counters since the engine started."""

    index: int
    layer: int
    mode: str  # unknown | cpu | resident | slots | window | whole_graph | whole_window
    n_experts: int
    n_used: int = 0  # experts a token uses; 0: not seen yet
    n_slots_wanted: int = 0
    n_slots: int = 0
    n_slots_filled: int = 0
    slot_bytes: int = 0
    n_steps: int = 0
    n_tokens: int = 0
    n_hits: int = 0  # an expert in a step
    n_misses: int = 0
    n_cpu: int = 0
    n_passes: int = 0
    bytes_uploaded: int = 0
    bytes_saved: int = 0  # beyond that, whole tensors would have moved as much
    # [n_experts]: 255 * the part of recent routing that the 1, 2, 3 ... most used experts take; empty: none seen
    covered: bytes = b""


class Stats(FromEngine, tag="stats"):
    """Sent four times a second while busy, once a second while idle, and as the answer to Probe."""

    budget_bytes: int = 0
    used_bytes: int = 0
    resident_bytes: int = 0
    kv_bytes: int = 0
    ring_bytes: int = 0
    scratch_bytes: int = 0
    device_used_bytes: int = 0
    device_total_bytes: int = 0
    schedule_id: int = 0
    bytes_streamed: int = 0  # counters since the engine started
    tokens_generated: int = 0
    tokens_prefilled: int = 0
    tokens_per_s: float = 0.0  # over the last second or so
    device_lost: bool = False
    over_budget_events: int = 0
    host_rss_bytes: int = 0
    n_active: int = 0
    settled: bool = True  # every wanted resident copy is uploaded
    detail: dict[str, Any] = {}
    experts: list[ExpertStats] = []  # one a layer; empty: no change since the last that had them
    steps: int = 0  # loop turns of the decode thread: stands still while it hangs


class WantImage(FromEngine, tag="want_image"):
    """Asks for bytes of an image. Answered by one ImagePart.

    The engine pulls, a piece at a time, so that a budget never waits behind more than one of them.
    """

    key: str
    offset: int = 0
    max_bytes: int = 256 << 10


EngineToBroker = (
    Started
    | Progress
    | Loaded
    | Failed
    | Released
    | ScheduleApplied
    | Piece
    | Finished
    | GenerationFailed
    | Stats
    | WantImage
)
