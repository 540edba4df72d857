"""The Unity package: its core with Mono against the real libxlm, its Unity layer against a stub of UnityEngine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.bindings import xlm_header
from tests.bindings.play import Play, expected_sentences
from tests.bindings.toolchain import csharp, run, tool
from tests.support.processes import ended
from tests.support.running_broker import RunningBroker, wait_until
from xlm.protocol import messages
from xlm.testing import FakeBroker

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "bindings/unity"
SAMPLE = ROOT / "samples/unity"


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.cs"))


@dataclass(frozen=True)
class Built:
    """Compiled with every warning an error."""

    core: Path
    tests: Path
    abi: Path
    scenarios: Path
    talk: Path
    environment: dict[str, str]

    def output(self, *words: str | Path, **environment: str) -> str:
        words = (tool("mono"), "--debug", *words)
        done = subprocess.run(words, env={**self.environment, **environment}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def play(self, name: str, endpoint: str | Path, **environment: str) -> Play:
        command = [tool("mono"), "--debug", str(self.scenarios), name, str(endpoint)]
        return Play(command, {**self.environment, **environment})


@pytest.fixture(scope="session")
def built(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("unity")
    core = csharp(out / "Xlm.Core.dll", sources(PACKAGE / "Runtime/Core"), [Path("System.dll")], "-unsafe")
    engine = csharp(out / "UnityEngine.dll", [HERE / "unity_stub/UnityEngine.cs"], (), "-nowarn:660,661")
    editor = csharp(out / "UnityEditor.dll", [HERE / "unity_stub/UnityEditor.cs"], [engine])
    quiet = "-nowarn:649"  # fields that nothing writes: Unity's inspector does
    engines = sources(PACKAGE / "Runtime/Engine")
    unity = csharp(out / "Xlm.Unity.dll", engines, [core, engine], "-define:UNITY_EDITOR", quiet)
    csharp(out / "Xlm.Unity.Editor.dll", sources(PACKAGE / "Editor"), [core, engine, editor, unity])
    csharp(out / "Player.dll", engines, [core, engine], quiet)
    csharp(out / "Sample.dll", sources(PACKAGE / "Samples~"), [core, engine, unity])
    unit = csharp(out / "Xlm.Tests.exe", [*sources(PACKAGE / "Tests"), HERE / "mono/NUnit.cs"], [core], "-unsafe")
    abi = csharp(out / "Abi.exe", [HERE / "mono/AbiPrinter.cs"])
    played = [HERE / f"mono/{name}.cs" for name in ("Scenario", "Scenarios", "UnityScenarios")]
    scenarios = csharp(out / "Scenarios.exe", played, [core, engine, unity])
    talk = csharp(out / "Talk.exe", sources(SAMPLE), [core])
    # Mono looks for libxlm.so beside the program, as a player does in its Plugins folder
    (out / "libxlm.so").symlink_to(library)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(out)}
    return Built(core, unit, abi, scenarios, talk, environment)


# -- the declarations match xlm.h -------------------------------------------------------------------------------------


def test_declarations_match_the_header(built: Built, tmp_path: Path) -> None:
    header = xlm_header.parse(xlm_header.HEADER.read_text())
    c = xlm_header.facts(header, tmp_path)
    cs = {_as_in_c(line) for line in built.output(built.abi, built.core).splitlines()}
    assert cs - c == set(), "in C#, but not so in xlm.h"
    assert c - cs == set(), "in xlm.h, but not so in C#"
    assert len(header.functions) >= 23
    assert len(header.structs) >= 13


def _as_in_c(line: str) -> str:
    """``enum XlmResult.BrokerGone -703`` becomes ``enum XLM_ERROR_BROKER_GONE -703``."""
    found = re.fullmatch(r"enum Xlm(\w+)\.(\w+) (-?\d+)", line)
    if found is None:
        return line
    kind, name, value = found.groups()
    kind = "Error" if kind == "Result" else re.sub("(State|Kind|Reason|Level|Format)$", "", kind)
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", f"Xlm{kind}{name}").upper()
    return f"enum {words.replace('XLM_ERROR_SUCCESS', 'XLM_SUCCESS')} {value}"


def test_a_changed_field_is_noticed(built: Built, tmp_path: Path) -> None:
    """The check itself: a header with one field swapped differs."""
    text = xlm_header.HEADER.read_text()
    swapped = text.replace("uint64_t granted_bytes;", "uint32_t granted_bytes;")
    header = xlm_header.parse(swapped)
    assert header.structs == xlm_header.parse(text).structs
    folder = tmp_path / "include/xlm"
    folder.mkdir(parents=True)
    (folder / "xlm.h").write_text(swapped)
    program = tmp_path / "facts"
    (tmp_path / "facts.c").write_text(xlm_header._program(header))
    run(["cc", f"-I{folder.parent}", tmp_path / "facts.c", "-o", program])
    lines = set(built.output(built.abi, built.core).splitlines())
    changed = set(run([program]).splitlines()) - {_as_in_c(line) for line in lines}
    assert "field xlm_lease.granted_bytes 8 4" in changed


# -- the core against libxlm ------------------------------------------------------------------------------------------


def test_the_packages_own_tests(built: Built, fake: FakeBroker) -> None:
    assert ", 0 failed" in built.output(built.tests, XLM_TEST_ENDPOINT=fake.endpoint)


def test_images(built: Built, fake: FakeBroker) -> None:
    fake.answer = "I see."
    with built.play("Images", fake.endpoint) as play:
        lines = play.rest()
    assert lines == ["text I see.", "empty ImageEmpty image_empty", "again I see.", "texture I see.", "pixels I see."]
    says = [request for request in fake.requests if isinstance(request, messages.Say)]
    shown = [[fake.images[key] for key in say.images] for say in says]
    file, rows, flipped = b"file", bytes(range(8)) + bytes(range(12, 20)), bytes(range(16))
    assert shown == [[file, rows], [], [flipped], [bytes([1, 2, 3, 4])]]
    layouts = [one for one in fake.requests if isinstance(one, messages.ImageBegin)]
    assert [(one.encoding, one.width, one.height, one.bottom_up) for one in layouts] == [
        ("encoded", 0, 0, False), ("rgba8", 2, 2, False), ("bgrx8", 2, 2, True), ("rgbx8", 1, 1, True),
    ]  # fmt: skip


def test_lent_images(built: Built, fake: FakeBroker) -> None:
    with built.play("LentImages", fake.endpoint) as play:
        assert play.line() == "text Greetings, traveller. 1"
        assert play.line() == "refused False 1"
        assert play.line() == "frozen"
        fake.freeze()
        play.say("go on")
        assert play.rest() == ["under way True", "ended False 1"]
    say = fake.wait_for(messages.Say)
    assert [fake.images[key] for key in say.images] == [b"lent", b"c"]


def test_talk(built: Built, fake: FakeBroker) -> None:
    fake.answer = ["Für ", "dich ", "🔨", "!"]
    with built.play("Talk", fake.endpoint) as play:
        text, usage, state, name = play.rest()
    assert text == "text Für dich 🔨!"
    assert usage == "usage 6 4 1000000"
    assert state == "state Open 4096 Stop"
    assert name.startswith("id session-")
    hello, opened, said = (fake.wait_for(kind) for kind in (messages.Hello, messages.OpenSession, messages.Say))
    assert (hello.name, opened.system) == ("tavern", "Grüße von Greta 🔨")
    assert said.text == "Kannst du das Schwert flicken? ⚔"
    sampling = said.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k) == (0.25, 0.5, 0.125, 7)
    assert (sampling.repeat_penalty, sampling.repeat_last_n, sampling.seed) == (1.5, 5, 42)
    assert (said.max_tokens, list(said.stop), said.priority) == (99, ["Ende", "旅"], -3)
    assert json.loads(sampling.json_schema) == {"type": "object"}


def test_defaults_are_those_of_the_protocol(built: Built, fake: FakeBroker) -> None:
    with built.play("Defaults", fake.endpoint) as play:
        assert play.rest() == ["text Greetings, traveller."]
    said = fake.wait_for(messages.Say)
    plain = messages.Say(session_id="", text="")
    assert (said.sampling, said.max_tokens, said.stop) == (plain.sampling, plain.max_tokens, plain.stop)


def test_pieces(built: Built, fake: FakeBroker) -> None:
    fake.answer = ["one", " two", " three", " four"]
    fake.hold(after_pieces=2)
    with built.play("Pieces", fake.endpoint) as play:
        assert play.rest() == ["first [one][ two]", "all [one][ two]", "finish Cancelled", "late [one][ two]"]
    fake.wait_for(messages.Cancel)


def test_cancellation(built: Built, fake: FakeBroker) -> None:
    fake.answer = ["once", " more"]
    fake.hold(after_pieces=1)
    with built.play("Cancellation", fake.endpoint) as play:
        assert play.rest() == ["busy SessionBusy Caller True", "text once Cancelled", "current True"]


def test_failures(built: Built, fake: FakeBroker) -> None:
    fake.fail_next("say", "context_overflow", "too long")
    with built.play("Fails", fake.endpoint) as play:
        assert play.rest() == [
            "error ContextOverflow context_overflow Caller too long",
            "loop ContextOverflow",
            "same True",
            "thrown SamplingInvalid",
            "text Greetings, traveller.",
        ]


def test_budget(built: Built, fake: FakeBroker) -> None:
    whole = fake.device_bytes
    with built.play("Budget", fake.endpoint) as play:
        assert play.rest() == [
            "lease 100 100 250000",
            "heard 100 100",
            f"error BudgetInfeasible {fake.minimum_bytes} False",
            "reserve 1000",
            f"wait {whole - 1000}",
            f"free {whole}",
            "invalid BudgetInvalid BudgetInvalid",
            f"status Ready none fake {whole} True",
        ]


def test_notices(built: Built, fake: FakeBroker) -> None:
    with built.play("Notices", fake.endpoint) as play:
        assert play.line() == "ready"
        fake.notify("device_lost", "The card is gone.", reason="test")
        kind, _, rest = play.line().partition(" ")
    assert kind == "DeviceLost"
    assert rest.startswith("The card is gone. {")
    assert json.loads(rest.removeprefix("The card is gone. ")) == {"reason": "test"}


def test_when_ready(built: Built, fake: FakeBroker) -> None:
    fake.kill()
    with built.play("WhenReady", fake.endpoint) as play:
        assert play.line() == "before False"
        fake.restart()
        play.say("started")
        assert play.rest() == ["after Ready True", "cancelled True"]


def test_a_broker_of_another_protocol(built: Built) -> None:
    with FakeBroker(versions=(90, 91)) as other, built.play("Failed", other.endpoint) as play:
        assert play.rest() == ["error ProtocolVersion Failed"]


def test_frames_are_reported(built: Built, fake: FakeBroker) -> None:
    with built.play("Frames", fake.endpoint) as play:
        frame = fake.wait_for(messages.Frame)
        play.say("seen")
        assert play.rest() == []
    assert frame.target_ms == pytest.approx(16.666667)
    assert frame.pacing == "shrink"


@pytest.mark.parametrize("remember", [True, False])
def test_the_broker_dies_in_mid_sentence(built: Built, fake: FakeBroker, remember: bool) -> None:
    fake.hold(after_pieces=1)
    with built.play("BrokerDies", fake.endpoint) as play:
        assert play.line() == "talking"
        fake.kill()
        assert play.line() == "failed BrokerGone True Greetings,"
        assert play.line() == "kept BrokerGone Connecting"
        assert play.line() == "task BrokerGone"
        assert play.line() == "dead"
        fake.release()
        fake.restart(remember_sessions=remember)
        told, text = play.rest()
    first, *others = told.removeprefix("told ").split(", ")
    assert first == "Connecting broker_gone"
    assert sorted(others) == ["Ready", "resumed" if remember else "reset"]
    assert text == "text Greetings, traveller."
    assert fake.wait_for(messages.SetBudget).cap_bytes == 78, "the last wish is the one kept"


def test_dispose_in_mid_sentence_within_a_handler(built: Built, fake: FakeBroker) -> None:
    fake.answer = ["a", "b", "c"]
    fake.hold(after_pieces=1)
    with built.play("DisposeMidSentence", fake.endpoint) as play:
        assert play.line() == "talking"
        fake.release()
        assert play.rest() == ["ended Cancelled ab", "status True", "say ObjectDisposedException"]
    fake.wait_for(messages.Goodbye)
    assert fake.clients == []


def test_nothing_is_left_where_nothing_is_disposed(built: Built, fake: FakeBroker) -> None:
    """The garbage collector closes session and client, in whatever order it finds them."""
    with built.play("NothingIsDisposed", fake.endpoint) as play:
        assert play.line() == "abandoned"
        fake.wait_for(messages.Goodbye, timeout=600)
        play.say("gone")
        assert play.rest() == []


def test_threads(built: Built, fake: FakeBroker) -> None:
    with built.play("Threads", fake.endpoint) as play:
        said = "Greetings, traveller."
        assert play.rest() == ["wrong WrongThread", f"text {said}", f"attached {said}", "nested InCallback"]


def test_a_handler_that_throws_loses_nothing(built: Built, fake: FakeBroker) -> None:
    with built.play("HandlerThrows", fake.endpoint) as play:
        assert play.rest() == ["caught mine; Greetings, traveller."]


def test_idle_frames_make_no_garbage(built: Built, fake: FakeBroker) -> None:
    with built.play("NoGarbage", fake.endpoint) as play:
        assert play.rest() == ["collections 0"]


def test_many_cancels(built: Built, fake: FakeBroker) -> None:
    with built.play("ManyCancels", fake.endpoint) as play:
        assert play.rest() == ["rounds 167"]
    fake.wait_for(messages.Goodbye)


def test_sentences(built: Built) -> None:
    """The list that the C++ splitter is tested with too."""
    path = HERE / "sentences.txt"
    with built.play("Sentences", path) as play:
        assert play.rest() == expected_sentences(path)


# -- the broker's process ---------------------------------------------------------------------------------------------


def test_a_started_broker_ends_with_the_game(built: Built, stand_in: Path, tmp_path: Path) -> None:
    with built.play("Process", tmp_path, XLM_TEST_BROKER=str(stand_in)) as play:
        pid, words = play.started(tmp_path)
        assert words == [
            *("--model", "demo", "--budget-from-game", "--endpoint", str(tmp_path)),
            *("--name", 'it\'s "quoted" $HOME `ls` \\ *'),
        ]
        play.say("stop")
        assert play.rest() == ["exited False", "stopped True 0"]
    assert (tmp_path / "ended").read_text() == "politely"
    assert ended(pid)


def test_a_killed_game_leaves_no_broker(built: Built, stand_in: Path, tmp_path: Path) -> None:
    with built.play("Process", tmp_path, XLM_TEST_BROKER=str(stand_in)) as play:
        pid, _ = play.started(tmp_path)
        family = [psutil.Process(pid), psutil.Process(pid).parent()]
        play.process.send_signal(signal.SIGKILL)
        wait_until(lambda: all(one is None or ended(one) for one in family), "broker and guard ended")
    assert (tmp_path / "ended").read_text() == "politely"


# -- the Unity layer, against the stub --------------------------------------------------------------------------------


def test_unity_npc_talks(built: Built, fake: FakeBroker) -> None:
    fake.answer = ["Aye.", " I", " can!"]
    with built.play("UnityTalk", fake.endpoint) as play:
        assert play.rest() == [
            "[Aye.] [ I] <sentence Aye.> [ can!] <sentence I can!> <done Aye. I can!>",
            f"budget {64 << 20}",
            "closed True True",
        ]
    fake.wait_for(messages.Goodbye)


def test_unity_npc_is_interrupted_disabled_destroyed(built: Built, fake: FakeBroker) -> None:
    fake.answer = ["a", "b"]
    fake.hold(after_pieces=1)
    with built.play("UnityInterrupts", fake.endpoint) as play:
        assert play.rest() == ["interrupted True", "ended False", "<error broker_gone:", "after 0"]
    assert [said.text for said in fake.requests if isinstance(said, messages.Say)] == ["Long", "Short", "Again", "Back"]


def test_unity_one_broker_a_game(built: Built, fake: FakeBroker) -> None:
    with built.play("UnityCopies", fake.endpoint) as play:
        assert play.rest() == ["copy True False True", "forgotten True True"]


# -- the package ------------------------------------------------------------------------------------------------------


def test_every_asset_has_its_meta() -> None:
    assert run([sys.executable, PACKAGE / "Tools~/metas.py", "--check"]) == ""


def test_the_manifest_and_its_samples() -> None:
    manifest = json.loads((PACKAGE / "package.json").read_text())
    assert re.fullmatch(r"\d+\.\d+\.\d+", manifest["version"])
    assert f"## [{manifest['version']}]" in (PACKAGE / "CHANGELOG.md").read_text()
    assert all(any((PACKAGE / sample["path"]).glob("*.cs")) for sample in manifest["samples"])
    for path in PACKAGE.rglob("*.asmdef"):
        assert json.loads(path.read_text())["name"] == path.stem


def test_the_packed_package_brings_the_library(library: Path, tmp_path: Path) -> None:
    printed = run([sys.executable, PACKAGE / "Tools~/pack.py", "--library", library, tmp_path]).strip()
    with tarfile.open(printed) as tar:
        names = set(tar.getnames())
        meta = tar.extractfile("package/Runtime/Plugins/x86_64/libxlm.so.meta")
        assert meta is not None
        assert "Linux64" in meta.read().decode()
    assert {"package/package.json", "package/Runtime/Plugins/x86_64/libxlm.so"} <= names
    assert not any("Tools~" in name for name in names)


# -- a real broker ----------------------------------------------------------------------------------------------------


def test_against_a_real_broker(built: Built, broker: RunningBroker) -> None:
    assert ", 0 failed" in built.output(built.tests, XLM_TEST_ENDPOINT=broker.endpoint)


def test_the_sample_talks(built: Built, broker: RunningBroker) -> None:
    """samples/unity: the answer is the same whatever the budget does meanwhile."""
    said = [built.output(built.talk, broker.endpoint, "Can you repair my sword?", mib) for mib in ("256", "0")]
    assert said[0].splitlines()[1:] == said[1].splitlines()[1:]
    assert len(said[0].splitlines()[1]) > 10


def test_a_game_with_its_own_broker_is_killed_in_mid_sentence(built: Built, tmp_path: Path) -> None:
    """Broker and engine go with it: nothing is left behind."""
    program = tmp_path / "xlm-broker"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m xlm_broker.cli.broker "$@"\n')
    program.chmod(0o755)
    with tempfile.TemporaryDirectory(prefix="xlm-") as folder:  # short: a socket path holds 107 bytes
        endpoint = f"ipc://{folder}/broker.sock"
        with built.play("UnityStartsABroker", endpoint, XLM_TEST_BROKER=str(program)) as play:
            assert play.line().startswith("[")
            family = psutil.Process(play.process.pid).children(recursive=True)
            commands = " ".join(word for one in family for word in one.cmdline())
            assert "xlm_broker" in commands
            assert "xlm_engine" in commands
            play.process.send_signal(signal.SIGKILL)
            wait_until(lambda: all(ended(one) for one in family), "guard, broker and engine ended")
