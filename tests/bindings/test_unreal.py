"""The Unreal plugin: its engine-free core against the real libxlm, the rest for syntax against a stub of the API."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.bindings.play import Play, expected_sentences
from tests.bindings.toolchain import cpp, run, tool
from tests.support.processes import ended
from tests.support.running_broker import RunningBroker, wait_until
from xlm.protocol import messages
from xlm.testing import FakeBroker

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLUGIN = ROOT / "bindings/unreal/Xlm"
MODULE = PLUGIN / "Source/XlmRuntime"
INCLUDES = [MODULE / "Public", ROOT / "bindings/cpp/include", ROOT / "native/include"]
SAMPLE = ROOT / "samples/unreal/TavernKeeper"
UNREAL_SOURCES = sorted([*(MODULE / "Private").glob("*.cpp"), *SAMPLE.glob("*.cpp")])
SOURCES = [HERE / "cpp/core.cpp", MODULE / "Private/XlmCore/BrokerProcess.cpp"]


@dataclass(frozen=True)
class Core:
    program: Path
    folder: Path  # of libxlm.so

    def play(self, name: str, endpoint: str | Path, **environment: str) -> Play:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.folder), **environment}
        return Play([str(self.program), name, str(endpoint)], environment)


@pytest.fixture(scope="session")
def core(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Core:
    """With the sanitizers that find use after free, leaks and undefined behaviour."""
    program = tmp_path_factory.mktemp("unreal") / "core"
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    includes = [f"-I{folder}" for folder in INCLUDES]
    cpp(program, SOURCES, *sanitizers, *includes, "-x", "none", str(library.resolve()))
    folder = program.parent
    (folder / "libxlm.so.0").symlink_to(library.resolve())
    return Core(program, folder)


# -- the core ---------------------------------------------------------------------------------------------------------


def test_talk(core: Core, fake: FakeBroker) -> None:
    fake.answer = ["Für dich.", " Gern", " geschehen!"]
    with core.play("talk", fake.endpoint) as play:
        turn, told = play.rest()
    assert turn == "turn 1"
    whole = "Für dich. Gern geschehen!"
    assert told == f"[+Für dich.][+ Gern][s:Für dich.][+ geschehen!][s:Gern geschehen!][done:{whole}]"
    said = fake.wait_for(messages.Say)
    assert (said.text, said.max_tokens, said.stop) == ("Hallo ⚔", 99, ["Ende", "旅"])
    assert (said.sampling.temperature, said.sampling.json_schema) == (0.25, "{}")
    assert fake.wait_for(messages.OpenSession).system == "Grüße von Greta"
    fake.wait_for(messages.Goodbye)


def test_a_question_interrupts(core: Core, fake: FakeBroker) -> None:
    fake.answer = ["a", "b"]
    fake.hold(after_pieces=1)
    with core.play("interrupt", fake.endpoint) as play:
        assert play.line() == "turns 3 1"
        assert play.line() == "talking 1 3"
        assert play.line() == "released"
        fake.release()
        assert play.rest() == ["[+a][s:a][done:a][+a][+b][s:ab][done:ab]"]
    said = [request for request in fake.requests if isinstance(request, messages.Say)]
    assert [one.text for one in said] == ["Long", "Short"]
    assert said[1].stop == ["a stop text that is too long for the small string of a library"]


def test_a_question_with_a_frame_interrupts_too(core: Core, fake: FakeBroker) -> None:
    fake.answer = ["a", "b"]
    fake.hold(after_pieces=1)
    with core.play("image", fake.endpoint) as play:
        fake.wait_for(messages.Cancel)
        fake.release()
        (told,) = play.rest()
    assert told.endswith("[done:ab] freed")
    say = fake.wait_for(messages.Say, 2)
    assert [fake.images[key] for key in say.images] == [b"BGRxbgrx"]


def test_stop(core: Core, fake: FakeBroker) -> None:
    fake.answer = ["a", "b"]
    fake.hold(after_pieces=1)
    with core.play("stop", fake.endpoint) as play:
        assert play.rest() == ["[+a][s:a][done:a]"]


def test_a_listener_may_destroy_and_close(core: Core, fake: FakeBroker) -> None:
    fake.answer = ["One. ", "Two."]
    again = "[+One. ][+Two.][s:One.][s:Two.][done:One. Two.]"
    with core.play("within", fake.endpoint) as play:
        assert play.rest() == [
            "+ [+One. ]",
            f"again [+One. ]{again}",
            "s: [+One. ][+Two.][s:One.]",
            f"again [+One. ][+Two.][s:One.]{again}",
            "done: [+One. ][+Two.][s:One.][s:Two.][done:One. Two.]",
            f"again {again}{again}",
        ]


def test_errors(core: Core, fake: FakeBroker) -> None:
    fake.fail_next("say", "context_overflow")
    with core.play("errors", fake.endpoint) as play:
        assert play.line() == "[error:context_overflow][error:sampling_invalid] 2"
        assert play.line() == "kill"
        fake.kill()
        assert play.line() == "[error:broker_gone]"
        fake.restart()
        told = "[+Greetings,][+ traveller.][s:Greetings, traveller.][done:Greetings, traveller.]"
        assert play.rest() == [f"[error:broker_gone]{told}{told}"]


def test_sentences(core: Core) -> None:
    """The list that C# is tested with too, each line in pieces of one character, of five, and as a whole."""
    path = HERE / "sentences.txt"
    with core.play("sentences", path) as play:
        assert play.rest() == [line for line in expected_sentences(path) for _ in range(3)]


