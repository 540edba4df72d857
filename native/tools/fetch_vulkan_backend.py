"""Put a prebuilt ggml Vulkan backend library into OUT_DIR (build/vulkan).

usage: fetch_vulkan_backend.py OUT_DIR [--llama-lib DIR] [--archive FILE.tgz]

llama-cpp-python's wheels and default builds hold no Vulkan backend, and a build of
one needs the Vulkan SDK's shader compiler. A published npm package holds a prebuilt
library; it is fetched with the ordinary npm client, which also verifies it against
its registry. The library must be exactly the one this project was tried with, so its
digest is pinned here too.

The library asks for `libggml-base.so`; a link of that name beside it leads to the
`libggml-base.so.0` of the installed llama-cpp-python, so that one process has one
ggml-base. Because it was built from a neighbouring ggml version, everything that
crosses the border by number or by size is compared first: ops, unary ops, gated
units, types with their block sizes, tensor and graph sizes, backend API version.

Idempotent: with the right library in place only the link is renewed.
"""

import argparse
import ctypes
import hashlib
import importlib.util
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "@node-llama-cpp/linux-x64-vulkan"
VERSION = "3.22.1"
MEMBER = "package/bins/linux-x64-vulkan/"
LIBRARY = "libggml-vulkan.so"
LIBRARY_SHA256 = "5dbbe80b520118b6b71f3ea31935ba107cee9c9c68f7e7ed18b20cdb424e819b"
BASE = "libggml-base.so"
REFERENCE_BASE = "libggml-base.prebuilt.so"  # the package's own ggml-base: only read for the comparison, never used
BACKEND_API_VERSION = 2
GGML_HEADERS = ("build/ggml/include/ggml.h", "vendor/llama.cpp/ggml/include/ggml.h")


class FetchError(Exception):
    """Says what is missing and what to do about it."""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_platform() -> None:
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise FetchError(
            f"no prebuilt Vulkan backend for {platform.system()} {platform.machine()}: build ggml-vulkan from the "
            "llama-cpp-python source distribution and name it in XLM_VULKAN_LIBRARY (docs/gpu.md)"
        )


