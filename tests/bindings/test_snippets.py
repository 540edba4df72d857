"""The snippets of docs/what-to-call-when.md: compiled in each language; in Python, called too."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

import pytest

import xlm
from tests.bindings.toolchain import csharp, run, tool
from xlm.testing import FakeBroker

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TEXT = (ROOT / "docs/what-to-call-when.md").read_text(encoding="utf-8")
SITUATIONS = ("A level loads", "Alt-tab", "A cut-scene", "Another resolution", "A pause", "Quit")
UNREAL = ROOT / "bindings/unreal/Xlm/Source/XlmRuntime"
INCLUDES = [f"-I{ROOT}/native/include", f"-I{ROOT}/bindings/cpp/include"]
STRICT = ["-fsyntax-only", "-Wall", "-Wextra", "-Werror"]


def blocks(language: str) -> list[str]:
    return [str(block) for block in re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)]


def cpp_blocks(unreal: bool) -> list[str]:
    return [block for block in blocks("cpp") if ("Unreal" in block) == unreal]


def check(compiler: str, source: Path, text: str, *flags: str) -> None:
    source.write_text(text, encoding="utf-8")
    run([tool(compiler), *STRICT, *INCLUDES, *flags, source])


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_situation_has_every_language(situation: str) -> None:
    section = TEXT.split(f"\n## {situation}\n", 1)[1].split("\n## ", 1)[0]
    assert re.findall(r"```(\w+)\n", section) == ["c", "cpp", "csharp", "cpp", "python"]


def test_c(tmp_path: Path) -> None:
    text = "#include <xlm/xlm.h>\n" + "\n".join(blocks("c"))
    check("g++", tmp_path / "all.c", text, "-x", "c", "-std=c99", "-pedantic")


def test_cpp(tmp_path: Path) -> None:
    needed = "void log(const std::string &);\nvoid make_render_targets();\n"
    text = f"#include <xlm/xlm.hpp>\n{needed}" + "\n".join(cpp_blocks(unreal=False))
    check("g++", tmp_path / "all.cpp", text, "-std=c++17")


def test_unreal(tmp_path: Path) -> None:
    text = '#include "XlmNpcComponent.h"\n#include "XlmSubsystem.h"\n' + "\n".join(cpp_blocks(unreal=True))
    stubs = [f"-I{HERE / 'unreal_stub'}", f"-I{UNREAL / 'Public'}"]
    check("g++", tmp_path / "all.cpp", text, "-std=c++17", *stubs)


def test_unity(tmp_path: Path) -> None:
    package = ROOT / "bindings/unity"
    core_files, engine_files = (sorted((package / "Runtime" / part).rglob("*.cs")) for part in ("Core", "Engine"))
    core = csharp(tmp_path / "Xlm.Core.dll", core_files, [Path("System.dll")], "-unsafe")
    engine = csharp(tmp_path / "UnityEngine.dll", [HERE / "unity_stub/UnityEngine.cs"], (), "-nowarn:660,661")
    unity = csharp(tmp_path / "Xlm.Unity.dll", engine_files, [core, engine], "-nowarn:649")
    source = tmp_path / "Snippets.cs"
    source.write_text(
        "using System;\nusing System.Threading;\nusing System.Threading.Tasks;\nusing UnityEngine;\nusing Xlm;\n"
        "using Xlm.Unity;\nclass Snippets : MonoBehaviour {\npublic ulong usualBytes;\npublic XlmNpc greta;\n"
        "void LoadScene(string name) { }\nvoid SetResolution(int width, int height) { }\n"
        + "\n".join(blocks("csharp"))
        + "}\n",
        encoding="utf-8",
    )
    csharp(tmp_path / "Snippets.dll", [source], [core, engine, unity], "-nowarn:649")


def test_python() -> None:
    """Each function is called, with what its parameters' names and types ask for."""
    called = []
    with FakeBroker() as broker:
        for block in blocks("python"):
            namespace: dict[str, typing.Any] = {"xlm": xlm}
            exec(block, namespace)
            with xlm.connect(broker.endpoint, name="snippets") as client, client.open_session() as npc:
                given = {"client": client, "npc": npc, "in_front": True}
                for name in re.findall(r"^def (\w+)", block, re.MULTILINE):
                    wanted = inspect.signature(namespace[name]).parameters
                    namespace[name](**{one: given.get(one, 64 << 20) for one in wanted})
                    called.append(name)
    assert len(called) == len(SITUATIONS)
