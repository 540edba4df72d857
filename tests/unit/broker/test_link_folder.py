"""The folder of the engine's link: kept while its broker lives, swept away when it was killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xlm.errors import EndpointError
from xlm_broker.link_folder import LinkFolder, sweep
from xlm_broker.supervisor import readable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the link is tcp there")

HOLDER = """
import sys
from pathlib import Path
from xlm_broker.link_folder import LinkFolder
folder = LinkFolder(Path(sys.argv[1]), "ipc:///x")
folder.take()
(folder.path / "engine-1.sock").touch()
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def end(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_a_killed_brokers_folder_is_swept_by_another_and_a_live_ones_is_not(tmp_path: Path) -> None:
    child = holder(tmp_path / "engine-other")
    mine = LinkFolder(tmp_path / "engine-mine", "ipc:///mine")
    try:
        mine.take()
        assert (tmp_path / "engine-other" / "engine-1.sock").exists()
    finally:
        end(child)
    sweep(tmp_path, but=mine.path)
    assert [path.name for path in tmp_path.iterdir()] == ["engine-mine"]
    mine.take()
    mine.remove()
    mine.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_next_broker_of_an_endpoint_takes_the_folder_over(tmp_path: Path) -> None:
    child = holder(tmp_path / "engine-x")
    folder = LinkFolder(tmp_path / "engine-x", "ipc:///x")
    try:
        with pytest.raises(EndpointError, match="another broker"):
            folder.take()
    finally:
        end(child)
    folder.take()
    assert [path.name for path in folder.path.iterdir()] == ["owner.lock"]
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove()


def test_a_folder_that_was_cleaned_away_is_made_again(tmp_path: Path) -> None:
    """Of temporary folders some systems remove what is old; the next engine needs its link all the same."""
    folder = LinkFolder(tmp_path / "run" / "engine-x", "ipc:///x")
    folder.take()
    shutil.rmtree(tmp_path / "run")
    folder.take()
    assert [path.name for path in folder.path.iterdir()] == ["owner.lock"]
    with pytest.raises(EndpointError, match="another broker"):
        LinkFolder(folder.path, "ipc:///x").take()
    folder.remove()
    assert list((tmp_path / "run").iterdir()) == []


def test_what_another_broker_made_in_its_place_is_left_alone(tmp_path: Path) -> None:
    folder, other = LinkFolder(tmp_path / "engine-x", "ipc:///x"), LinkFolder(tmp_path / "engine-x", "ipc:///x")
    folder.take()
    shutil.rmtree(folder.path)
    other.take()
    folder.remove()
    assert other.path.exists()
    with pytest.raises(EndpointError, match="another broker"):
        LinkFolder(other.path, "ipc:///x").take()
    other.remove()


def test_what_is_not_a_brokers_stays_and_what_was_half_swept_goes(tmp_path: Path) -> None:
    (tmp_path / "engine-unknown").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "owner.lock").touch()
    (tmp_path / "engine-link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "engine-a.dead-7").mkdir()
    (tmp_path / "engine-file").touch()
    sweep(tmp_path, but=tmp_path / "engine-mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "elsewhere", "engine-file", "engine-link", "engine-unknown",
    ]  # fmt: skip
    assert (tmp_path / "elsewhere" / "owner.lock").exists()
    sweep(tmp_path / "nowhere", but=tmp_path)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('{"level": "error", "event": "cannot go on", "code": "x", "timestamp": "t"}', "error cannot go on code=x"),
        ('{"event": "hello"}', "hello"),
        ("GGML_ASSERT(false) failed", "GGML_ASSERT(false) failed"),
        ("{broken", "{broken"),
        ('{"a": 1}', '{"a": 1}'),
        ("[1]", "[1]"),
    ],
)
def test_lines_of_the_engine_are_readable(line: str, text: str) -> None:
    assert readable(line) == text
