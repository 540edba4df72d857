#!/usr/bin/env python3
"""Makes the plugin folder that an Unreal project takes: Xlm with the headers and the native libraries in it.

    python3 pack.py --library build/.../libxlm.so [--library xlm.dll --library xlm.lib ...] OUT_FOLDER

Copy OUT_FOLDER/Xlm to the Plugins folder of the project.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADERS = [ROOT / "native/include/xlm/xlm.h", ROOT / "bindings/cpp/include/xlm/xlm.hpp"]


def targets(library: Path) -> list[str]:
    """Where Build.cs looks for a library. On Linux the linker asks for libxlm.so, the loader for its soname."""
    if library.suffix in (".dll", ".lib"):
        return [f"lib/Win64/{library.name}"]
    if library.suffix == ".dylib":
        return [f"lib/Mac/{library.name}"]
    if library.name.startswith("libxlm.so"):
        return ["lib/Linux/libxlm.so", "lib/Linux/libxlm.so.0"]
    raise SystemExit(f"pack: {library} is no libxlm.so, .dll, .lib or .dylib")


def pack(libraries: list[Path], out: Path) -> Path:
    plugin = out / "Xlm"
    shutil.rmtree(plugin, ignore_errors=True)
    shutil.copytree(HERE / "Xlm", plugin)
    folder = plugin / "Source/ThirdParty/xlm"
    copies = [(header, folder / "include/xlm" / header.name) for header in HEADERS]
    copies += [(library, folder / target) for library in libraries for target in targets(library)]
    for source, target in copies:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    return plugin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, action="append", required=True)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    print(pack(options.library, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
