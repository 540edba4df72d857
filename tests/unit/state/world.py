"""A world for the machine to live in: clients' inboxes, an engine that does what it is told, a clock by hand.

The engine is a model of the link's contract, not of llama.cpp: it takes a budget
at once and reports it (``EngineModel.auto``) or when the test says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from xlm.protocol import link, messages
from xlm.protocol.images import upload_key
from xlm_broker.image_store import ImageStore
from xlm_broker.planner import PriorityPlanner
from xlm_broker.state import actions, events
from xlm_broker.state.machine import Machine
from xlm_broker.state.ports import Planner
from xlm_broker.state.settings import MS, BudgetSettings, Limits, MachineSettings, Timing

MIB = 1 << 20
CARD = 256 * MIB
M = TypeVar("M", bound=messages.Message)
E = TypeVar("E", bound=link.ToEngine)
A = TypeVar("A")


def model_facts(n_layer: int = 8, layer_bytes: int = 4 * MIB) -> link.ModelFacts:
    """Per layer: attention of 1/4 with 1 MiB of KV, FFN of 3/4; a small group and an output matrix."""
    subs = [link.SubLayer(index=0, layer=-1, kind="small", device_bytes=64 << 10)]
    for layer in range(n_layer):
        quarter = layer_bytes // 4
        subs.append(_sub(len(subs), layer, "attention", quarter, kv_bytes=MIB))
        subs.append(_sub(len(subs), layer, "ffn", 3 * quarter))
    subs.append(_sub(len(subs), -1, "output", 2 * layer_bytes))
    scratch = {1: 256 << 10, 64: 4 * MIB}
    return link.ModelFacts(name="tiny", sublayers=subs, n_ctx=1024, n_ubatch=64, scratch_bytes=scratch, n_vocab=1000)


def _sub(index: int, layer: int, kind: link.Kind, size: int, kv_bytes: int = 0) -> link.SubLayer:
    return link.SubLayer(
        index=index, layer=layer, kind=kind, device_bytes=size, kv_bytes=kv_bytes, largest_piece_bytes=size // 2
    )


def settings(**changes: Any) -> MachineSettings:
    """A sim card of 256 MiB, no headroom, budget "fixed" without a size: all of it."""
    base = MachineSettings(
        device=link.DeviceConfig(kind="sim", sim=link.SimConfig(vram_bytes=CARD)),
        model=link.ModelConfig(path="model.gguf", n_ctx=1024),
        id_seed=b"seed",
    )
    return replace(base, **changes)


@dataclass
class EngineModel:
    """What a good engine holds and says. ``auto``: confirms budgets and schedules in the same instant."""

    auto: bool = True
    device: link.DeviceFacts = field(default_factory=lambda: link.DeviceFacts(kind="sim", total_bytes=CARD))
    model: link.ModelFacts = field(default_factory=model_facts)
    budget_bytes: int = 0
    used_bytes: int = 0
    unconfirmed: list[link.SetEngineBudget] = field(default_factory=list)
    generating: dict[int, link.Generate] = field(default_factory=dict)
    schedule: link.Schedule | None = None
    steps: int = 0
    hangs: bool = False  # its decode thread only: the link's goes on to report

    def take(self, message: link.ToEngine) -> list[link.FromEngine]:
        match message:
            case link.SetEngineBudget():
                self.unconfirmed.append(message)
                return self.confirm() if self.auto else []
            case link.SetSchedule():
                self.schedule = message.schedule
                self.fill()
                return [link.ScheduleApplied(schedule_id=message.schedule.schedule_id)] if self.auto else []
            case link.Generate():
                self.generating[message.gen_id] = message
            case link.Start():
                return [link.Loaded(model=self.model, device=self.device)] if self.auto else []
            case link.CancelGeneration():
                return self.finish(message.gen_id, "cancelled") if self.auto else []
        return []

    def confirm(self) -> list[link.FromEngine]:
        """Brings the oldest order into force."""
        if not self.unconfirmed:
            return []
        order = self.unconfirmed.pop(0)
        self.budget_bytes = order.budget_bytes
        self.fill()
        return [self.released(order.seq)]

    def fill(self) -> None:
        wanted = self.schedule.resident_bytes + self.schedule.reserve_bytes if self.schedule is not None else 0
        self.used_bytes = min(self.budget_bytes, wanted)

    def released(self, seq: int, **changes: Any) -> link.Released:
        values = {
            "budget_bytes": self.budget_bytes,
            "used_bytes": self.used_bytes,
            "device_used_bytes": self.used_bytes,
            **changes,
        }
        return link.Released(seq=seq, **values)

    def finish(self, gen_id: int, reason: Any = "stop", delta: bytes = b"") -> list[link.FromEngine]:
        request = self.generating.pop(gen_id, None)
        if request is None:
            return []
        keep = [(0, len(request.context) // 4)]
        images = [*request.context_images, *request.images]
        return [
            link.Finished(
                gen_id=gen_id, finish_reason=reason, context_delta=delta, context_keep=keep, context_images=images
            )
        ]

    def stats(self, **changes: Any) -> link.Stats:
        schedule_id = self.schedule.schedule_id if self.schedule is not None else 0
        self.steps += not self.hangs
        fixed = {
            "steps": self.steps,
            "used_bytes": self.used_bytes,
            "device_used_bytes": self.used_bytes,
            "schedule_id": schedule_id,
        }
        values = {**fixed, **changes}
        return link.Stats(budget_bytes=self.budget_bytes, n_active=len(self.generating), **values)

    def die(self) -> None:
        self.used_bytes = self.budget_bytes = 0
        self.unconfirmed, self.generating, self.schedule = [], {}, None
        self.steps, self.hangs = 0, False


class World:
    """Drives one machine, validates it after every event, keeps what everyone got."""

    def __init__(self, planner: Planner | None = None, **changes: Any) -> None:
        self.machine = Machine(settings(**changes), planner or PriorityPlanner())
        self.engine = EngineModel()
        self.now_ns = 1_000_000_000
        self.inbox: dict[bytes, list[messages.Message]] = {}
        self.to_engine: list[link.ToEngine] = []
        self.done: list[actions.Action] = []  # everything
        self.unreachable: set[bytes] = set()  # peers that closed their connection without a word
        self.incarnation = 0
        self.images = ImageStore()
        self.parts: list[link.ImagePart] = []  # sent to the engine
        self._ids = 100

    # -- driving --------------------------------------------------------------------

    def handle(self, event: events.Event) -> list[actions.Action]:
        """One event, and whatever the engine answers to its actions at once."""
        made = self.machine.handle(event, self.now_ns)
        self.machine.validate()
        self.done += made
        for action in made:
            self._perform(action)
        return made

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.SendClient():
                self.inbox.setdefault(action.client, []).append(action.message)
            case actions.SpawnEngine():
                self.incarnation = action.incarnation
            case actions.SendEngine():
                self.to_engine.append(action.message)
                for answer in self.engine.take(action.message):
                    self.engine_says(answer)
            case actions.ProbeClients():
                for client in self.unreachable & {*action.clients}:
                    self.handle(events.ClientGone(client))
                self.handle(events.ClientMessage(action.client, action.hello, probed=True))
            case actions.BeginUpload():
                self.images.begin(action.upload_id, action.layout)
            case actions.StoreChunk():
                self.images.add(action.upload_id, action.data)
            case actions.EndUpload():
                good = self.images.end(action.upload_id, action.key)
                self.handle(events.ImageVerified(action.upload_id, good))
            case actions.DropUpload():
                self.images.forget_upload(action.upload_id)
            case actions.DropImage():
                self.images.drop(action.key)
            case actions.SendImagePart():
                self.parts.append(self.images.part(action.layout, action.offset, action.max_bytes))

    def engine_says(self, message: link.FromEngine) -> list[actions.Action]:
        return self.handle(events.EngineMessage(self.incarnation, message))

    def advance(self, ns: int) -> None:
        """Lets time pass as the driver does: a Tick at every deadline on the way."""
        end_ns = self.now_ns + ns
        while (due := self.machine.next_deadline_ns()) is not None and due <= end_ns:
            self.now_ns = max(self.now_ns, due)
            self.handle(events.Tick())
        self.now_ns = end_ns

    def settle(self) -> None:
        """What is due right now: the driver ticks as soon as the actions are done."""
        self.advance(0)

    # -- shortcuts ------------------------------------------------------------------

    def boot(self) -> World:
        """Broker started, model loaded."""
        self.handle(events.BrokerStarted())
        self.start_engine()
        return self

    def start_engine(self) -> None:
        self.handle(events.EngineSpawned(self.incarnation, 4711))
        self.engine_says(link.Started(pid=4711))

    def crash(self, signal: int = 9) -> list[actions.Action]:
        self.engine.die()
        return self.handle(events.EngineExited(self.incarnation, signal=signal))

    def join(self, client: bytes = b"game", name: str = "", **fields: Any) -> messages.Welcome:
        hello = messages.Hello(id=1, version_min=1, version_max=1, name=name or client.decode(), **fields)
        self.request(client, hello)
        return self.last(client, messages.Welcome)

    def request(self, client: bytes, message: messages.Request) -> list[actions.Action]:
        return self.handle(events.ClientMessage(client, message))

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def cap(self, client: bytes, size: int | None, **fields: Any) -> int:
        request_id = self.next_id()
        self.request(client, messages.SetBudget(id=request_id, cap_bytes=size, **fields))
        return request_id

    def reserve(self, client: bytes, size: int) -> int:
        request_id = self.next_id()
        self.request(client, messages.Reserve(id=request_id, bytes=size))
        return request_id

    def open(self, client: bytes = b"game", **fields: Any) -> str:
        self.request(client, messages.OpenSession(id=self.next_id(), **fields))
        return self.last(client, messages.Session).session_id

    def say(self, client: bytes, session_id: str, text: str = "hello", **fields: Any) -> int:
        request_id = self.next_id()
        self.request(client, messages.Say(id=request_id, session_id=session_id, text=text, **fields))
        return request_id

    def upload(self, client: bytes, data: bytes, **fields: Any) -> str:
        """A whole upload of an encoded image; its key."""
        begin = messages.ImageBegin(key="0" * 64, total_bytes=len(data), **fields)
        begin.key = upload_key(begin, data)
        self.image(client, begin)
        for offset in range(0, len(data), messages.IMAGE_CHUNK_BYTES):
            piece = data[offset : offset + messages.IMAGE_CHUNK_BYTES]
            self.image(client, messages.ImageChunk(key=begin.key, offset=offset, data=piece))
        self.image(client, messages.ImageEnd(key=begin.key))
        return begin.key

    def image(self, client: bytes, message: messages.Request) -> messages.Message:
        """One message of an upload, and its answer."""
        message.id = self.next_id()
        self.request(client, message)
        (answer,) = self.answers(client, message.id)
        return answer

    def ping(self, client: bytes = b"game") -> messages.Message:
        self.request(client, messages.Ping(id=self.next_id()))
        return self.inbox[client][-1]

    # -- looking --------------------------------------------------------------------

    def last(self, client: bytes, kind: type[M]) -> M:
        return next(m for m in reversed(self.inbox[client]) if isinstance(m, kind))

    def answers(self, client: bytes, request_id: int) -> list[messages.Message]:
        return [m for m in self.inbox.get(client, []) if m.id == request_id]

    def notices(self, client: bytes) -> list[str]:
        return [m.kind for m in self.inbox.get(client, []) if isinstance(m, messages.Notice)]

    def sent(self, kind: type[E]) -> list[E]:
        return [m for m in self.to_engine if isinstance(m, kind)]

    def acts(self, kind: type[A]) -> list[A]:
        return [action for action in self.done if isinstance(action, kind)]

    def status(self) -> messages.Status:
        return self.machine.status(self.now_ns)

    @property
    def effective(self) -> int:
        return int(self.status().budget["effective_bytes"])


GAME = BudgetSettings(mode="game")
SECOND = 1000 * MS
__all__ = ["CARD", "GAME", "MIB", "MS", "SECOND", "BudgetSettings", "EngineModel", "Limits", "Timing", "World"]