def test_sentences_of_bytes_that_are_no_text(core: Core) -> None:
    with core.play("garbage", "") as play:
        assert play.rest() == ["many"]


def test_a_started_broker_ends_with_the_game(core: Core, stand_in: Path, tmp_path: Path) -> None:
    with core.play("process", tmp_path, XLM_TEST_BROKER=str(stand_in)) as play:
        pid, words = play.started(tmp_path)
        assert words == ["--endpoint", str(tmp_path), 'it\'s "quoted" $HOME `ls` \\ *']
        play.say("stop")
        assert play.rest() == ["running 1", "missing 127"]
    assert (tmp_path / "ended").read_text() == "politely"
    assert ended(pid)


def test_a_killed_game_leaves_no_broker(core: Core, stand_in: Path, tmp_path: Path) -> None:
    with core.play("process", tmp_path, XLM_TEST_BROKER=str(stand_in)) as play:
        pid, _ = play.started(tmp_path)
        family = [psutil.Process(pid), psutil.Process(pid).parent()]
        play.process.send_signal(signal.SIGKILL)
        wait_until(lambda: all(one is None or ended(one) for one in family), "broker and guard ended")
    assert (tmp_path / "ended").read_text() == "politely"


def test_the_process_for_windows_compiles(tmp_path: Path) -> None:
    """Compiled, not run."""
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fno-exceptions", "-fno-rtti"]
    includes = [f"-I{folder}" for folder in INCLUDES]
    run([tool("x86_64-w64-mingw32-g++"), *flags, *includes, "-c", SOURCES[1], "-o", tmp_path / "process.o"])


def test_against_a_real_broker(core: Core, broker: RunningBroker) -> None:
    with core.play("talk", broker.endpoint) as play:
        turn, told = play.rest()
    assert turn == "turn 1"
    assert told.startswith("[+")
    assert "[done:" in told
    assert "[error:" not in told


# -- the Unreal layer -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [0, 1])
@pytest.mark.parametrize("source", UNREAL_SOURCES, ids=lambda path: path.stem)
def test_syntax_against_the_stub(source: Path, windows: int) -> None:
    flags = ["-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fno-exceptions", "-fno-rtti"]
    includes = [f"-I{HERE / 'unreal_stub'}", f"-I{MODULE / 'Private'}", *(f"-I{folder}" for folder in INCLUDES)]
    run([tool("g++"), *flags, f"-DPLATFORM_WINDOWS={windows}", *includes, source])


def test_every_header_stands_alone(tmp_path: Path) -> None:
    for header in sorted((MODULE / "Public").rglob("*.h")):
        unit = tmp_path / "unit.cpp"
        unit.write_text(f'#include "{header.relative_to(MODULE / "Public")}"\n')
        includes = [f"-I{HERE / 'unreal_stub'}", *(f"-I{folder}" for folder in INCLUDES)]
        run([tool("g++"), "-std=c++17", "-fsyntax-only", "-Wall", "-Werror", *includes, unit])


def test_the_plugin_is_described_as_it_is() -> None:
    plugin = json.loads((PLUGIN / "Xlm.uplugin").read_text())
    for module in plugin["Modules"]:
        folder = PLUGIN / "Source" / module["Name"]
        assert f"class {module['Name']} : ModuleRules" in (folder / f"{module['Name']}.Build.cs").read_text()
        line = f"IMPLEMENT_MODULE(FXlmModule, {module['Name']})"
        assert any(line in path.read_text() for path in folder.rglob("*.cpp"))


def test_every_reflected_header_includes_its_generated_one_last() -> None:
    """UnrealHeaderTool refuses anything else."""
    for header in (MODULE / "Public").glob("*.h"):
        includes = [line for line in header.read_text().splitlines() if line.startswith("#include")]
        assert includes[-1] == f'#include "{header.stem}.generated.h"'


def test_the_packed_plugin_is_whole(library: Path, tmp_path: Path) -> None:
    """What Build.cs names is where pack.py puts it."""
    run([sys.executable, ROOT / "bindings/unreal/pack.py", "--library", library, tmp_path])
    folder = tmp_path / "Xlm/Source/ThirdParty/xlm"
    assert (folder / "lib/Linux/libxlm.so").stat().st_size == library.stat().st_size
    assert (folder / "lib/Linux/libxlm.so.0").is_file()
    build = (MODULE / "XlmRuntime.Build.cs").read_text()
    assert all(f'"{name}"' in build for name in ("libxlm.so", "libxlm.so.0", "include", "lib", "ThirdParty"))
    unit = tmp_path / "unit.cpp"
    unit.write_text("#include <xlm/xlm.hpp>\n")
    run([tool("g++"), "-std=c++17", "-fsyntax-only", f"-I{folder / 'include'}", unit])
