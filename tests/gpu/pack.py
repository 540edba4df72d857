"""Pack the GPU kit: all that a machine with an NVIDIA card and no network needs to check this project.

usage: pack.py OUT_DIR [--sdist FILE]        (`make gpu-kit` calls it)

OUT_DIR/xlm-gpu-kit.tar.gz holds our native sources, the runner, and of the pinned
llama-cpp-python source distribution the part of llama.cpp that is built there (ggml
with its CPU and CUDA backends, libllama). Models are generated on the spot. The
archive is the same for the same input, byte for byte.
"""

from __future__ import annotations

import argparse
import gzip
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KIT = "xlm-gpu-kit"
MAX_BYTES = 60 * 1024 * 1024
VENDOR = "vendor/llama.cpp/"

OUR_FOLDERS = ("native", "tests/gpu")
OUR_FILES = ("LICENSE", "docs/gpu.md")
OUR_SUFFIXES = {".c", ".cpp", ".h", ".hpp", ".py", ".sh", ".txt", ".cmake", ".md", ".in", ".inc", ".map", ".def"}

# Of llama.cpp only what libllama, ggml-cpu and ggml-cuda are built from; the top-level CMakeLists.txt reads vendor/.
LLAMA_FILES = ("CMakeLists.txt", "LICENSE", "AUTHORS", "vendor/CMakeLists.txt")
LLAMA_FOLDERS = (
    "cmake/",
    "include/",
    "src/",
    "licenses/",
    "ggml/cmake/",
    "ggml/include/",
    "ggml/src/ggml-cpu/",
    "ggml/src/ggml-cuda/",
    "vendor/hash/",
    "vendor/miniaudio/",
    "vendor/nlohmann/",
    "vendor/sheredom/",
    "vendor/stb/",
)
LLAMA_DIRECT = ("ggml/", "ggml/src/")  # files right in these folders, not below


class PackError(Exception):
    """Says what is missing or too large."""


def pinned_version() -> str:
    found = re.search(r"llama-cpp-python==([0-9.]+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if found is None:
        raise PackError("pyproject.toml names no llama-cpp-python version")
    return found.group(1)


def find_sdist(version: str) -> Path:
    """The source distribution in build/sdist, downloaded there if it is not."""
    folder = ROOT / "build" / "sdist"
    kept = folder / f"llama_cpp_python-{version}.tar.gz"
    if kept.is_file():
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    # The fetcher of the headers knows how; it is a script beside the native sources, not a package.
    sys.path.insert(0, str(ROOT / "native" / "tools"))
    from fetch_ggml_headers import download

    try:
        found: Path = download(version, str(folder))
        return found
    except subprocess.CalledProcessError as error:
        raise PackError(
            f"pip could not download the source distribution of llama-cpp-python {version} ({error}); "
            "pass --sdist FILE if you have it"
        ) from error


def is_wanted(name: str) -> bool:
    """name is relative to vendor/llama.cpp/."""
    if name in LLAMA_FILES or name.startswith(LLAMA_FOLDERS):
        return True
    folder = name.rpartition("/")[0] + "/"
    return folder in LLAMA_DIRECT


def llama_members(sdist: Path) -> Iterator[tuple[str, bytes, bool]]:
    with tarfile.open(sdist) as tar:
        for member in tar:
            _, mark, inner = member.name.partition("/" + VENDOR)
            if not mark or not member.isfile() or not is_wanted(inner):
                continue
            source = tar.extractfile(member)
            if source is not None:
                yield VENDOR + inner, source.read(), bool(member.mode & 0o100)


def our_members() -> Iterator[tuple[str, bytes, bool]]:
    paths = [ROOT / name for name in OUR_FILES]
    for folder in OUR_FOLDERS:
        paths += [path for path in (ROOT / folder).rglob("*") if path.suffix in OUR_SUFFIXES]
    for path in paths:
        if path.is_file() and "__pycache__" not in path.parts:
            name = path.relative_to(ROOT).as_posix()
            yield name, path.read_bytes(), path.suffix == ".sh"


def collect(sdist: Path) -> dict[str, tuple[bytes, bool]]:
    files = {name: (data, executable) for name, data, executable in our_members()}
    llama = {name: (data, executable) for name, data, executable in llama_members(sdist)}
    for needed in ("src/llama.cpp", "ggml/src/ggml-cuda/ggml-cuda.cu", "ggml/src/ggml-backend-impl.h"):
        if VENDOR + needed not in llama:
            raise PackError(f"{sdist.name} holds no {VENDOR}{needed}: not the source distribution of llama-cpp-python?")
    return files | llama


def write_tar(files: dict[str, tuple[bytes, bool]], target: Path) -> None:
    """Sorted names, no owners, no times: the same input gives the same archive."""
    partial = target.with_suffix(".part")
    with (
        partial.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(files):
            data, executable = files[name]
            info = tarfile.TarInfo(f"{KIT}/{name}")
            info.size, info.mode = len(data), 0o755 if executable else 0o644
            tar.addfile(info, io.BytesIO(data))
    partial.replace(target)


def pack(out: Path, sdist: Path | None) -> Path:
    """Writes OUT/xlm-gpu-kit.tar.gz and returns its path; PackError when it is over 60 MB or a part is missing."""
    version = pinned_version()
    out.mkdir(parents=True, exist_ok=True)
    files = collect(sdist or find_sdist(version))
    files["VERSION"] = (f"llama-cpp-python {version}\n".encode(), False)
    target = out / f"{KIT}.tar.gz"
    write_tar(files, target)
    size = target.stat().st_size
    if size > MAX_BYTES:
        raise PackError(f"{target} is {size:,} bytes, more than {MAX_BYTES:,}")
    print(f"{target}: {len(files)} files, {size / 1e6:.1f} MB; unpack it there and run {KIT}/tests/gpu/run.sh")
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description="pack the GPU kit")
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument(
        "--sdist", type=Path, help="source distribution of llama-cpp-python (default: pip downloads it)"
    )
    arguments = parser.parse_args()
    try:
        pack(arguments.out, arguments.sdist)
    except (PackError, OSError, tarfile.TarError) as error:
        sys.exit(f"gpu kit: {error}")


if __name__ == "__main__":
    main()