def npm_pack(folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FetchError("npm is not installed: run `sudo apt-get install -y npm` and try again")
    command = [npm, "pack", "--json", "--ignore-scripts", "--pack-destination", str(folder), f"{PACKAGE}@{VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FetchError(f"`npm pack {PACKAGE}@{VERSION}` failed:\n{done.stderr.strip()}")
    archives = sorted(folder.glob("*.tgz"))
    if not archives:
        raise FetchError(f"`npm pack` reported success but left no archive: {done.stdout.strip()[:400]}")
    return archives[0]


def extract(archive: Path, out: Path) -> None:
    """Takes the Vulkan library and, for the comparison, the package's own ggml-base. Each appears whole or not."""
    with tarfile.open(archive) as tar:
        for name, target in ((LIBRARY, LIBRARY), (BASE, REFERENCE_BASE)):
            source = tar.extractfile(MEMBER + name)
            if source is None:
                raise FetchError(f"{archive.name} holds no {MEMBER}{name}")
            partial = out / (target + ".part")
            partial.write_bytes(source.read())
            partial.replace(out / target)
    found = sha256(out / LIBRARY)
    if found != LIBRARY_SHA256:
        (out / LIBRARY).unlink()
        raise FetchError(f"{LIBRARY} of {PACKAGE}@{VERSION} has digest {found}, expected {LIBRARY_SHA256}")


def is_complete(out: Path) -> bool:
    library = out / LIBRARY
    return library.is_file() and (out / REFERENCE_BASE).is_file() and sha256(library) == LIBRARY_SHA256


def installed_base(llama_lib: Path | None) -> Path:
    if llama_lib is None:
        spec = importlib.util.find_spec("llama_cpp")
        if spec is None or spec.origin is None:
            raise FetchError(f"llama-cpp-python is not installed for {sys.executable}: run `make setup`")
        llama_lib = Path(spec.origin).parent / "lib"
    base = llama_lib / "libggml-base.so.0"
    if not base.is_file():
        raise FetchError(f"{base} not found: is llama-cpp-python built with shared libraries?")
    return base.resolve()


def link_base(out: Path, base: Path) -> None:
    link = out / BASE
    link.unlink(missing_ok=True)
    link.symlink_to(base)


def header_counts() -> dict[str, int]:
    """How many entries each enum of ggml.h has: the name functions do not check their argument."""
    root = Path(__file__).resolve().parents[2]
    header = next((root / name for name in GGML_HEADERS if (root / name).is_file()), None)
    if header is None:
        raise FetchError("ggml headers not found: run native/tools/fetch_ggml_headers.py first (`make setup` does)")
    text = header.read_text(encoding="utf-8")
    counts = {}
    for enum, prefix in (("ggml_op", "OP"), ("ggml_unary_op", "UNARY_OP"), ("ggml_glu_op", "GLU_OP")):
        body = re.search(rf"enum {enum} \{{(.*?)\}};", text, re.DOTALL)
        names = re.findall(rf"^\s*GGML_{prefix}_\w+", body.group(1), re.MULTILINE) if body else []
        counts[enum] = len([name for name in names if not name.endswith("_COUNT")])
    types = re.search(r"GGML_TYPE_COUNT\s*=\s*(\d+)", text)
    counts["ggml_type"] = int(types.group(1)) if types else 0
    if not all(counts.values()):
        raise FetchError(f"{header}: enums not understood: {counts}")
    return counts


def describe_base(library: Path, counts: dict[str, int]) -> dict[str, Any]:
    """Everything that crosses the border between ggml-base and a backend by number or by size."""
    lib = ctypes.CDLL(str(library), mode=ctypes.RTLD_LOCAL)

    def table(function: str, count: int, restype: Any) -> list[Any]:
        call = getattr(lib, function)
        call.restype, call.argtypes = restype, [ctypes.c_int]
        values = [call(i) for i in range(count)]
        return [v.decode(errors="replace") if isinstance(v, bytes) else v for v in values]

    found: dict[str, Any] = {
        "ops": table("ggml_op_name", counts["ggml_op"], ctypes.c_char_p),
        "unary_ops": table("ggml_unary_op_name", counts["ggml_unary_op"], ctypes.c_char_p),
        "glu_ops": table("ggml_glu_op_name", counts["ggml_glu_op"], ctypes.c_char_p),
        "types": table("ggml_type_name", counts["ggml_type"], ctypes.c_char_p),
        "type_sizes": table("ggml_type_size", counts["ggml_type"], ctypes.c_size_t),
        "block_sizes": table("ggml_blck_size", counts["ggml_type"], ctypes.c_int64),
    }
    for name in ("ggml_tensor_overhead", "ggml_graph_overhead"):
        getattr(lib, name).restype = ctypes.c_size_t
        found[name] = getattr(lib, name)()
    return found


def probe_backend(out: Path) -> dict[str, Any]:
    """Loads the library the way the engine does and reads its API version; the first field of ggml_backend_reg."""
    ctypes.CDLL(str((out / BASE).resolve()), mode=ctypes.RTLD_GLOBAL)
    backend = ctypes.CDLL(str(out / LIBRARY), mode=ctypes.RTLD_LOCAL)
    init = backend.ggml_backend_init
    init.restype = ctypes.c_void_p
    reg = init()
    if not reg:
        return {"registry": False, "why": "no Vulkan driver or loader refused the library"}
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    bases = sorted({line.split()[-1] for line in maps.splitlines() if "libggml-base" in line})
    return {"registry": True, "api_version": ctypes.c_int.from_address(reg).value, "bases": bases}


def in_child(*arguments: str) -> dict[str, Any]:
    """Foreign libraries are loaded in a child: a crash there is a mismatch, not our death."""
    done = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = done.stderr.strip()[-800:] or f"exit status {done.returncode}"
        raise FetchError(f"loading {arguments[-1]} failed: {why}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def check_abi(out: Path, base: Path) -> None:
    ours = in_child("--describe", str(base))
    theirs = in_child("--describe", str(out / REFERENCE_BASE))
    wrong = [key for key in ours if ours[key] != theirs.get(key)]
    if wrong:
        raise FetchError(f"the prebuilt Vulkan backend does not fit the installed ggml: {', '.join(wrong)} differ")
    probe = in_child("--probe", str(out))
    if not probe["registry"]:
        print(f"note: {LIBRARY} loads, but offers nothing here: {probe['why']}")
        return
    if probe["api_version"] != BACKEND_API_VERSION:
        raise FetchError(f"backend API version {probe['api_version']}, ggml here wants {BACKEND_API_VERSION}")
    if len(probe["bases"]) != 1:
        raise FetchError(f"two copies of ggml-base in one process: {', '.join(probe['bases'])}")


def fetch(out: Path, llama_lib: Path | None, archive: Path | None) -> str:
    check_platform()
    base = installed_base(llama_lib)
    out.mkdir(parents=True, exist_ok=True)
    fetched = not is_complete(out)
    if fetched:
        with tempfile.TemporaryDirectory() as folder:
            extract(archive or npm_pack(Path(folder)), out)
    link_base(out, base)
    check_abi(out, base)
    return f"{'fetched' if fetched else 'found'} {PACKAGE}@{VERSION}: {out / LIBRARY}"


def main() -> None:
    parser = argparse.ArgumentParser(description="fetch a prebuilt ggml Vulkan backend with npm")
    parser.add_argument("out", nargs="?", type=Path, metavar="OUT_DIR")
    parser.add_argument("--llama-lib", type=Path, help="lib folder of the installed llama_cpp (default: found)")
    parser.add_argument("--archive", type=Path, help="an already downloaded package archive")
    parser.add_argument("--describe", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--probe", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.describe:
        print(json.dumps(describe_base(arguments.describe, header_counts())))
    elif arguments.probe:
        print(json.dumps(probe_backend(arguments.probe)))
    elif arguments.out is None:
        parser.error("OUT_DIR is missing")
    else:
        try:
            print(fetch(arguments.out, arguments.llama_lib, arguments.archive))
        except (FetchError, OSError, tarfile.TarError, KeyError) as error:
            sys.exit(f"Vulkan backend: {error}")


if __name__ == "__main__":
    main()
