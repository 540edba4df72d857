#!/usr/bin/env python3
"""Makes the package that a Unity project takes: this folder with the native library in it, and a .tgz of that.

    python3 pack.py --library build/.../libxlm.so [--library xlm.dll ...] OUT_FOLDER

In Unity: Package Manager > + > Add package from tarball (or: from disk, the package.json of OUT_FOLDER/com.xlm.sdk).
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tarfile
from pathlib import Path

import metas


def target_of(library: Path) -> str:
    """Where a library lies in the package, by its name. Linux: libxlm.so without a version, as DllImport asks for."""
    if library.suffix in (".dll", ".dylib"):
        return f"Runtime/Plugins/{'x86_64' if library.suffix == '.dll' else 'macOS'}/{library.name}"
    if library.name.startswith("libxlm.so"):
        return "Runtime/Plugins/x86_64/libxlm.so"
    raise SystemExit(f"pack: {library} is no libxlm.so, .dll or .dylib")


def pack(libraries: list[Path], out: Path) -> Path:
    """The path of the tarball."""
    package = out / "com.xlm.sdk"
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(metas.PACKAGE, package, ignore=shutil.ignore_patterns("Tools~", "__pycache__"))
    for library in libraries:
        target = package / target_of(library)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library, target)
    metas.write_missing(package)
    if found := metas.problems(package):
        raise SystemExit("pack: " + "\n".join(found))
    return archive(package, out)


def archive(package: Path, out: Path) -> Path:
    version = json.loads((package / "package.json").read_text())["version"]
    path = out / f"com.xlm.sdk-{version}.tgz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(package, arcname="package")  # the name that npm and Unity expect
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, action="append", required=True)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    print(pack(options.library, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
