"""The broker as a process, with a child that answers canned tokens: everything but the model is real."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq
from broker_rig import DEADLINE_S, Broker, RawClient, connected, eventually, running
from fake_engine import answer_token

from tests.support.processes import ended
from xlm.protocol import codec, messages
from xlm.testing import FakeBroker

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

HERE = Path(__file__).parent
LEAK_BYTES = 32 << 10  # a client that leaves so much behind is a leak


# -- the ordinary day -----------------------------------------------------------------


def test_says_and_tells_its_state(short_path: Path) -> None:
    with running(short_path, "--budget-from-game") as broker:
        ready = broker.ready()
        assert ready["error"] is None
        assert ready["pid"] == broker.process.pid
        assert ready["model"]["name"] == "fake"
        with connected(broker) as client:
            session = client.open_session()
            tokens, text = client.say(session, "Hello", max_tokens=5)
            assert tokens == [answer_token(b"", "Hello", index) for index in range(5)]
            assert text == "".join(f"t{token} " for token in tokens)
            lease = client.ask(messages.SetBudget(cap_bytes=4 << 20, deadline_ms=1000.0), messages.Lease)
            assert lease.granted_bytes == 4 << 20
            assert lease.used_bytes <= 4 << 20
            status = client.status()
            assert status.engine["state"] == "ready"
            assert status.throughput["reclaim"]["count"] == 1
            assert status.broker["pid"] == broker.process.pid
            assert 0 < status.broker["rss_bytes"] == pytest.approx(broker.rss_bytes(), rel=0.5)


def test_the_fake_broker_of_the_sdk_tells_the_same_state(short_path: Path) -> None:
    with running(short_path) as broker, FakeBroker() as fake:
        broker.ready()
        assert _keys(_state_of(fake.endpoint)) == _keys(_state_of(broker.endpoint))


def _state_of(endpoint: str) -> dict[str, Any]:
    client = RawClient(endpoint)
    try:
        client.hello()
        client.ask(messages.SetBudget(cap_bytes=64 << 20), messages.Lease)
        client.say(client.open_session(), "hello")
        state: dict[str, Any] = msgspec.to_builtins(client.status())
        state.pop("cause", None)  # of the request, not of the state
        return state
    finally:
        client.close()


OPEN_MAPS = {"versions", "os_report", "profile"}  # whose keys are of the machine


def _keys(value: Any) -> Any:
    """Keys all the way down; of a list those of its first entry."""
    if isinstance(value, list):
        return [_keys(one) for one in value[:1]]
    if not isinstance(value, dict):
        return None
    return {key: None if key in OPEN_MAPS else _keys(one) for key, one in value.items()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ends_clean(short_path: Path, number: int) -> None:
    with running(short_path) as broker:
        broker.ready()
        children = [child.pid for child in broker.children()]
        assert children
        with connected(broker) as client:
            client.open_session()
            broker.process.send_signal(number)
            assert client.wait_kind(messages.Notice).kind == "shutdown"
            assert broker.stop(number) == 0
        assert all(ended(pid) for pid in children)
        left = [path for path in short_path.rglob("*") if path.is_socket() or path.suffix == ".lock"]
        assert left == []
        assert not broker.ready_file.exists()
        assert list((short_path / "x" / "xlm").glob("engine-*")) == []


def test_sockets_are_private(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        folder = short_path / "s"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "b.sock").stat().st_mode) == 0o600
        links = list((short_path / "x" / "xlm").glob("engine-*"))
        assert [stat.S_IMODE(link.stat().st_mode) for link in links] == [0o700]


def test_second_broker_is_refused_in_one_line_and_the_first_lives(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        second = subprocess.run(
            broker.command, env=broker.environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert second.returncode == 3
        assert "endpoint_in_use" in second.stderr
        assert str(broker.process.pid) in second.stderr
        assert "Traceback" not in second.stderr
        with connected(broker) as client:
            assert client.status().engine["state"] == "ready"


def test_killed_broker_leaves_no_engine_and_nothing_to_clean(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        children = [child.pid for child in broker.children()]
        broker.stop(signal.SIGKILL)
        eventually(lambda: all(ended(pid) for pid in children), "the engine ends with its broker")
        assert (short_path / "s" / "b.sock").exists()
        broker.restart()
        eventually(lambda: broker.ready()["pid"] == broker.process.pid, "the new broker's ready-file")
        with connected(broker) as client:
            assert len(client.say(client.open_session(), "again")[0]) == 8


def test_any_tcp_port_and_curve(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (short_path / "model.gguf").touch()
    broker = Broker(short_path, "--curve", endpoint="tcp://127.0.0.1:*")
    try:
        endpoint = broker.ready()["endpoint"]
        key_file = short_path / "x" / "xlm" / "curve" / "server.key"
        assert stat.S_IMODE(key_file.with_name("server.key_secret").stat().st_mode) == 0o600
        assert _hello_over_tcp(endpoint, key_file.read_text().strip().encode(), int(DEADLINE_S * 1000))
        assert not _hello_over_tcp(endpoint, None)
        assert not _hello_over_tcp(endpoint, zmq.curve_keypair()[0])
    finally:
        broker.stop()


def _hello_over_tcp(endpoint: str, server_key: bytes | None, timeout_ms: int = 300) -> bool:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    if server_key is not None:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = server_key
    socket.connect(endpoint)
    try:
        socket.send(codec.encode(messages.Hello(version_min=1, version_max=1, name="tcp")))
        return bool(socket.poll(timeout_ms))
    finally:
        socket.close()


# -- the engine dies --------------------------------------------------------------------


def test_engine_killed_in_mid_answer_is_replayed(short_path: Path) -> None:
    with running(short_path, FAKE_TOKEN_MS="10") as broker:
        broker.ready()
        with connected(broker) as client:
            session = client.open_session()
            first, _ = client.say(session, "first", max_tokens=4)
            say_id = client.send(messages.Say(session_id=session, text="second", max_tokens=30))
            seen = client.wait(lambda got: got.id == say_id)
            assert isinstance(seen, messages.Tokens)
            client.kept.insert(0, seen)
            os.kill(client.status().engine["pid"], signal.SIGKILL)
            assert client.wait_kind(messages.Notice).kind == "engine_restarting"
            tokens, _ = client.collect(say_id)
            context = _context("first", first)
            assert tokens == [answer_token(context, "second", index) for index in range(30)]
            third, _ = client.say(session, "third", max_tokens=4)
            context += _context("second", tokens)
            assert third == [answer_token(context, "third", index) for index in range(4)]


def _context(text: str, tokens: list[int]) -> bytes:
    import struct
    import zlib

    return struct.pack(f"<{len(tokens) + 1}i", zlib.crc32(text.encode()) % 50_000, *tokens)


def test_five_deaths_in_a_row_are_given_up_and_said(short_path: Path) -> None:
    with running(short_path, FAKE_ENGINE_MODE="dies") as broker:
        error = broker.ready()["error"]
        assert error["code"] == "engine_failed"
        with connected(broker) as client:
            status = client.status()
            assert status.engine["state"] == "failed"
            session = client.ask(messages.OpenSession(), messages.Session).session_id
            say_id = client.send(messages.Say(session_id=session, text="anyone?"))
            assert client.wait_kind(messages.Error, say_id).code == "engine_failed"
        assert "GGML_ASSERT" in broker.log()


def test_a_model_fault_is_told_and_tried_again_when_the_file_changes(short_path: Path) -> None:
    with running(short_path, FAKE_ENGINE_MODE="fails") as broker:
        assert broker.ready()["error"]["code"] == "model_bad_magic"
        with connected(broker) as client:
            before = client.status().engine["pid"], len(_spawns(broker))
            (short_path / "model.gguf").write_bytes(b"another file")
            eventually(lambda: len(_spawns(broker)) > before[1], "a new try")
            assert client.status().engine["state"] != "ready"


def _spawns(broker: Broker) -> list[dict[str, Any]]:
    return [event for event in broker.events() if "exited" in event["event"]]


# -- what NVML says -----------------------------------------------------------------------


def fake_nvml(arguments: str) -> str:
    folder = HERE.parents[1] / "unit" / "broker"
    return (
        f"import sys; sys.path.append({str(folder)!r}); from nvml_fakes import FakePynvml\n"
        f"sys.modules['pynvml'] = FakePynvml({arguments})"
    )


def test_memory_taken_by_other_programs_lowers_the_budget(short_path: Path) -> None:
    patch = fake_nvml("total=256 << 20, free=100 << 20")
    with running(short_path, "--device", "cuda", "--headroom", "10MiB", patch=patch) as broker:
        broker.ready()
        with connected(broker) as client:
            eventually(lambda: 0 < client.status().budget["effective_bytes"] <= 100 << 20, "the budget follows NVML")


@pytest.mark.parametrize("arguments", ["total='N/A', free='N/A'", "error='Not Supported'", "init_error='no driver'"])
def test_a_driver_that_does_not_tell_is_lived_with(short_path: Path, arguments: str) -> None:
    with running(short_path, "--device", "cuda", "--headroom", "0", patch=fake_nvml(arguments)) as broker:
        assert broker.ready()["error"] is None
        eventually(lambda: "nvml_failed" in broker.log(), "said in the log")
        with connected(broker) as client:
            assert client.status().budget["effective_bytes"] == 256 << 20
        assert len([event for event in broker.events() if event["event"] == "nvml_failed"]) == 1


# -- clients die, freeze, or talk nonsense ------------------------------------------------


CAPPED = """
import sys, time
from broker_rig import RawClient
from xlm.protocol import messages
client = RawClient(sys.argv[1], name="doomed")
client.hello()
client.ask(messages.SetBudget(cap_bytes=1 << 20), messages.Lease)
print("ready", flush=True)
while True:
    client.ping()
    time.sleep(0.05)
