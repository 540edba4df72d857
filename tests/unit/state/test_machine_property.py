"""Anything may happen, in any order: the ledger holds after each event, and every request gets one answer."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from tests.unit.state.world import CARD, GAME, MIB, MS, BudgetSettings, Limits, World
from xlm.protocol import link, messages
from xlm.protocol.images import upload_key
from xlm_broker.planner import PriorityPlanner
from xlm_broker.state import actions, events

CLIENTS = st.sampled_from([b"a", b"b", b"c", b"d"])
SIZES = st.sampled_from([0, 1, MIB, 9 * MIB, 40 * MIB, CARD // 2, CARD, CARD * 13 // 10, messages.MAX_BYTES])
BUDGETS = st.sampled_from([GAME, BudgetSettings(headroom_bytes=8 * MIB), BudgetSettings(fixed_bytes=50 * MIB)])
MODEL = link.ModelConfig(path="model.gguf", n_ctx=1024, mmproj="projector.gguf")
PICTURES = [bytes([number]) * number for number in (7, 12, 20, 33, 41)]  # the last one is over the limit
TERMINAL = (
    messages.Lease,
    messages.Error,
    messages.Done,
    messages.Ok,
    messages.Pong,
    messages.Session,
    messages.Welcome,
    messages.Status,
    messages.Image,
)


class Everything(RuleBasedStateMachine):
    """Up to four games against a limit of three, one engine that obeys late, dies and comes back."""

    @initialize(budget=BUDGETS, loaded=st.sampled_from([True, True, True, False]), finds=st.booleans())
    def start(self, budget: BudgetSettings, loaded: bool, finds: bool) -> None:
        limits = Limits(
            max_clients=3,
            max_sessions=3,
            max_client_sessions=2,
            max_answers=3,
            max_budget_requests=4,
            max_outbox=12,
            max_image_bytes=40,
            max_images_per_say=2,
            max_client_image_bytes=64,
            max_uploads=2,
            max_image_store_bytes=96,
        )
        self.world = World(budget=budget, limits=limits, model=MODEL, find_plans=finds)
        self.world.engine.auto = False
        self.asked: dict[int, bytes] = {}  # request id -> client
        self.excused: set[int] = set()  # its client's lease ended before the answer
        self.lease: dict[bytes, str] = {}
        self.sessions: dict[str, bytes] = {"session-nobody": b"a"}
        self.seen = 0
        self.rude: set[bytes] = set()
        self.world.handle(events.BrokerStarted())
        for client in (b"a", b"b"):
            self.hello(client, False, 1, False)
            self._open(client, "")
        for _ in range(2 if loaded else 0):
            self.engine_comes("")

    # -- clients --------------------------------------------------------------------

    def ask(self, client: bytes, message: messages.Request) -> None:
        """Sends as the SDK does: a client whose lease is gone first says HELLO. ``rude`` ones do not."""
        if not isinstance(message, messages.Hello) and client not in self.rude and not self.connected(client):
            self.hello(client, False, 1, False)
        self._send(client, message)

    def connected(self, client: bytes) -> bool:
        return client.decode() in [entry["name"] for entry in self.world.status().clients]

    def _send(self, client: bytes, message: messages.Request) -> None:
        message.id = self.world.next_id()
        self.asked[message.id] = client
        self.world.request(client, message)

    @rule(client=CLIENTS, known=st.booleans(), high=st.sampled_from([1, 7]), moved=st.booleans())
    def hello(self, client: bytes, known: bool, high: int, moved: bool) -> None:
        lease = self.lease.get(client, "") if known else ""
        identity = client + b"2" if moved and known else client
        name = client.decode()
        self.ask(identity, messages.Hello(version_min=1, version_max=high, name=name, lease_id=lease))
        answer = self.world.inbox.get(identity, [None])[-1]
        if isinstance(answer, messages.Welcome):
            self.lease[client] = answer.lease_id

    @rule(client=CLIENTS)
    def ping(self, client: bytes) -> None:
        self.ask(client, messages.Ping())

    @rule(client=CLIENTS, size=st.none() | SIZES, require=st.sampled_from(["any", "any", "device"]))
    def cap(self, client: bytes, size: int | None, require: str) -> None:
        self.ask(client, messages.SetBudget(cap_bytes=size, require="device" if require == "device" else "any"))

    @rule(client=CLIENTS, size=SIZES)
    def reserve(self, client: bytes, size: int) -> None:
        self.ask(client, messages.Reserve(bytes=size))

    @rule(client=CLIENTS)
    def loses_its_manners(self, client: bytes) -> None:
        self.rude ^= {client}

    @rule(client=CLIENTS, data=st.data())
    def open(self, client: bytes, data: st.DataObject) -> None:
        self._open(client, data.draw(st.sampled_from(["", "", *list(self.sessions)[-3:]])))

    def _open(self, client: bytes, resume: str) -> None:
        self.ask(client, messages.OpenSession(resume=resume))
        answer = self.world.inbox.get(client, [None])[-1]
        if isinstance(answer, messages.Session):
            self.sessions[answer.session_id] = client

    @rule(data=st.data(), stranger=st.sampled_from([b"", b"", b"", b"c"]))
    def say(self, data: st.DataObject, stranger: bytes) -> None:
        self.ask(stranger or b"a", messages.Ping())
        session, owner = data.draw(st.sampled_from(list(self.sessions.items())[-4:]))
        if session not in [entry["session_id"] for entry in self.world.status().sessions]:
            self._open(owner, "")
            session = list(self.sessions)[-1]
        keys = data.draw(st.lists(st.sampled_from([key_of(data) for data in PICTURES]), max_size=3))
        self.ask(stranger or owner, messages.Say(session_id=session, text="hi", images=keys))

    @rule(client=CLIENTS, data=st.sampled_from(PICTURES), cut=st.integers(0, 41), wrong=st.booleans())
    def upload(self, client: bytes, data: bytes, cut: int, wrong: bool) -> None:
        """In two pieces; ``wrong``: other bytes than the key's. A cut at the end is one piece and an empty rest."""
        key = key_of(data)
        self.ask(client, messages.ImageBegin(key=key, total_bytes=len(data)))
        sent = data[::-1][:-1] + b"x" if wrong else data
        for offset, piece in ((0, sent[:cut]), (cut, sent[cut:])):
            if piece:
                self.ask(client, messages.ImageChunk(key=key, offset=offset, data=piece))
        self.ask(client, messages.ImageEnd(key=key))

    @rule(client=CLIENTS, data=st.sampled_from(PICTURES), what=st.sampled_from(["begin", "chunk", "end"]))
    def half_an_upload(self, client: bytes, data: bytes, what: str) -> None:
        key = key_of(data)
        if what == "begin":
            self.ask(client, messages.ImageBegin(key=key, total_bytes=len(data)))
        elif what == "chunk":
            self.ask(client, messages.ImageChunk(key=key, offset=3, data=data))
        else:
            self.ask(client, messages.ImageEnd(key=key))

    @rule(data=st.sampled_from(PICTURES), offset=st.integers(-3, 50))
    def wanted(self, data: bytes, offset: int) -> None:
        self.world.engine_says(link.WantImage(key=key_of(data), offset=offset, max_bytes=5))

    @rule(data=st.data(), pieces=st.integers(0, 3), end=st.booleans())
    def whole_turn(self, data: st.DataObject, pieces: int, end: bool) -> None:
        self.say(data, b"")
        self.engine_comes("")
        self.engine_comes("")
        for _ in range(pieces):
            self.generated(data, "piece")
        if end:
            self.generated(data, "stop")

    @rule(data=st.data(), stranger=st.sampled_from([b"", b"", b"", b"c"]))
    def close(self, data: st.DataObject, stranger: bytes) -> None:
        session, owner = data.draw(st.sampled_from(list(self.sessions.items())[-4:]))
        self.ask(stranger or owner, messages.CloseSession(session_id=session))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        say = data.draw(st.sampled_from(sorted(self.asked)[-6:]))
        self.world.request(self.asked[say], messages.Cancel(id=0, say_id=say))

    @rule(client=CLIENTS)
    def status(self, client: bytes) -> None:
        self.ask(client, messages.GetStatus())

    @rule(client=CLIENTS)
    def goodbye(self, client: bytes) -> None:
        self.ask(client, messages.Goodbye())

    @rule(client=CLIENTS)
    def gone(self, client: bytes) -> None:
        self.world.handle(events.ClientGone(client))

    @rule(client=CLIENTS)
    def stalled(self, client: bytes) -> None:
        self.world.handle(events.SendStalled(client))

    @rule(client=CLIENTS)
    def drained(self, client: bytes) -> None:
        self.world.handle(events.SendDrained(client))

    # -- engine ---------------------------------------------------------------------

    @property
    def phase(self) -> str:
        return str(self.world.status().engine["phase"])

    @rule(failure=st.sampled_from(["", "", "", "", "", "device_out_of_memory", "model_truncated"]))
    def engine_comes(self, failure: str) -> None:
        engine = self.world.engine
        if self.phase == "spawning":
            self.world.engine_says(link.Started(pid=1))
        elif failure and self.phase == "loading":
            self.world.engine_says(link.Failed(code=failure, message="bad luck"))
        elif self.phase == "loading":
            self.world.engine_says(link.Loaded(model=engine.model, device=engine.device))

    @rule()
    def confirm(self) -> None:
        for message in self.world.engine.confirm():
            self.world.engine_says(message)

    @rule(slow=st.booleans())
    def half_confirm(self, slow: bool) -> None:
        """A release that is not complete, or whose counters say otherwise."""
        if self.world.engine.unconfirmed:
            seq = self.world.engine.unconfirmed[0].seq
            lie = {"completed": False} if slow else {"device_used_bytes": CARD}
            self.world.engine_says(self.world.engine.released(seq, **lie))

    @rule(ok=st.booleans())
    def applied(self, ok: bool) -> None:
        if self.world.engine.schedule is not None:
            schedule_id = self.world.engine.schedule.schedule_id
            self.world.engine_says(link.ScheduleApplied(schedule_id=schedule_id, ok=ok))

    @rule(data=st.data(), how=st.sampled_from(["piece", "piece", "stop", "failed", "cancelled"]))
    def generated(self, data: st.DataObject, how: str) -> None:
        running = self.world.engine.generating
        if not running:
            return
        gen_id = data.draw(st.sampled_from(sorted(running)))
        if how == "piece":
            self.world.engine_says(link.Piece(gen_id=gen_id, text="x", token_ids=[1]))
        elif how == "failed":
            del running[gen_id]
            self.world.engine_says(link.GenerationFailed(gen_id=gen_id, code="context_overflow", message=""))
        else:
            for message in self.world.engine.finish(gen_id, how, b"\1\0\0\0"):
                self.world.engine_says(message)

    @rule(lost=st.booleans(), rate=st.sampled_from([0.0, 1.0, 50.0]))
    def stats(self, lost: bool, rate: float) -> None:
        self.world.engine_says(self.world.engine.stats(device_lost=lost, tokens_per_s=rate))

    @precondition(lambda self: self.phase != "down")
    @rule(signal=st.sampled_from([0, 6, 9]), comes_back=st.booleans())
    def crash(self, signal: int, comes_back: bool) -> None:
        self.world.crash(signal)
        if comes_back:
            self.time_passes(5000, True)
            self.engine_comes("")
            self.engine_comes("")

    @rule(hangs=st.booleans())
    def stands_still(self, hangs: bool) -> None:
        self.world.engine.hangs = hangs

    @rule()
    def another_file(self) -> None:
        self.world.handle(events.ModelFileChanged())

    # -- the rest -------------------------------------------------------------------

    @rule(foreign=st.none() | SIZES)
    def report(self, foreign: int | None) -> None:
        total = CARD if foreign is not None else None
        self.world.handle(events.DeviceReport("nvml", total_bytes=total, foreign_bytes=foreign))

    @rule(ms=st.sampled_from([0, 1, 150, 900, 2500]), pings=st.sampled_from([True, True, True, False]))
    def time_passes(self, ms: int, pings: bool) -> None:
        self.world.advance(ms * MS)
        if pings:  # all is well meanwhile
            self.ping(b"a")
            self.ping(b"b")
            while self.world.engine.unconfirmed:
                self.confirm()

    @rule(data=st.data(), final=st.booleans(), how=st.sampled_from(["well", "well", "over", "short", "fails"]))
    def plan_found(self, data: st.DataObject, final: bool, how: str) -> None:
        """For the last request or an old one; as it should be, over its budget, of another model, or not at all."""
        wanted = [action for action in self.world.done if isinstance(action, actions.FindPlan)]
        if not wanted:
            return
        request = data.draw(st.sampled_from(wanted[-3:]))
        found = PriorityPlanner().plan(request.model, request.device, request.budget_bytes, schedule_id=0)
        wrong: dict[str, Any] = {"over": {"resident_bytes": request.budget_bytes + 1}, "short": {"tiers": []}}
        made = None if how == "fails" else replace(found, **wrong.get(how, {}))
        self.world.handle(events.Planned(request.request_id, made, final))

    @rule(client=CLIENTS, seconds=st.sampled_from([9, 70]))
    def long_time_passes(self, client: bytes, seconds: int) -> None:
        """All leases end but one."""
        for _ in range(seconds):
            self.world.advance(1000 * MS)
            self.ping(client)

    # -- what always holds -------------------------------------------------------------

    @invariant()
    def ledger(self) -> None:
        world = self.world
        world.machine.validate()
        assert 0 <= world.effective <= CARD
        vision = world.status().vision
        assert world.images.held_bytes <= vision["image_bytes"] <= 96
        assert all(0 <= m.budget_bytes <= CARD for m in world.sent(link.SetEngineBudget))
        for action in world.done[self.seen :]:
            self._check(action)
        self.seen = len(world.done)

    def _check(self, action: actions.Action) -> None:
        if isinstance(action, actions.ForgetClient):
            self.excused |= {rid for rid, client in self.asked.items() if client == action.client}
        elif isinstance(action, actions.SendClient) and isinstance(action.message, messages.Lease):
            lease = action.message
            assert max(lease.used_bytes, lease.device_used_bytes) <= lease.granted_bytes <= CARD
        elif isinstance(action, actions.SendEngine) and isinstance(action.message, link.SetSchedule):
            schedule = action.message.schedule
            assert schedule.resident_bytes + schedule.reserve_bytes <= schedule.budget_bytes <= CARD

    @invariant()
    def never_two_answers(self) -> None:
        assert all(len(found) <= 1 for found in self.answers().values())

    def answers(self) -> dict[int, list[messages.Message]]:
        found: dict[int, list[messages.Message]] = {request_id: [] for request_id in self.asked}
        for inbox in self.world.inbox.values():
            for message in inbox:
                if message.id and isinstance(message, TERMINAL):
                    found[message.id].append(message)
        return found

    def teardown(self) -> None:
        """All's well from now on: an honest engine, a network that flows. Then nothing may be left open."""
        if not hasattr(self, "world"):
            return
        self.calm()
        self.ledger()
        assert not self.open_requests()
        status = self.world.status()
        assert not any(client["pending"] for client in status.clients)
        assert not any(session["answering"] for session in status.sessions)
        self.streams_are_whole()

    def open_requests(self) -> set[int]:
        return {rid for rid, found in self.answers().items() if not found} - self.excused

    def calm(self) -> None:
        world = self.world
        for _ in range(200):
            for client in [c + suffix for c in (b"a", b"b", b"c", b"d") for suffix in (b"", b"2")]:
                world.handle(events.SendDrained(client))
            if self.phase in ("spawning", "loading"):
                self.engine_comes("")
            if self.phase in ("killing", "failed", "stopping") and world.incarnation:
                world.crash()
            self.honest_engine()
            if self.phase in ("ready", "failed") and not self.open_requests():
                return
            world.advance(50 * MS)

    def honest_engine(self) -> None:
        world = self.world
        while world.engine.unconfirmed:
            for message in world.engine.confirm():
                world.engine_says(message)
        for gen_id in list(world.engine.generating):
            for message in world.engine.finish(gen_id, "stop", b""):
                world.engine_says(message)
        world.engine_says(world.engine.stats())

    def streams_are_whole(self) -> None:
        """TOKENS of an answer count from 0 without a gap, in one inbox."""
        for inbox in self.world.inbox.values():
            next_seq: dict[int, int] = {}
            for message in inbox:
                if isinstance(message, messages.Tokens):
                    assert message.seq == next_seq.get(message.id, 0)
                    next_seq[message.id] = message.seq + 1


def key_of(data: bytes) -> str:
    return upload_key(messages.ImageBegin(key="0" * 64, total_bytes=len(data)), data)


Everything.TestCase.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestEverything = Everything.TestCase
