"""Installs libxlm, then compiles and runs the program of docs/c-api.md with pkg-config, as a reader would.

python tests/abi/from_docs.py CMAKE BUILD_FOLDER C_COMPILER
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from with_fake_broker import run

DOCS = Path(__file__).resolve().parents[2] / "docs/c-api.md"
WARNINGS = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Wstrict-prototypes", "-Werror")


def program() -> str:
    blocks = re.findall(r"```c\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    return next(str(block) for block in blocks if "int main" in block)


def flags(prefix: Path) -> list[str]:
    """What pkg-config says, once the installation has been moved: it must not know where it was."""
    found = sorted(prefix.glob("**/pkgconfig"))
    variables = {**os.environ, "PKG_CONFIG_PATH": str(found[0])}
    command = ["pkg-config", "--cflags", "--libs", "xlm"]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout.split()


def main(cmake: str, build: str, compiler: str) -> int:
    with tempfile.TemporaryDirectory(prefix="xlm-docs-") as name:
        folder = Path(name)
        install = [cmake, "--install", build, "--component", "xlm", "--prefix", str(folder / "first")]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
        prefix = (folder / "first").rename(folder / "moved")
        source = folder / "first.c"
        source.write_text(program(), encoding="utf-8")
        binary = folder / "program"
        subprocess.run([compiler, *WARNINGS, str(source), *flags(prefix), "-o", str(binary)], check=True)
        library = next(prefix.glob("**/libxlm.so"))
        return run(str(binary), LD_LIBRARY_PATH=str(library.parent))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