"""

TALKING = """
import sys, time
from broker_rig import RawClient
from xlm.protocol import messages
client = RawClient(sys.argv[1], name="frozen")
client.hello()
for number in range(4):
    client.send(messages.Say(session_id=client.open_session(), text=f"x{number}", max_tokens=10_000))
client.wait_kind(messages.Tokens)
print("ready", flush=True)
time.sleep(600)
"""


def game(broker: Broker, code: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", code, broker.endpoint],
        env=broker.environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def test_killed_game_loses_its_lease(short_path: Path) -> None:
    with running(short_path, "--budget-from-game", "--heartbeat-ms", "2000") as broker:
        broker.ready()
        child = game(broker, CAPPED)  # first: a raw client sends no heartbeats while it waits for a process to start
        with connected(broker) as client:
            client.ask(messages.SetBudget(cap_bytes=6 << 20), messages.Lease)
            assert client.status().budget["effective_bytes"] == 1 << 20
            child.kill()
            child.wait()
            eventually(lambda: client.status().budget["effective_bytes"] == 6 << 20, "its cap ends with it")
            assert [entry["name"] for entry in client.status().clients] == ["test"]


def test_frozen_client_costs_bounded_memory_and_nobody_elses_time(short_path: Path) -> None:
    """It stops reading at the start of four answers of 40 MB each.

    May stay: what libzmq queues for it (64 frames), for the lively one and from the engine (512 messages), about
    3 MB in all, the outbox of 1 MB, 160 kB of token ids, and what the allocator makes of that.
    """
    with running(short_path, FAKE_TOKEN_MS="0", FAKE_PIECE_BYTES="4000") as broker:
        broker.ready()
        child = game(broker, TALKING)
        try:
            child.send_signal(signal.SIGSTOP)
            with connected(broker, "lively") as client:
                session = client.open_session()
                before = broker.rss_bytes()
                for _ in range(4):
                    assert len(client.say(session, "go on", max_tokens=500)[0]) == 500
                eventually(lambda: not client.status().broker["answers_in_progress"], "the frozen one's answers end")
                assert client.status().broker["queued_bytes"] <= 1 << 20
                assert broker.rss_bytes() - before < 48 << 20  # a third of the answers
        finally:
            child.kill()
            child.wait()


def garbage(seed: int) -> list[bytes]:
    """Frames no client would send; the same for the same seed."""
    dice = random.Random(seed)
    valid = codec.encode(messages.SetBudget(id=5, cap_bytes=1, deadline_ms=1.0))
    bent = bytearray(valid)
    bent[dice.randrange(len(bent))] ^= 1 << dice.randrange(8)
    return [
        dice.randbytes(dice.randrange(200)),
        bytes(bent),
        valid[: dice.randrange(len(valid))],
        b"\x81\xa1t\xa5hello",
        b"\x82\xa1t\xa9no_such_t\xa2id\x07",
        b"\x82\xa1t\xaaset_budget\xa9cap_bytes\xff",
        b"\x83\xa1t\xaaset_budget\xa9cap_bytes\xc0\xabdeadline_ms\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
        b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff",
        b"",
    ]


def test_garbage_is_refused_and_hurts_nobody(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        with connected(broker, "good") as good, connected(broker, "bad") as bad:
            session = good.open_session()
            expected = good.say(good.open_session(), "same", max_tokens=8)
            for seed in range(30):
                for frame in garbage(seed):
                    bad.send_raw(frame)
                bad.send_raw(b"two", b"frames")
            bad.send_raw(bytes((1 << 20) + 1))
            assert good.say(session, "same", max_tokens=8) == expected
            bad.send_raw(b"\x82\xa1t\xa9no_such_t\xa2id\xcd\x30\x39")
            refused = bad.wait(lambda got: got.id == 12345)
            assert isinstance(refused, messages.Error)
            assert refused.code == "unknown_type"
            codes = {error.code for error in bad.kept if isinstance(error, messages.Error)}
            assert codes <= {"bad_request", "unknown_type", "frame_too_large", "lease_expired"}
            assert {"bad_request", "unknown_type", "frame_too_large"} <= codes
            assert "machine_failed" not in broker.log()
            assert "Traceback" not in broker.log()
            assert bad.status().engine["state"] == "ready"


def test_a_frame_far_too_large_ends_only_its_own_connection(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        with connected(broker, "good") as good, connected(broker, "huge") as huge:
            huge.send_raw(bytes(8 << 20))
            session = good.open_session()
            assert len(good.say(session, "still here?")[0]) == 8
            assert broker.rss_bytes() < 200 << 20


def test_later_versions_and_unknown_keys(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        client = RawClient(broker.endpoint)
        try:
            client.send(messages.Hello(version_min=98, version_max=99, name="future"))
            assert client.wait_kind(messages.Error).code == "protocol_version"
            client.send_raw(
                b"\x86\xa1t\xa5hello\xa2id\x2a\xabversion_min\x01\xabversion_max\x63\xa4name\xa1x\xa7novelty\xc3"
            )
            assert client.wait_kind(messages.Welcome, 42).version == 1
        finally:
            client.close()


def test_requests_before_hello_are_refused(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        client = RawClient(broker.endpoint)
        try:
            request_id = client.send(messages.GetStatus())
            assert client.wait_kind(messages.Error, request_id).code == "not_connected"
        finally:
            client.close()


def test_many_clients_come_and_go_without_a_leak(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        sizes = [_rss_after_visits(broker, 60) for _ in range(4)]
        # A leak shows in each round, what the allocator keeps of a burst in one.
        assert min(after - before for before, after in pairwise(sizes)) < 60 * LEAK_BYTES
        with connected(broker) as client:
            assert [entry["name"] for entry in client.status().clients] == ["test"]


def test_sockets_closed_without_goodbye_keep_nobody_out(short_path: Path) -> None:
    with running(short_path, "--max-clients", "8", "--heartbeat-ms", "60000") as broker:
        broker.ready()
        with connected(broker, "stays") as client:
            for number in range(7):
                with connected(broker, f"left {number}"):
                    pass
            newcomers = [eventually(lambda: _admitted(broker), "room for a newcomer") for _ in range(7)]
            assert [entry["name"] for entry in client.status().clients] == ["stays", *["new"] * 7]
            refused = RawClient(broker.endpoint)
            refused.send(messages.Hello(version_min=1, version_max=1, name="one too many"))
            assert refused.wait_kind(messages.Error).code == "too_many_clients"
            for one in (refused, *newcomers):
                one.close()


def test_a_removed_socket_file_is_made_again(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        path = short_path / "s" / "b.sock"
        with connected(broker, "was here") as client:
            session = client.open_session()
            for remove in (path.unlink, lambda: shutil.rmtree(path.parent)):
                remove()
                eventually(path.exists, "the socket file is back")
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                assert len(client.say(session, "still here?")[0]) == 8
                with connected(broker, "new") as newcomer:
                    assert newcomer.status().engine["state"] == "ready"
        assert broker.stop() == 0
        assert not path.exists()


FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))"


@pytest.mark.parametrize("endpoint", ["", "tcp://127.0.0.1:*"])
def test_a_flood_of_connections_is_refused_and_survived(short_path: Path, endpoint: str) -> None:
    """libzmq would end the process for want of an open file."""
    (short_path / "model.gguf").write_bytes(b"GGUF")
    broker = Broker(short_path, endpoint=endpoint, patch=FEW_FILES)
    sockets: list[socket.socket] = []
    try:
        broker.ready()
        with connected(broker, "was here") as client:
            assert psutil.Process(broker.process.pid).rlimit(psutil.RLIMIT_NOFILE) == (200, 200)
            sockets = [_plain_connection(broker.endpoint) for _ in range(400)]
            files = psutil.Process(broker.process.pid).num_fds
            eventually(lambda: files() <= 100 and "connections_refused" in broker.log(), "the flood is shut out")
            assert len(client.say(client.open_session(), "still here?")[0]) == 8
            for one in sockets:
                one.close()
            eventually(lambda: files() <= 60, "the flood is over")
            with connected(broker, "comes later") as newcomer:
                assert newcomer.status().engine["state"] == "ready"
    finally:
        for one in sockets:
            one.close()
        broker.stop()


def _plain_connection(endpoint: str) -> socket.socket:
    """Connects and says nothing. The pause is for a broker that must be seen to refuse, not to be overrun."""
    host, _, port = endpoint.partition("://")[2].rpartition(":")
    tcp = endpoint.startswith("tcp")
    made = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
    made.connect((host, int(port)) if tcp else endpoint.partition("://")[2])
    time.sleep(0.002)
    return made


def _admitted(broker: Broker) -> RawClient | None:
    client = RawClient(broker.endpoint, name="new")
    hello = client.send(messages.Hello(version_min=1, version_max=1, name="new"))
    if isinstance(client.wait(lambda got: got.id == hello), messages.Welcome):
        return client
    client.close()
    return None


def _rss_after_visits(broker: Broker, count: int) -> int:
    for _ in range(count):
        with connected(broker, "visitor") as client:
            client.say(client.open_session(), "hi", max_tokens=2)
            client.ask(messages.Goodbye(), messages.Ok)
    return broker.rss_bytes()


# -- the broker's own faults ----------------------------------------------------------------

FAILS_ON_STATUS = """
from xlm.protocol import messages
from xlm_broker.state import events, machine
whole = machine.Machine.handle
def handle(self, event, now_ns):
    if isinstance(event, events.ClientMessage) and isinstance(event.message, messages.GetStatus):
        raise RuntimeError("a bug")
    return whole(self, event, now_ns)
