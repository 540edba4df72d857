"""samples/c/tavern: a real game with SDL2, on a virtual screen, beside a real broker with the small model.

No assertion here asks how long something took. What must not block is shown by
counters: frames that went on, and the part of the time that calls of libxlm took.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.samples.screen import Picture, Screen, count, of_bmp, part, virtual_screen, width
from tests.support.installed_xlm import ROOT, InstalledXlm, installed_xlm
from tests.support.running_broker import RunningBroker, running_broker, wait_until

MIB = 1 << 20
LONG_S = 600.0  # only bounds a failure
# samples/c/tavern/src/layout.c and view.c
BAR, STATE_LAMP, SCENE, TEXTBOX = (16, 16, 928, 28), (16, 80, 14, 14), (0, 104, 960, 372), (16, 486, 928, 40)
BUBBLES = ((24, 128, 440, 150), (496, 128, 440, 150))
BUDGET, USED, RESIDENT, KEPT = (60, 110, 200), (240, 150, 40), (90, 210, 120), (150, 80, 180)
INK, PAPER, GOOD, BAD = (20, 16, 12), (245, 235, 205), (80, 200, 100), (220, 70, 60)
DEVICE_MIB = 512
CONNECTED = "wait ready\nwait open\nwait playing\nwait granted\n"


@pytest.fixture(scope="module")
def xlm_here() -> InstalledXlm:
    return installed_xlm()


@pytest.fixture(scope="module")
def built(xlm_here: InstalledXlm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as its README says; any warning is an error."""
    return xlm_here.cmake(ROOT / "samples/c/tavern", tmp_path_factory.mktemp("tavern"))


@pytest.fixture(scope="module")
def screen() -> Iterator[Screen]:
    with virtual_screen() as screen:
        yield screen


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with running_broker(ctx=1024, sessions=2, sim_vram=f"{DEVICE_MIB}MiB") as broker:
        yield broker


