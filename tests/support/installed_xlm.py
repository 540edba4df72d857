"""libxlm as a game's build finds it: installed into a folder of its own, and asked for with pkg-config."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CMAKE = Path(sys.executable).parent / "cmake"
STRICT = ("-Wall", "-Wextra", "-Werror")


@dataclass(frozen=True)
class InstalledXlm:
    """``prefix`` has include/, lib/ and lib/pkgconfig/."""

    prefix: Path

    @property
    def library(self) -> Path:
        return next(self.prefix.glob("**/libxlm.so"))

    @property
    def environment(self) -> dict[str, str]:
        """What a build, and a program that was built, need to find it."""
        config = next(self.prefix.glob("**/pkgconfig"))
        return {**os.environ, "PKG_CONFIG_PATH": str(config), "LD_LIBRARY_PATH": str(self.library.parent)}

    def flags(self) -> list[str]:
        return self.run(["pkg-config", "--cflags", "--libs", "xlm"]).split()

    def run(self, command: Sequence[str | Path]) -> str:
        """Its standard output; fails with all it wrote."""
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def compile(self, out: Path, sources: Sequence[Path], *more: str, warnings: Sequence[str] = STRICT) -> Path:
        """C99 or C++17, by the first source's name."""
        words = ["cc", "-std=c99"] if sources[0].suffix == ".c" else ["c++", "-std=c++17"]
        self.run([*words, "-g", "-O1", *warnings, *sources, *more, *self.flags(), "-o", out])
        return out

    def cmake(self, source: Path, build: Path, options: Sequence[str] = ()) -> Path:
        """Configures and builds a CMake project in ``build``."""
        ninja = f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).parent / 'ninja'}"
        self.run([CMAKE, "-S", source, "-B", build, "-G", "Ninja", ninja, "-DCMAKE_C_FLAGS=-Werror", *options])
        self.run([CMAKE, "--build", build])
        return build


@functools.cache
def installed_xlm() -> InstalledXlm:
    """Of the project's own build. Moved once, because an installation must not know where it was."""
    builds = [path for path in (ROOT / "build").glob("native-cp*") if (path / "src/client/libxlm.so").is_file()]
    assert builds, "libxlm.so was not built: `make setup` builds it where libzmq3-dev and libmsgpack-cxx-dev are"
    build = max(builds, key=lambda path: (path / "src/client/libxlm.so").stat().st_mtime)
    folder = Path(tempfile.mkdtemp(prefix="xlm-installed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [CMAKE, "--install", build, "--component", "xlm", "--prefix", folder / "first"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return InstalledXlm((folder / "first").rename(folder / "moved"))
