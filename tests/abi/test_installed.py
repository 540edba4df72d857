"""libxlm as it is installed: found with pkg-config, used by programs as a reader of the docs writes them.

The programs talk to a real broker with the small model. What costs nothing of the
library (allocations, errors of memory) is shown by its own tests, built without
sanitizers, which bring a malloc of their own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.installed_xlm import ROOT, InstalledXlm, installed_xlm
from tests.support.running_broker import RunningBroker, running_broker, wait_until

C_WARNINGS = ("-Wall", "-Wextra", "-pedantic", "-Wstrict-prototypes", "-Werror")
NATIVE = ROOT / "tests/native"
LEAKS = "definite,indirect"
VALGRIND = (
    *("valgrind", "--quiet", "--error-exitcode=99", "--leak-check=full", f"--show-leak-kinds={LEAKS}"),
    *(f"--errors-for-leak-kinds={LEAKS}", "--child-silent-after-fork=yes"),
    "--fair-sched=try",  # by default a thread that never waits may keep the others from running for as long as it likes
)


@pytest.fixture(scope="module")
def installed() -> InstalledXlm:
    return installed_xlm()


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with running_broker(ctx=1024, sessions=2, sim_vram="256MiB") as broker:
        yield broker


def talk(installed: InstalledXlm, broker: RunningBroker, program: Path, *words: str) -> str:
    environment = {**installed.environment, "XLM_ENDPOINT": broker.endpoint}
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def quick_start(page: str, language: str) -> str:
    """The first whole program of the page, which may be indented."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return next(textwrap.dedent(block) for _, block in blocks if "int main" in block)


QUICK_STARTS = [("c-api.md", "c"), ("cpp.md", "cpp")]


def test_every_sample_shows_the_broker_that_takes_its_budget_from_the_game() -> None:
    files = ["c/hello.c", "c/tavern/README.md", "cpp/hello.cpp", "unity/README.md", "unreal/README.md"]
    files += ["python/npc_dialogue.py", "python/npc_actions.py"]
    for name in files:
        assert "xlm-broker --model demo --budget-from-game" in (ROOT / "samples" / name).read_text(), name


@pytest.mark.parametrize(("page", "language"), QUICK_STARTS)
def test_the_program_of_the_docs_talks(
    installed: InstalledXlm, broker: RunningBroker, tmp_path: Path, page: str, language: str
) -> None:
    source = tmp_path / f"game.{language}"
    source.write_text(quick_start(page, language), encoding="utf-8")
    warnings = C_WARNINGS if language == "c" else ("-Wall", "-Wextra", "-Werror")
    said = talk(installed, broker, installed.compile(tmp_path / "game", [source], warnings=warnings))
    assert len(said.split()) >= 3, said


