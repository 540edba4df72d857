"""Finding and opening the native libraries.

The libraries link against the very ggml that llama-cpp-python brings, by
soname. So that ggml is loaded first, from llama_cpp's own folder; without it
the loader would look for libggml-base.so.0 in the system's folders.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import site
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import cffi

from xlm.errors import DeviceError
from xlm_native import _cdef

DEVICE: Final = "ggml-xlm"
SIM: Final = "ggml-xlm-sim"

# bottom up: each needs those before it
_GGML_LIBRARIES: Final = ("ggml-base", "ggml-cpu", "ggml")


def _file_name(name: str) -> str:
    if sys.platform == "win32":
        return f"{name}.dll"
    return f"lib{name}.dylib" if sys.platform == "darwin" else f"lib{name}.so"


def _package_dir(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) if locations else None


def _candidate_dirs() -> Iterator[Path]:
    here = Path(__file__).resolve().parent
    yield here / "lib"
    # an editable install leaves sources in the tree and puts what cmake installs into site-packages
    for folder in [*site.getsitepackages(), site.getusersitepackages(), *sys.path]:
        if folder:
            yield Path(folder) / "xlm_native" / "lib"
    build = here.parents[2] / "build"
    yield from sorted(build.glob("native*"), reverse=True)
    yield from sorted(build.glob("native*/src/*"), reverse=True)


def search_dirs() -> list[Path]:
    """Folders looked at, in order. XLM_NATIVE_LIB_DIR, when set, is the only one."""
    override = os.environ.get("XLM_NATIVE_LIB_DIR")
    if override:
        return [Path(override)]
    return list(dict.fromkeys(_candidate_dirs()))


def library_path(name: str) -> Path:
    """Path of a native library, ``DEVICE`` or ``SIM``. DeviceError ``device_not_found`` names the folders searched."""
    folders = search_dirs()
    for folder in folders:
        path = folder / _file_name(name)
        if path.is_file():
            return path
    looked = ", ".join([str(folder) for folder in folders[:4]] + ["..."] * (len(folders) > 4))
    raise DeviceError(
        f"the native library {_file_name(name)} was not found (looked in {looked})",
        code="device_not_found",
        hint="build the native libraries: make setup",
    )


def llama_library_dir() -> Path:
    """Folder with llama-cpp-python's ggml libraries. DeviceError ``device_not_found`` if it is not installed."""
    package = _package_dir("llama_cpp")
    if package is None:
        raise DeviceError("llama-cpp-python is not installed", code="device_not_found", hint="make setup")
    return package / "lib"


def _preload(folder: Path, name: str) -> None:
    plain = folder / _file_name(name)
    versioned = folder / f"{_file_name(name)}.0"  # the soname: loading by it makes later loads find the same copy
    path = versioned if versioned.exists() else plain
    if path.exists():
        ctypes.CDLL(str(path))


@functools.cache
def load_ggml() -> Path:
    """Loads llama-cpp-python's ggml into the process (once) and returns its folder."""
    folder = llama_library_dir()
    try:
        for name in _GGML_LIBRARIES:
            _preload(folder, name)
    except OSError as error:
        raise DeviceError(f"ggml of llama-cpp-python cannot be loaded: {error}", code="abi_mismatch") from error
    return folder


@functools.cache
def ffi() -> Any:
    """The one cffi instance: types of both headers."""
    instance = cffi.FFI()
    instance.cdef(_cdef.XLM_DEVICE)
    instance.cdef(_cdef.XLM_SIM)
    return instance


@functools.cache
def open_library(name: str) -> Any:
    """The opened library (once a process). DeviceError ``device_not_found`` or ``abi_mismatch``."""
    path = library_path(name)
    load_ggml()
    try:
        return ffi().dlopen(str(path))
    except OSError as error:
        raise DeviceError(f"{path} cannot be loaded: {error}", code="abi_mismatch") from error
