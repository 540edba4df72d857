"""Builds what the checks need, as little as that allows, and finds what is already built.

Two builds of llama.cpp run side by side: the libraries as llama-cpp-python has them (libllama, ggml, CPU), and the
CUDA backend alone, as a loadable library for one card. A failure of the second leaves everything else usable, and our
library and the runner are compiled in its shadow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import system

ROOT = Path(__file__).resolve().parents[3]
LLAMA_LIBRARIES = ("libllama.so.0", "libggml.so.0", "libggml-cpu.so.0", "libggml-base.so.0")
NATIVE_LIBRARIES = ("libggml-xlm.so", "libggml-xlm-sim.so")

# GGML_NATIVE off: as the product is built; on some virtual machines AMX code crashes.
LLAMA_FLAGS = (
    "-DGGML_NATIVE=OFF",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_CCACHE=OFF",
    "-DLLAMA_BUILD_COMMON=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_TOOLS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
# F16 KV only and uncompressed: compile time is what is short here. nccl serves several cards only.
CUDA_FLAGS = (
    "-DGGML_CUDA=ON",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_CPU=OFF",
    "-DGGML_CUDA_FA_QUANTS=f16-f16",
    "-DGGML_CUDA_NCCL=OFF",
    "-DGGML_CUDA_COMPRESSION_MODE=none",
)


class BuildError(Exception):
    """Says which step failed and where its log is."""


@dataclass
class Libraries:
    llama: Path
    native: Path
    runner: Path
    device: Path  # the inner device's backend library


@dataclass
class Builder:
    out: Path
    device: str
    jobs: int
    quick: bool
    end: float  # time.monotonic() by which everything must be built
    steps: list[dict[str, Any]] = field(default_factory=list)

    # -- one step ---------------------------------------------------------------

    def run(self, name: str, *command: str) -> None:
        log = self.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        begin = time.monotonic()
        code = self._run_logged(command, log)
        seconds = round(time.monotonic() - begin, 1)
        step = {"step": name, "seconds": seconds, "ok": code == 0, "log": str(log.relative_to(self.out))}
        self.steps.append(step)
        print(f"  {name}: {'done' if code == 0 else 'FAILED'} ({seconds:.0f} s)", flush=True)
        if code != 0:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
            step["tail"] = tail
            raise BuildError(f"{name} failed ({'out of time' if code is None else f'exit status {code}'}):\n{tail}")

    def _run_logged(self, command: tuple[str, ...], log: Path) -> int | None:
        """Exit status; None when it was stopped at the end of the time for building."""
        with log.open("ab") as file:
            file.write((" ".join(command) + "\n").encode())
            file.flush()
            # A session of its own: make and nvcc leave children that a plain kill would miss.
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                return process.wait(timeout=max(1.0, self.end - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 15)
                process.wait()
                return None

    def cmake(self, name: str, source: Path, target: str | None, *flags: str) -> Path:
        folder = self.out / "build" / name
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        # Quick runs are about whether it works: compiling the runner is the longest part of them.
        debug = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0"]
        kind = debug if self.quick and name == "runner" else ["-DCMAKE_BUILD_TYPE=Release"]
        configure = ["cmake", *generator, "-S", str(source), "-B", str(folder), *kind, *flags]
        self.run(f"{name}-configure", *configure)
        build = ["cmake", "--build", str(folder), "-j", str(self.jobs)]
        self.run(f"{name}-build", *build, *(["--target", target] if target else []))
        return folder

    # -- the parts --------------------------------------------------------------

    def llama(self, source: Path) -> Path:
        return given_folder("XLM_LLAMA_LIB_DIR", LLAMA_LIBRARIES) or (
            self.cmake("llama", source, "llama", *LLAMA_FLAGS) / "bin"
        )

    def native(self, source: Path, llama: Path) -> Path:
        given = given_folder("XLM_NATIVE_LIB_DIR", NATIVE_LIBRARIES)
        if given:
            return given
        flags = (
            f"-DXLM_GGML_DIR={source / 'ggml'}",
            f"-DXLM_LLAMA_LIB_DIR={llama}",
            "-DXLM_BUILD_TESTS=OFF",
            "-DXLM_BUILD_CLIENT=OFF",
        )
        folder = self.cmake("native", ROOT / "native", None, *flags)
        found = {name: next(folder.rglob(name), None) for name in NATIVE_LIBRARIES}
        return collect(folder / "lib", found)

    def runner(self, source: Path, llama: Path, native: Path) -> Path:
        flags = (f"-DXLM_LLAMA_LIB_DIR={llama}", f"-DXLM_NATIVE_DIR={native}", f"-DXLM_LLAMA_SOURCE={source}")
        return self.cmake("runner", ROOT / "tests" / "gpu", None, *flags) / "xlm-gpu-check"

    def models(self, runner: Path) -> None:
        """Written while the CUDA backend still compiles; a group that misses its model would write it itself."""
        self.run("models", str(runner), "models", f"models={self.out / 'models'}", f"quick={int(self.quick)}")

    def cuda(self, source: Path) -> Path:
        given = os.environ.get("XLM_CUDA_LIBRARY")
        if given:
            return existing(Path(given), "XLM_CUDA_LIBRARY")
        architecture, nvcc = system.cuda_architecture(), system.find_nvcc()
        if architecture is None:
            raise BuildError("no NVIDIA card found: nvidia-smi reports none")
        if nvcc is None:
            raise BuildError("nvcc not found: install the CUDA toolkit or put its bin folder into PATH")
        flags = (f"-DCMAKE_CUDA_ARCHITECTURES={architecture}", f"-DCMAKE_CUDA_COMPILER={nvcc}")
        folder = self.cmake("cuda", source, "ggml-cuda", *LLAMA_FLAGS, *CUDA_FLAGS, *flags)
        return existing(folder / "bin" / "libggml-cuda.so", "the CUDA backend")

    def device_library(self, source: Path) -> Path | None:
        """None for the virtual GPU, which comes with our own library."""
        if self.device == "cuda":
            return self.cuda(source)
        if self.device == "vulkan":
            named = os.environ.get("XLM_VULKAN_LIBRARY") or ROOT / "build" / "vulkan" / "libggml-vulkan.so"
            return existing(Path(named), "the Vulkan backend (native/tools/fetch_vulkan_backend.py)")
        return None

    def everything(self) -> Libraries:
        """Raises BuildError. Time and outcome of every step are in `steps`, also then."""
        source = llama_source(self.out)
        device: list[Path | None] = []
        errors: list[Exception] = []

        def build_device() -> None:
            try:
                device.append(self.device_library(source))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=build_device)
        thread.start()
        try:
            llama = self.llama(source)
            native = self.native(source, llama)
            runner = self.runner(source, llama, native)
            self.models(runner)
        except (BuildError, OSError) as error:
            errors.append(error)
        finally:
            thread.join()
        if errors:
            raise BuildError("\n".join(str(error) for error in errors))
        return Libraries(llama, native, runner, device[0] or native / "libggml-xlm-sim.so")


def existing(path: Path, what: str) -> Path:
    if not path.is_file():
        raise BuildError(f"{what}: {path} does not exist")
    return path.resolve()


def given_folder(variable: str, names: tuple[str, ...]) -> Path | None:
    """A folder named in the environment, checked for what must be in it."""
    value = os.environ.get(variable)
    if not value:
        return None
    missing = [name for name in names if not (Path(value) / name).exists()]
    if missing:
        raise BuildError(f"{variable}={value} holds no {', '.join(missing)}")
    return Path(value).resolve()


def collect(folder: Path, found: dict[str, Path | None]) -> Path:
    """Links libraries of a build tree into one folder."""
    folder.mkdir(exist_ok=True)
    for name, path in found.items():
        if path is None:
            raise BuildError(f"the native build made no {name}")
        link = folder / name
        if path != link:
            link.unlink(missing_ok=True)
            link.symlink_to(path.resolve())
    return folder


def llama_source(out: Path) -> Path:
    """vendor/llama.cpp: in the kit beside us; in a checkout out of a kit packed before, or packed now."""
    beside = ROOT / "vendor" / "llama.cpp"
    if (beside / "include" / "llama.h").is_file():
        return beside
    unpacked = out / "source" / "xlm-gpu-kit" / "vendor" / "llama.cpp"
    if not (unpacked / "include" / "llama.h").is_file():
        archive = ROOT / "build" / "gpu-kit" / "xlm-gpu-kit.tar.gz"
        if not archive.is_file():
            raise BuildError("no llama.cpp sources here: run `make gpu-kit` first, or run inside the kit")
        shutil.unpack_archive(archive, out / "source")
    return unpacked
