"""The clients' socket: binding and its errors, back-pressure of one client, frames that are none."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket as unix_socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from xlm.errors import EndpointError
from xlm.protocol.endpoints import Endpoint, parse_endpoint
from xlm_broker.folders import prepare_folder
from xlm_broker.open_files import Doorman, _monitor, most_files, raise_file_limit
from xlm_broker.server import Server, remove_stale_socket

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="ipc sockets")

DEADLINE_S = 600.0
Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made = zmq.Context[zmq.Socket[bytes]]()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    return parse_endpoint(f"ipc://{tmp_path}/s/b.sock")


class Recorder:
    """Receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.frames: list[tuple[bytes, bytes]] = []
        self.bad: list[bytes] = []
        self.stalled: list[bytes] = []
        self.drained: list[bytes] = []
        self.gone: list[bytes] = []
        self.react: Callable[[bytes, bytes], None] = lambda client, frame: None

    def on_frame(self, client: bytes, frame: bytes) -> None:
        self.frames.append((client, frame))
        self.react(client, frame)

    def on_bad_envelope(self, client: bytes) -> None:
        self.bad.append(client)

    def on_stalled(self, client: bytes) -> None:
        self.stalled.append(client)

    def on_drained(self, client: bytes) -> None:
        self.drained.append(client)

    def on_gone(self, client: bytes) -> None:
        self.gone.append(client)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def dealer(
    context: zmq.Context[zmq.Socket[bytes]], server: Server, name: bytes = b"", receive_queue: int = 1000
) -> zmq.Socket[bytes]:
    made = context.socket(zmq.DEALER)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RCVHWM, receive_queue)
    if name:
        made.setsockopt(zmq.IDENTITY, name)
    made.connect(server.address)
    return made


async def test_probing_tells_who_has_gone_and_nothing_else(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint
) -> None:
    server, told = Server(context, endpoint), Recorder()
    server.open()
    server.start(told)
    try:
        here, left = dealer(context, server, b"here"), dealer(context, server, b"left")
        here.send(b"hello")
        left.send(b"hello")
        await until(lambda: len(told.frames) == 2)
        left.close()

        def probed() -> bool:
            server.probe(b"left", b"?")
            server.probe(b"here", b"?")
            return bool(told.gone)

        await until(probed)
        assert set(told.gone) == {b"left"}
        assert here.recv() == b"?"
        here.close()
    finally:
        server.close()


# -- binding ------------------------------------------------------------------------