@dataclass
class Tavern:
    """The game, played by a script."""

    binary: Path
    screen: Screen
    folder: Path
    endpoint: str
    process: subprocess.Popen[str] | None = None

    def start(self, script: str, *options: str) -> Tavern:
        path = self.folder / "script.txt"
        path.write_text(script, encoding="utf-8")
        runtime = self.folder / "runtime"
        runtime.mkdir(exist_ok=True)
        environment = {
            **os.environ, "DISPLAY": self.screen.display, "SDL_VIDEODRIVER": "x11", "SDL_AUDIODRIVER": "dummy",
            "XDG_RUNTIME_DIR": str(runtime),
        }  # fmt: skip
        fixed = ["--endpoint", self.endpoint, "--script", str(path), "--software", "--temperature", "0"]
        command = [str(self.binary), *fixed, *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=self.folder
        )
        return self

    def told(self, word: str) -> dict[str, Any]:
        """The next line it prints, which is this one."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        state: dict[str, Any] = json.loads(line)
        assert state["at"] == word
        return state

    def end(self) -> None:
        """A good end, of its own will."""
        assert self.process is not None
        out, errors = self.process.communicate(timeout=LONG_S)
        assert (self.process.returncode, out, errors) == (0, "", "")

    def picture(self, name: str) -> Picture:
        return of_bmp(self.folder / name)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def tavern(built: Path, screen: Screen, broker: RunningBroker, tmp_path: Path) -> Iterator[Tavern]:
    game = Tavern(built / "tavern", screen, tmp_path, broker.endpoint)
    yield game
    game.close()


def part_of_device(mib: float) -> int:
    """Pixels of the bar."""
    return int(mib / DEVICE_MIB * BAR[2])


def test_its_logic(xlm_here: InstalledXlm, built: Path) -> None:
    assert xlm_here.run([built / "tavern_logic_test"]) == "tavern: all is well\n"


def test_the_bar_and_the_bubble_show_what_is(tavern: Tavern) -> None:
    script = (
        f"{CONNECTED}wait resident 60\nshot whole.bmp\nprint whole\n"
        "key 2\nwait granted\nshot second.bmp\nprint second\n"
        "key 4\nwait granted\nshot none.bmp\nprint none\nkey 1\nwait granted\n"
        "key Return\ntype Wie heißt du? Ich bin Jörg 🔨 鍛\nframes 2\nshot typed.bmp\nkey Return\n"
        "wait pieces 8\nshot spoken.bmp\nprint spoken\nframes 100000"
    )
    tavern.start(script, "--max-tokens", "48")
    for name, mib in (("whole", 256), ("second", 96), ("none", 0)):
        state = tavern.told(name)
        assert state["granted_bytes"] == state["cap_bytes"] == mib * MIB
        assert state["used_bytes"] <= state["granted_bytes"]
        bar = part(tavern.picture(f"{name}.bmp"), BAR)
        shown = width(bar, BUDGET)
        assert abs(shown - part_of_device(mib)) <= 1, name
        assert abs(width(bar, USED) - part_of_device(state["used_bytes"] / MIB)) <= 1, name
        assert abs(width(bar, RESIDENT) - part_of_device(state["resident_bytes"] / MIB)) <= 1, name
        assert abs(width(bar, KEPT) - part_of_device(16)) <= 1, "the level's reservation"
    spoken = tavern.told("spoken")
    assert spoken["npcs"][0]["pieces"] >= 8
    assert spoken["npcs"][0]["words"].strip()
    typed, talking = tavern.picture("typed.bmp"), tavern.picture("spoken.bmp")
    assert count(part(tavern.picture("whole.bmp"), TEXTBOX), PAPER) == 0
    assert count(part(typed, TEXTBOX), INK) > 500, "what the player typed"
    assert count(part(typed, BUBBLES[0]), PAPER) == 0, "nobody has spoken yet"
    assert count(part(talking, BUBBLES[0]), PAPER) > 0.7 * 440 * 150
    assert count(part(talking, BUBBLES[0]), INK) > 20 * len(spoken["npcs"][0]["words"].split())
    assert count(part(talking, BUBBLES[1]), INK) == 0, "the other one listens"
    assert count(part(talking, STATE_LAMP), GOOD) == 14 * 14
    assert len(set(map(tuple, part(talking, SCENE)[::7, ::7].reshape(-1, 3)))) > 20, "a wall of bricks"
    on_screen = tavern.screen.look
    wait_until(lambda: count(part(on_screen(), BUBBLES[0]), INK) > 100, "the same on the X server's screen")
    assert abs(width(part(on_screen(), BAR), BUDGET) - part_of_device(256)) <= 1


def test_levels_take_and_give_back_memory(tavern: Tavern, broker: RunningBroker) -> None:
    script = (
        f"{CONNECTED}print first\nkey L\nwait playing\nprint cellar\nkey L\nwait playing\nprint hall\n"
        "key P\nwait granted\nprint pause\nkey P\nwait granted\nprint play\nquit"
    )
    tavern.start(script)
    for word, pieces in (("first", 4), ("cellar", 2), ("hall", 12)):
        state = tavern.told(word)
        assert state["texture_bytes"] == pieces * 4 * MIB
        assert state["reserved_bytes"] == state["texture_bytes"], "room was kept before it was taken"
        assert state["used_bytes"] + state["reserved_bytes"] <= state["device_total_bytes"]
    assert state["loads"] == 3
    assert tavern.told("pause")["cap_bytes"] == 2**64 - 1, "in a pause the model may have it all"
    assert tavern.told("play")["cap_bytes"] == 256 * MIB
    tavern.end()
    with broker.connect("observer") as observer:
        assert [one["name"] for one in observer.status().clients] == ["observer"], "it said goodbye"


def test_the_broker_is_killed_in_mid_sentence(tavern: Tavern, broker: RunningBroker) -> None:
    script = (
        f"{CONNECTED}key Return\ntype Tell me a long story.\nkey Return\nwait pieces 3\nprint speaking\n"
        "wait gone\nprint gone\nframes 100\nshot gone.bmp\nkey 2\nkey L\nwait playing\n"
        "key Return\ntype Are you there?\nkey Return\nframes 2\nprint alone\n"
        "wait ready\nwait granted\nkey Return\ntype And now?\nkey Return\nwait pieces 3\nprint back\n"
        "key C\nwait silent\nprint hushed\nquit"
    )
    tavern.start(script, "--max-tokens", "400")
    speaking = tavern.told("speaking")
    assert speaking["npcs"][0]["mood"] == "speaking"
    broker.kill(signal.SIGKILL)
    gone, alone = tavern.told("gone"), tavern.told("alone")
    assert gone["state"] == "connecting"
    assert gone["npcs"][0]["words"].endswith("(lost in thought: no broker)")
    assert alone["npcs"][0]["words"] == "(lost in thought: no broker)", "the second question was refused at once"
    assert alone["texture_bytes"] == 8 * MIB, "a level is loaded without a broker too"
    assert alone["frames"] - gone["frames"] >= 100
    assert alone["calls"] - gone["calls"] >= alone["frames"] - gone["frames"], "at least a poll a frame"
    in_calls_ns, elapsed_ns = (alone[key] - gone[key] for key in ("calls_ns", "elapsed_ns"))
    assert 4 * in_calls_ns < elapsed_ns, "no call waited for what is not there"
    assert count(part(tavern.picture("gone.bmp"), STATE_LAMP), BAD) == 14 * 14
    broker.start()
    back = tavern.told("back")
    assert (back["state"], back["disconnections"]) == ("ready", 1)
    assert (back["cap_bytes"], back["reserved_bytes"]) == (96 * MIB, 8 * MIB), "wished for while nobody was there"
    hushed = tavern.told("hushed")
    assert hushed["npcs"][0]["answers"] == 1
    tavern.end()


def test_a_killed_game_leaves_nothing(tavern: Tavern, broker: RunningBroker) -> None:
    script = (
        f"{CONNECTED}key Return\ntype Tell me a long story.\nkey Return\nwait pieces 2\nprint speaking\nframes 100000"
    )
    tavern.start(script, "--max-tokens", "400")
    tavern.told("speaking")
    with broker.connect("observer") as observer:
        assert "tavern" in [one["name"] for one in observer.status().clients]
        tavern.close()
        wait_until(lambda: [one["name"] for one in observer.status().clients] == ["observer"], "its lease ends")
        wait_until(lambda: not any(one["answering"] for one in observer.status().sessions), "nothing is said for it")
        budget = observer.status().budget
        assert (budget["caps_bytes"], budget["reserved_bytes"]) == ([], 0)
    assert list((tavern.folder / "runtime").iterdir()) == [], "no file of it is left"


def test_without_any_broker_it_is_a_game_all_the_same(built: Path, screen: Screen, tmp_path: Path) -> None:
    game = Tavern(built / "tavern", screen, tmp_path, f"ipc://{tmp_path}/nobody.sock")
    script = (
        "wait playing\nkey Return\ntype Hello?\nkey Backspace\nkey Return\nframes 2\nwait silent\nframes 2\n"
        "shot alone.bmp\nprint alone\nquit"
    )
    try:
        game.start(script)
        state = game.told("alone")
        assert (state["state"], state["texture_bytes"]) == ("connecting", 16 * MIB)
        assert state["npcs"][0]["failures"] == 1
        assert count(part(game.picture("alone.bmp"), STATE_LAMP), BAD) == 14 * 14
        game.end()
    finally:
        game.close()


@pytest.mark.parametrize(
    "words", [["--fps", "none"], ["--pacing", "much"], ["--script"], ["--script", "/none"], ["-x"]]
)
def test_a_wrong_command_line_is_told(xlm_here: InstalledXlm, built: Path, words: list[str]) -> None:
    done = subprocess.run([built / "tavern", *words], capture_output=True, text=True, env=xlm_here.environment)
    assert done.returncode == 2
    assert done.stderr
