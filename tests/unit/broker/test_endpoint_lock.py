"""The single-instance lock: exclusive, named, and gone with its holder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xlm.errors import EndpointError
from xlm.protocol.endpoints import parse_endpoint
from xlm_broker.lock import EndpointLock, lock_path

HOLDER = """
import sys, time
from pathlib import Path
from xlm_broker.lock import EndpointLock
lock = EndpointLock(Path(sys.argv[1]), "ipc:///x")
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def hold_elsewhere(path: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_second_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    first, second = (EndpointLock(tmp_path / "a.lock", "ipc:///a") for _ in range(2))
    first.acquire()
    with pytest.raises(EndpointError, match=f"process {os.getpid()}") as caught:
        second.acquire()
    assert caught.value.code == "endpoint_in_use"
    assert not second.held
    first.release()
    second.acquire()
    assert second.held
    second.release()


def test_release_removes_the_file_and_may_be_repeated(tmp_path: Path) -> None:
    lock = EndpointLock(tmp_path / "a.lock", "ipc:///a")
    lock.acquire()
    lock.acquire()
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    holder = hold_elsewhere(path)
    lock = EndpointLock(path, "ipc:///a")
    with pytest.raises(EndpointError, match=f"process {holder.pid}"):
        lock.acquire()
    holder.kill()
    holder.wait(timeout=600)
    assert path.exists()
    lock.acquire()
    lock.release()


def test_a_damaged_lock_file_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.write_bytes(b"\xff\x00 not json")
    lock = EndpointLock(path, "ipc:///a")
    lock.acquire()
    assert lock.held
    lock.release()


def test_a_folder_that_is_not_there_is_forbidden(tmp_path: Path) -> None:
    with pytest.raises(EndpointError) as caught:
        EndpointLock(tmp_path / "none" / "a.lock", "ipc:///a").acquire()
    assert caught.value.code == "endpoint_forbidden"


def test_lock_paths() -> None:
    assert lock_path(parse_endpoint("ipc:///run/x/b.sock")) == Path("/run/x/b.sock.lock")
    tcp = {lock_path(parse_endpoint(f"tcp://{host}:5000")) for host in ("127.0.0.1", "127.0.0.2", "[::1]")}
    assert len(tcp) == 3
    assert all(path.suffix == ".lock" for path in tcp)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_a_full_disk_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "full.lock"
    path.symlink_to("/dev/full")
    lock = EndpointLock(path, "ipc:///full")
    with pytest.raises(EndpointError, match="No space left") as caught:
        lock.acquire()
    assert caught.value.code == "endpoint_forbidden"
    assert not lock.held
    assert not path.is_symlink()