@pytest.mark.parametrize(("page", "language"), QUICK_STARTS)
def test_the_program_of_the_docs_says_that_no_broker_is_there(
    installed: InstalledXlm, tmp_path: Path, page: str, language: str
) -> None:
    source = tmp_path / f"game.{language}"
    patient = "20000000000u" if language == "c" else "5s"
    program = quick_start(page, language)
    assert patient in program
    source.write_text(program.replace(patient, "1" if language == "c" else "1ns"), encoding="utf-8")
    game = installed.compile(tmp_path / "game", [source])
    environment = {**installed.environment, "XLM_ENDPOINT": f"ipc://{tmp_path}/nobody.sock"}
    done = subprocess.run([game], env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("timeout: no broker answers")
    assert "xlm-broker --model demo --budget-from-game" in done.stderr


def test_an_installation_can_be_moved(installed: InstalledXlm) -> None:
    text = next(installed.prefix.glob("**/xlm.pc")).read_text()
    assert "/first" not in text, "where it was installed first"
    assert str(installed.prefix) in " ".join(installed.flags())


def test_the_cmake_package_is_found(installed: InstalledXlm, broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(game LANGUAGES C CXX)\nfind_package(xlm 0.1 REQUIRED)\n"
        f"add_executable(hello {ROOT}/samples/c/hello.c)\ntarget_link_libraries(hello PRIVATE xlm::xlm)\n"
    )
    options = f"-DCMAKE_PREFIX_PATH={installed.prefix}"
    build = installed.cmake(tmp_path, tmp_path / "build", options=[options])
    assert "[the model may use" in talk(installed, broker, build / "hello", "Say a word.")


def test_the_sample_in_cpp(installed: InstalledXlm, broker: RunningBroker, tmp_path: Path) -> None:
    hello = installed.compile(tmp_path / "hello", [ROOT / "samples/cpp/hello.cpp"])
    assert len(talk(installed, broker, hello, "Say a word.").split()) >= 2


def test_the_samples_in_python(broker: RunningBroker) -> None:
    def run(name: str, lines: str = "") -> str:
        script = ROOT / "samples/python" / name
        environment = {**os.environ, "XLM_ENDPOINT": broker.endpoint, "PYTHONUTF8": "1"}
        done = subprocess.run(
            [sys.executable, script], input=lines, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    spoken = run("npc_dialogue.py", "Hello\n/budget 32MiB\nStill there?\n\n")
    assert spoken.count("Greta: ") == 2
    assert "budget 32MiB" in spoken
    assert len(re.findall(r"-> (open_gate|refuse|attack|wait) \((calm|wary|angry)\)", run("npc_actions.py"))) == 3


def test_the_script_of_the_first_page_takes_memory_back_in_mid_sentence(broker: RunningBroker, tmp_path: Path) -> None:
    script = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[0]
    seeded = script.replace("max_tokens=64", "max_tokens=64, seed=1")  # else an answer may end before that
    assert seeded != script
    (tmp_path / "greta.py").write_text(seeded, encoding="utf-8")
    environment = {**os.environ, "XLM_ENDPOINT": broker.endpoint, "PYTHONUTF8": "1"}
    done = subprocess.run([sys.executable, tmp_path / "greta.py"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"(.+) \[down to (\d+) MiB in [\d.]+ ms\](.+)\n", done.stdout, re.DOTALL)
    assert found is not None, done.stdout
    before, left_mib, after = found.groups()
    assert 0 < int(left_mib) <= 32
    assert len(before.split()) > 3
    assert len(after.split()) > 10


def test_presets_and_packages_are_of_one_mind() -> None:
    """What cannot be run here (Windows) is at least consistent with what can."""
    native = ROOT / "native"
    presets = json.loads((native / "CMakePresets.json").read_text())
    vcpkg = json.loads((native / "vcpkg.json").read_text())
    configured = {one["name"]: one for one in presets["configurePresets"]}
    assert {one["configurePreset"] for one in presets["buildPresets"]} == set(configured)
    assert "vcpkg.cmake" in configured["client-msvc"]["toolchainFile"]
    options = set(re.findall(r"^(?:option|set)\((XLM_\w+)", (native / "CMakeLists.txt").read_text(), re.MULTILINE))
    for preset in configured.values():
        assert {name for name in preset["cacheVariables"] if name.startswith("XLM_")} <= options
    wanted = {one if isinstance(one, str) else one["name"] for one in vcpkg["dependencies"]}
    assert wanted == {"zeromq", "msgpack"}, "libzmq and msgpack-cxx, by vcpkg's names"
    version = re.search(r"project\(xlm_native VERSION ([\d.]+)", (native / "CMakeLists.txt").read_text())
    assert version is not None
    assert version[1] == vcpkg["version-semver"]
    assert f'version = "{version[1]}"' in (ROOT / "pyproject.toml").read_text()


# -- the native tests that need a build without sanitizers ----------------------------------------------------------


def native_test(installed: InstalledXlm, folder: Path, name: str, *more: str) -> Path:
    """One of tests/native, which brings its own main and its fake broker."""
    names = {"PYTHON": sys.executable, "SDK_FOLDER": ROOT / "sdk", "FAKE_BROKER": NATIVE / "fake_broker.py"}
    defines = [f'-DXLM_{key}="{value}"' for key, value in names.items()]
    includes = [f"-I{ROOT}/bindings/cpp/include"]
    return installed.compile(folder / name, [NATIVE / f"{name}.cpp"], *defines, *includes, "-pthread", *more)


def test_frames_of_a_game_allocate_nothing(installed: InstalledXlm, tmp_path: Path) -> None:
    installed.run([native_test(installed, tmp_path, "client_alloc")])


def test_budgets_of_a_real_vulkan_driver(installed: InstalledXlm, tmp_path: Path) -> None:
    """Software Vulkan. Not in the builds with sanitizers: drivers leak a little as they are unloaded."""
    test = native_test(installed, tmp_path, "client_os_budget", "-DXLM_TEST_VULKAN", "-lvulkan")
    done = subprocess.run([test], env=installed.environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stderr


def test_stress_under_valgrind(installed: InstalledXlm, tmp_path: Path) -> None:
    """Fewer rounds than without: valgrind runs one thread at a time, some thirty times slower."""
    stress = native_test(installed, tmp_path, "client_stress")
    environment = {**installed.environment, "XLM_STRESS_PART": "40"}
    done = subprocess.run([*VALGRIND, stress], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


# -- a game that starts its own broker, in C ------------------------------------------------------------------------


def test_nothing_is_left_of_a_program_that_is_killed(
    installed: InstalledXlm, broker: RunningBroker, tmp_path: Path
) -> None:
    hello = installed.compile(tmp_path / "hello", [ROOT / "samples/c/hello.c"])
    with tempfile.TemporaryDirectory() as runtime:
        environment = {**installed.environment, "XLM_ENDPOINT": broker.endpoint, "XDG_RUNTIME_DIR": runtime}
        game = subprocess.Popen([hello, "Tell me a story."], env=environment, stdout=subprocess.PIPE, text=True)
        assert game.stdout is not None
        assert game.stdout.readline().startswith("[the model may use")
        game.kill()
        game.communicate()
        assert os.listdir(runtime) == []
    with broker.connect("observer") as observer:
        wait_until(lambda: [one["name"] for one in observer.status().clients] == ["observer"], "its lease ends")
