"""Where libxlm is, and how C# and C++ are compiled. A missing tool fails the tests with its Debian package."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "mcs": "mono-mcs",
    "mono": "mono-runtime",
    "g++": "g++",
    "x86_64-w64-mingw32-g++": "g++-mingw-w64-x86-64-win32",
}


def tool(name: str) -> str:
    path = shutil.which(name)
    assert path, f"{name} is needed to test the bindings: apt-get install {PACKAGES[name]}"
    return path


def libxlm() -> Path:
    """The libxlm.so to test: $XLM_LIBRARY, or that of the project's own build."""
    if given := os.environ.get("XLM_LIBRARY"):
        return Path(given)
    built = list((ROOT / "build").glob("native-cp*/src/client/libxlm.so"))
    assert built, "libxlm.so was not built: `make setup` builds it where libzmq3-dev and msgpack-cxx are installed"
    return max(built, key=lambda path: path.stat().st_mtime)


def run(command: Sequence[str | Path]) -> str:
    """Its standard output; fails with all it wrote."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def csharp(out: Path, sources: Sequence[Path], references: Sequence[Path] = (), *more: str) -> Path:
    """Compiles C# 7 with every warning an error; ``out`` ends with .dll or .exe."""
    kind = "library" if out.suffix == ".dll" else "exe"
    words = [f"-target:{kind}", "-langversion:7", "-warnaserror+", *(f"-r:{path}" for path in references), *more]
    assert sources, f"nothing to compile into {out.name}"
    run([tool("mcs"), *words, f"-out:{out}", *sources])
    return out


def cpp(out: Path, sources: Sequence[Path], *more: str) -> Path:
    """Compiles C++17 as an engine does: without exceptions and RTTI."""
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-exceptions", "-fno-rtti"]
    run([tool("g++"), *flags, *more, *sources, "-o", out])
    return out