machine.Machine.handle = handle
"""


def test_a_bug_met_by_one_message_is_answered_and_survived(short_path: Path) -> None:
    with running(short_path, patch=FAILS_ON_STATUS) as broker:
        broker.ready()
        with connected(broker) as client:
            request_id = client.send(messages.GetStatus(cause="c-7"))
            error = client.wait_kind(messages.Error, request_id)
            assert (error.code, error.cause, error.fault) == ("internal", "c-7", "broker")
            assert len(client.say(client.open_session(), "and now?")[0]) == 8
        failed = next(event for event in broker.events() if event["event"] == "machine_failed")
        assert "RuntimeError: a bug" in failed["exception"]


def test_a_frozen_engine_does_not_hold_up_an_impatient_shutdown(short_path: Path) -> None:
    with running(short_path) as broker:
        broker.ready()
        children = broker.children()  # the engine and the process that plans
        for child in children:
            child.send_signal(signal.SIGSTOP)
        with connected(broker) as client:
            broker.process.send_signal(signal.SIGTERM)
            assert client.wait_kind(messages.Notice).kind == "shutdown"
        time.sleep(1.1)  # a signal sooner than that counts as the same request
        assert broker.stop(signal.SIGTERM) == 0
        eventually(lambda: all(ended(child) for child in children), "the kernel has ended both")


def test_a_closed_log_does_not_stop_the_broker(short_path: Path) -> None:
    """``xlm-broker | head`` and a full disk: lines are lost, nothing else."""
    with running(short_path, "--log-level", "debug", "--log-file", "/dev/full") as broker:
        broker.ready()
        with connected(broker) as client:
            assert len(client.say(client.open_session(), "hello")[0]) == 8


def test_a_ready_file_in_no_folder_is_told_at_once(short_path: Path) -> None:
    with running(short_path, "--ready-file", str(short_path / "gone" / "r")) as broker:
        assert broker.process.wait(timeout=DEADLINE_S) == 2
        assert "--ready-file" in broker.log()