def test_socket_folder_and_file_are_private(context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint) -> None:
    previous = os.umask(0)
    try:
        server = Server(context, endpoint)
        server.open()
    finally:
        os.umask(previous)
    assert endpoint.path is not None
    assert stat.S_IMODE(endpoint.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(endpoint.path.stat().st_mode) == 0o600
    server.close()
    assert list(endpoint.path.parent.iterdir()) == []


def test_second_server_on_the_endpoint_is_refused_and_the_first_lives(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint
) -> None:
    first = Server(context, endpoint)
    first.open()
    with pytest.raises(EndpointError) as caught:
        Server(context, endpoint).open()
    assert caught.value.code == "endpoint_in_use"
    assert endpoint.path is not None
    assert endpoint.path.exists()
    first.close()


def test_tcp_port_in_use(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    with unix_socket.create_server(("127.0.0.1", 0)) as other:
        endpoint = parse_endpoint(f"tcp://127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(EndpointError) as caught:
            Server(context, endpoint).open()
    assert caught.value.code == "endpoint_in_use"


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:*", "tcp://[::1]:*"])
def test_any_port_is_told(context: zmq.Context[zmq.Socket[bytes]], text: str) -> None:
    if "::1" in text and not _has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    server = Server(context, parse_endpoint(text, any_port=True))
    server.open()
    assert parse_endpoint(server.address).port > 0
    server.close()


def _has_ipv6() -> bool:
    try:
        with unix_socket.socket(unix_socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_stale_socket_of_a_killed_process_is_replaced(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint
) -> None:
    assert endpoint.path is not None
    endpoint.path.parent.mkdir(mode=0o700)
    code = "import socket,os,sys; s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(endpoint.path)], check=False)
    assert endpoint.path.exists()
    server = Server(context, endpoint)
    server.open()
    server.close()


def test_a_foreign_program_on_the_path_is_left_alone(endpoint: Endpoint) -> None:
    assert endpoint.path is not None
    endpoint.path.parent.mkdir(mode=0o700)
    with unix_socket.socket(unix_socket.AF_UNIX) as other:
        other.bind(str(endpoint.path))
        other.listen()
        with pytest.raises(EndpointError) as caught:
            remove_stale_socket(endpoint.path)
        assert caught.value.code == "endpoint_in_use"
        assert endpoint.path.exists()


def test_a_file_on_the_path_is_not_deleted(context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint) -> None:
    assert endpoint.path is not None
    endpoint.path.parent.mkdir(mode=0o700)
    endpoint.path.write_text("my thesis")
    with pytest.raises(EndpointError) as caught:
        Server(context, endpoint).open()
    assert caught.value.code == "endpoint_invalid"
    assert endpoint.path.read_text() == "my thesis"
    assert not endpoint.path.with_name("b.sock.lock").exists()


def test_a_folder_everyone_may_write_to_is_forbidden(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(EndpointError) as caught:
        prepare_folder(folder)
    assert caught.value.code == "endpoint_forbidden"
    folder.chmod(0o1777)  # like /tmp: others cannot replace our socket there
    prepare_folder(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of someone else")
def test_a_folder_of_someone_else_is_forbidden(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(EndpointError) as caught:
        prepare_folder(folder)
    assert caught.value.code == "endpoint_forbidden"


def test_a_file_in_place_of_the_folder_is_forbidden(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EndpointError) as caught:
        prepare_folder(tmp_path / "file" / "deeper")
    assert caught.value.code == "endpoint_forbidden"


# -- frames ---------------------------------------------------------------------------


async def test_echo_and_bad_envelopes(context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint) -> None:
    server, recorder = Server(context, endpoint), Recorder()
    server.open()
    recorder.react = server.send
    server.start(recorder)
    client = dealer(context, server)
    client.send_multipart([b"one", b"two"])
    client.send_multipart([b""])
    client.send(b"hello")
    await until(lambda: len(recorder.frames) == 2)
    assert len(recorder.bad) == 1
    assert [frame for _, frame in recorder.frames] == [b"", b"hello"]
    assert (client.recv(), client.recv()) == (b"", b"hello")
    server.close()


async def test_many_frames_at_once_all_arrive_in_order(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint
) -> None:
    server, recorder = Server(context, endpoint), Recorder()
    server.open()
    server.start(recorder)
    client = dealer(context, server)
    for number in range(900):
        client.send(b"%d" % number)
    await until(lambda: len(recorder.frames) == 900)
    assert [int(frame) for _, frame in recorder.frames] == list(range(900))
    server.close()


async def test_a_client_that_is_not_there_is_gone(context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint) -> None:
    server, recorder = Server(context, endpoint), Recorder()
    server.open()
    server.start(recorder)
    server.send(b"nobody", b"x")
    assert recorder.gone == [b"nobody"]
    server.close()


async def test_a_reconnect_under_the_same_name_is_served(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint
) -> None:
    server, recorder = Server(context, endpoint), Recorder()
    server.open()
    recorder.react = server.send
    server.start(recorder)
    old = dealer(context, server, b"tavern")
    old.send(b"1")
    await until(lambda: recorder.frames)
    new = dealer(context, server, b"tavern")
    new.send(b"2")
    await until(lambda: len(recorder.frames) == 2)
    assert await asyncio.to_thread(new.recv) == b"2"
    server.close()


async def test_a_client_that_does_not_read_stalls_alone_and_is_dropped_at_its_bound(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint
) -> None:
    server, recorder = Server(context, endpoint), Recorder()
    server.open()
    server.start(recorder)
    frozen, lively = dealer(context, server, b"frozen", receive_queue=1), dealer(context, server, b"lively")
    for client in (frozen, lively):
        client.send(b"hello")
    await until(lambda: len(recorder.frames) == 2)
    frame, sent = bytes(64 << 10), 0
    while not recorder.gone:
        server.send(b"frozen", frame)
        sent += 1
        assert sent < 2000
        assert server.queued_bytes <= 1 << 20
    assert set(recorder.stalled) == {b"frozen"}
    assert recorder.gone == [b"frozen"]
    assert server.queued_bytes == 0
    server.send(b"lively", b"still here")
    assert await asyncio.to_thread(lively.recv) == b"still here"
    server.close()


async def test_a_stalled_client_that_reads_again_gets_everything_in_order(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint
) -> None:
    server, recorder = Server(context, endpoint), Recorder()
    server.open()
    server.start(recorder)
    client = dealer(context, server, b"slow")
    client.send(b"hello")
    await until(lambda: recorder.frames)
    sent = 0
    while not recorder.stalled:
        server.send(b"slow", b"%06d" % sent + bytes(32 << 10))
        sent += 1
    for _ in range(5):
        server.send(b"slow", b"%06d" % sent + bytes(100))
        sent += 1
    received = await asyncio.to_thread(lambda: [client.recv() for _ in range(sent)])
    assert [int(frame[:6]) for frame in received] == list(range(sent))
    await until(lambda: recorder.drained)
    assert server.queued_bytes == 0
    server.close()


async def test_next_to_nothing_is_kept_for_a_stalled_client_that_was_forgotten(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlm_broker.server._FAREWELL_S", 1000.0)
    server, recorder = Server(context, endpoint), Recorder()
    server.open()
    server.start(recorder)
    client = dealer(context, server, b"stranger", receive_queue=1)
    client.send(b"hello")
    await until(lambda: recorder.frames)
    while not recorder.stalled:
        server.send(b"stranger", bytes(64 << 10))
    server.forget(b"stranger")
    for _ in range(10_000):
        server.send(b"stranger", bytes(1000))
    assert server.queued_bytes <= (64 + 16) << 10
    assert recorder.gone == []
    server.close()


async def test_a_farewell_to_a_frozen_client_is_given_up(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlm_broker.server._FAREWELL_S", 0.05)
    server, recorder = Server(context, endpoint), Recorder()
    server.open()
    server.start(recorder)
    client = dealer(context, server, b"frozen", receive_queue=1)
    client.send(b"hello")
    await until(lambda: recorder.frames)
    while server.queued_bytes < 512 << 10:
        server.send(b"frozen", bytes(64 << 10))
        await asyncio.sleep(0)
    server.forget(b"frozen")
    drained = len(recorder.drained)
    await until(lambda: server.queued_bytes == 0)
    assert len(recorder.drained) == drained
    assert recorder.gone == []
    server.close()


async def test_oversize_frames_reach_the_owner_and_huge_ones_cut_only_their_sender(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint
) -> None:
    server, recorder = Server(context, endpoint), Recorder()
    server.open()
    server.start(recorder)
    big, huge, other = (dealer(context, server, name) for name in (b"big", b"huge", b"other"))
    big.send(bytes((1 << 20) + 1))
    huge.send(bytes(5 << 20))
    await until(lambda: recorder.frames)
    other.send(b"fine")
    await until(lambda: len(recorder.frames) == 2)
    assert {client: len(frame) for client, frame in recorder.frames} == {b"big": (1 << 20) + 1, b"other": 4}
    server.close()


@pytest.mark.parametrize(
    ("limit", "clients", "most"),
    [(65536, 64, 192), (1024, 64, 192), (200, 64, 100), (4096, 4096, 2048), (None, 64, None)],
)
def test_the_door_is_shut_at_twice_what_clients_need_or_half_of_all_files(
    limit: int | None, clients: int, most: int | None
) -> None:
    assert most_files(limit, clients) == most


def plain_connection(path: Path) -> unix_socket.socket:
    made = unix_socket.socket(unix_socket.AF_UNIX)
    made.setblocking(False)
    try:
        made.connect(str(path))
    except OSError:
        made.close()
        raise
    return made


def test_the_doorman_needs_no_loop_and_leaves_others_files_alone(context: Context, tmp_path: Path) -> None:
    """The broker may be busy while a flood comes in. What is below the limit stays."""
    door, told = tmp_path / "door.sock", threading.Event()
    with context.socket(zmq.ROUTER) as router:
        router.bind(f"ipc://{door}")
        doorman = Doorman(router, 0, lambda count: told.set())
        refused = plain_connection(door)
        refused.settimeout(DEADLINE_S)
        while refused.recv(4096):  # libzmq's greeting, then the end
            pass
        assert told.wait(DEADLINE_S)
        with (tmp_path / "mine").open("wb") as mine:
            doorman._shut(mine.fileno())  # a number that is another's by now
            pair = unix_socket.socketpair()
            doorman._shut(pair[0].fileno())
            mine.write(b"still open")
            pair[0].send(b"still connected")
            assert pair[1].recv(64) == b"still connected"
        doorman.close()
        doorman = Doorman(router, 1 << 30, lambda count: told.set())
        told.clear()
        with context.socket(zmq.DEALER) as client:
            client.connect(f"ipc://{door}")
            client.send(b"hello")
            assert router.recv_multipart()[1] == b"hello"
        doorman.close()
        assert not told.is_set()
        for one in (refused, *pair):
            one.close()


def _accepted_now(monitor: zmq.Socket[bytes]) -> bool:
    """Takes one event; False where none comes any more."""
    if not monitor.poll(200):
        return False
    monitor.recv_multipart()
    return True


def test_libzmq_takes_about_a_thousand_connections_that_nobody_has_looked_at(context: Context, tmp_path: Path) -> None:
    """So a doorman who gets no CPU for a while cannot be overrun where there are some more files than that."""
    if (raise_file_limit() or 0) < 6000:
        pytest.skip("too few files for this test")
    door, clients = tmp_path / "door.sock", []
    with context.socket(zmq.ROUTER) as router:
        router.bind(f"ipc://{door}")
        monitor = _monitor(router)
        before = psutil.Process().num_fds()
        while len(clients) < 1050:  # the system itself keeps some hundred
            with contextlib.suppress(BlockingIOError):
                clients.append(plain_connection(door))
        for _ in range(500):
            time.sleep(0.001)
            with contextlib.suppress(BlockingIOError):
                clients.append(plain_connection(door))
        accepted = psutil.Process().num_fds() - before - len(clients)
        while _accepted_now(monitor):  # else libzmq's thread would wait for ever for room in its queue
            pass
        router.monitor(None, 0)
        monitor.close()
        for one in clients:
            one.close()
    assert 900 <= accepted <= 1010
    assert len(clients) < 1200
