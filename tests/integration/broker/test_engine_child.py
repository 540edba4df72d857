"""The supervisor with real child processes: start, speak, kill, notice the end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import zmq
from broker_rig import DEADLINE_S, HERE, eventually

from tests.support.processes import ended
from xlm.protocol import link
from xlm.protocol.endpoints import parse_endpoint
from xlm_broker.supervisor import Supervisor, private_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

FAKE = (sys.executable, "-m", "xlm_broker.child_guard", "fake_engine")


class Owner:
    def __init__(self) -> None:
        self.spawned: list[tuple[int, int]] = []
        self.messages: list[tuple[int, link.FromEngine]] = []
        self.exited: list[tuple[int, int | None, int, str, str]] = []

    def on_engine_spawned(self, incarnation: int, pid: int) -> None:
        self.spawned.append((incarnation, pid))

    def on_engine_message(self, incarnation: int, message: link.FromEngine) -> None:
        self.messages.append((incarnation, message))

    def on_engine_exited(
        self, incarnation: int, exit_code: int | None, signal_number: int, detail: str, code: str
    ) -> None:
        self.exited.append((incarnation, exit_code, signal_number, detail, code))


class Rig:
    def __init__(self, folder: Path, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.folder, self.context, self.owner = folder, context, Owner()
        self.supervisor = self.make(FAKE)

    def make(self, command: tuple[str, ...], *, use_tcp: bool = False) -> Supervisor:
        endpoint = parse_endpoint(f"ipc://{self.folder}/b.sock")
        self.supervisor = Supervisor(
            self.context, endpoint, self.owner, command=command, crash_log=self.folder / "engine.log", use_tcp=use_tcp
        )
        return self.supervisor

    def start_message(self) -> link.Start:
        return link.Start(device=link.DeviceConfig(kind="sim"), model=link.ModelConfig(path="m"), budget_bytes=1 << 20)

    def got(self, kind: type[link.FromEngine]) -> list[link.FromEngine]:
        return [message for _, message in self.owner.messages if isinstance(message, kind)]


@pytest.fixture
async def rig(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_path))
    context = zmq.Context[zmq.Socket[bytes]]()
    made = Rig(short_path, context)
    yield made
    await made.supervisor.close()
    context.destroy(linger=0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("use_tcp", [False, True])
async def test_speaks_and_stops(rig: Rig, use_tcp: bool) -> None:
    supervisor = rig.make(FAKE, use_tcp=use_tcp)
    supervisor.spawn(7)
    assert supervisor.send(rig.start_message())
    await until(lambda: rig.got(link.Loaded))
    assert rig.owner.spawned[0][0] == 7
    assert rig.owner.spawned[0][1] == supervisor.pid == rig.got(link.Started)[0].pid  # type: ignore[attr-defined]
    supervisor.send(link.Stop())
    await until(lambda: rig.owner.exited)
    assert rig.owner.exited[0][:3] == (7, 0, 0)
    assert supervisor.pid is None
    assert not supervisor.send(link.Probe())


async def test_the_link_folder_is_private_and_removed(rig: Rig) -> None:
    rig.supervisor.spawn(1)
    await until(lambda: rig.got(link.Started))
    folder = next((rig.folder / "xlm").iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    await rig.supervisor.close()
    assert not folder.exists()
    assert rig.owner.exited


async def test_a_link_folder_that_cannot_be_made_is_a_reported_and_final_end(rig: Rig) -> None:
    private_folder(parse_endpoint(f"ipc://{rig.folder}/b.sock")).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_folder(parse_endpoint(f"ipc://{rig.folder}/b.sock")).write_text("in the way")
    rig.supervisor.spawn(1)
    assert not rig.owner.exited  # not from within the order
    await until(lambda: rig.owner.exited)
    incarnation, exit_code, signal_number, detail, code = rig.owner.exited[0]
    assert (incarnation, exit_code, signal_number, code) == (1, None, 0, "endpoint_forbidden")
    assert "engine-" in detail
    assert not rig.supervisor.send(link.Probe())


async def test_a_message_that_cannot_be_encoded_ends_the_engine_for_good(rig: Rig) -> None:
    rig.supervisor.spawn(1)
    model = link.ModelConfig(path="\udcff.gguf")
    assert not rig.supervisor.send(link.Start(device=link.DeviceConfig(kind="sim"), model=model))
    await until(lambda: rig.owner.exited)
    assert rig.owner.exited[0][4] == "internal"
    assert "Start cannot be sent" in rig.owner.exited[0][3]


async def test_killed_from_outside(rig: Rig) -> None:
    rig.supervisor.spawn(1)
    await until(lambda: rig.got(link.Started))
    os.kill(rig.owner.spawned[0][1], signal.SIGKILL)
    await until(lambda: rig.owner.exited)
    assert rig.owner.exited[0][2] == signal.SIGKILL
    assert "fake engine: hello" in rig.owner.exited[0][3]
    assert "fake engine: hello" in (rig.folder / "engine.log").read_text()
    rig.supervisor.spawn(2)
    await until(lambda: any(incarnation == 2 for incarnation, _ in rig.owner.messages))


async def test_messages_sent_before_death_arrive_before_the_exit(rig: Rig) -> None:
    order: list[str] = []
    rig.owner.on_engine_message = lambda incarnation, message: order.append(type(message).__name__)  # type: ignore[method-assign]
    rig.owner.on_engine_exited = lambda *_: order.append("exit")  # type: ignore[method-assign]
    rig.supervisor.spawn(1)
    for seq in range(50):
        rig.supervisor.send(link.SetEngineBudget(seq=seq, budget_bytes=1))
    rig.supervisor.send(link.Stop())
    await until(lambda: "exit" in order)
    assert [name for name in order if name != "Stats"] == ["Started", *["Released"] * 50, "exit"]


async def test_kill_right_after_spawn_and_repeated(rig: Rig) -> None:
    rig.supervisor.spawn(1)
    rig.supervisor.kill(1)
    rig.supervisor.kill(1)
    rig.supervisor.kill(99)
    await until(lambda: rig.owner.exited)
    assert rig.owner.exited[0][2] == signal.SIGKILL
    rig.supervisor.kill(1)


async def test_a_command_that_does_not_exist_is_an_exit(rig: Rig) -> None:
    rig.make(("/no/such/engine",)).spawn(1)
    await until(lambda: rig.owner.exited)
    assert rig.owner.exited[0][1] is None
    assert "/no/such/engine" in rig.owner.exited[0][3]


async def test_stderr_is_kept_in_part_only(rig: Rig) -> None:
    code = "import sys; sys.stderr.write('x' * (3 << 20)); [print('line', n) for n in range(1000)]; sys.exit(3)"
    rig.make((sys.executable, "-c", code)).spawn(1)
    await until(lambda: rig.owner.exited)
    _, exit_code, _, detail, final = rig.owner.exited[0]
    assert final == ""
    assert exit_code == 3
    assert detail.splitlines()[-1] == "line 999"
    kept = (rig.folder / "engine.log").read_text().splitlines()
    assert len(kept) == 200
    assert max(map(len, kept)) <= 4096


async def test_garbage_on_the_link_kills_the_engine(rig: Rig) -> None:
    code = (
        "import sys, zmq, time; s = zmq.Context().socket(zmq.PAIR); s.connect(sys.argv[2]);"
        "s.send(b'\\xc1 garbage'); time.sleep(600)"
    )
    rig.make((sys.executable, "-c", code)).spawn(1)
    await until(lambda: rig.owner.exited)
    assert rig.owner.exited[0][2] == signal.SIGKILL
    assert rig.owner.messages == []


async def test_an_engine_deaf_to_sigterm_and_its_children_end_with_close(rig: Rig) -> None:
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print(c.pid, flush=True);"
        "open(sys.argv[2].removeprefix('ipc://') + '.pid', 'w').write(str(c.pid)); time.sleep(600)"
    )
    rig.make((sys.executable, "-c", code)).spawn(1)
    await until(lambda: [path for path in (rig.folder / "xlm").rglob("*.pid") if path.read_text()])
    grandchild = int(next((rig.folder / "xlm").rglob("*.pid")).read_text())
    await rig.supervisor.close()
    assert rig.owner.exited[0][2] == signal.SIGKILL
    eventually(lambda: ended(grandchild), "the engine's child ends")


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_the_guard_ends_its_process_when_the_parent_dies(tmp_path: Path) -> None:
    (tmp_path / "sleeper.py").write_text(
        "import os, sys, time\nprint(os.getpid(), sys.argv[1:], flush=True)\ntime.sleep(600)\n"
    )
    code = (
        "import os, subprocess, sys\n"
        "os.environ['XLM_BROKER_PID'] = str(os.getpid())\n"
        "subprocess.run([sys.executable, '-m', 'xlm_broker.child_guard', 'sleeper', 'a', 'b'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    pid, arguments = parent.stdout.readline().split(maxsplit=1)
    assert arguments.strip() == "['a', 'b']"
    parent.kill()
    parent.wait(timeout=DEADLINE_S)
    eventually(lambda: ended(int(pid)), "the guarded process ends")


def test_the_guard_does_not_start_when_the_parent_is_dead_already() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XLM_BROKER_PID": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "xlm_broker.child_guard", "this"],
        env=environment,
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stdout) == (0, b"")
