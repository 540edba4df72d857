"""Loads one native part and says what it is: ``python -m xlm_broker.cli.probe llama|device|sim|vision|vulkan``.

Run by ``xlm doctor`` as a process of its own, so that a library that crashes
(wrong CPU instructions, a broken driver) is a finding and not the doctor's end.
Prints one JSON object. Nothing here is imported by the broker, and the native
packages are imported by name: no import path leads from the broker to them.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import io
import json
import sys
from importlib import import_module
from typing import Any


def llama() -> dict[str, Any]:
    """llama-cpp-python's build: versions, CPU features, and that they work."""
    llama_cpp, native = import_module("llama_cpp"), import_module("xlm_native")
    base = ctypes.CDLL(str(_ggml_base(native.load_ggml())))
    llama_cpp.llama_backend_init()
    return {
        "version": llama_cpp.__version__,
        "ggml_version": _c_text(base, "ggml_version"),
        "ggml_commit": _c_text(base, "ggml_commit"),
        "system_info": llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip(),
        "gpu_offload": bool(llama_cpp.llama_supports_gpu_offload()),
        "mmap": bool(llama_cpp.llama_supports_mmap()),
    }


def _ggml_base(folder: Any) -> Any:
    names = ("libggml-base.so.0", "libggml-base.so", "libggml-base.dylib", "ggml-base.dll")
    return next((folder / name for name in names if (folder / name).exists()), folder / names[1])


def _c_text(library: ctypes.CDLL, name: str) -> str:
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    return str(function().decode("utf-8", "replace"))


def device() -> dict[str, Any]:
    """The cache device: opening it checks the ABI and runs a toy graph."""
    native = import_module("xlm_native")
    opened = native.Device.open(native.DeviceOptions(inner="none"))
    try:
        return {"build": native.build_info(), "path": str(native.library_path(native.DEVICE))}
    finally:
        opened.close()


def sim() -> dict[str, Any]:
    """The virtual GPU under the cache device."""
    native = import_module("xlm_native")
    path = native.library_path(native.SIM)
    opened = native.Device.open(native.DeviceOptions(inner="sim", inner_library=path))
    try:
        return {"description": opened.description(), "path": str(path)}
    finally:
        opened.close()


def vision() -> dict[str, Any]:
    """libmtmd beside llama.cpp, and Pillow's decoders, each tried on a picture of one pixel."""
    mtmd, pil = import_module("llama_cpp.mtmd_cpp"), import_module("PIL.Image")
    marker = mtmd.mtmd_default_marker()
    kinds = [kind for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF") if _decodes(pil, kind)]
    return {"marker": marker.decode("utf-8", "replace"), "pillow": import_module("PIL").__version__, "formats": kinds}


def _decodes(pil: Any, kind: str) -> bool:
    file = io.BytesIO()
    try:
        pil.new("RGB", (1, 1)).save(file, kind)
        pil.open(file, formats=[kind]).load()
    except Exception:
        return False
    return True


def vulkan() -> dict[str, Any]:
    """The Vulkan loader and the version of the API it offers."""
    name = ctypes.util.find_library("vulkan-1" if sys.platform == "win32" else "vulkan")
    if not name:
        return {"loader": None}
    loader = ctypes.CDLL(name)
    version = ctypes.c_uint32(1 << 22)  # 1.0, where vkEnumerateInstanceVersion does not exist yet
    function = getattr(loader, "vkEnumerateInstanceVersion", None)
    if function is not None:
        function(ctypes.byref(version))
    # VK_API_VERSION_MAJOR and _MINOR: vulkan_core.h
    return {"loader": name, "api": f"{(version.value >> 22) & 0x7F}.{(version.value >> 12) & 0x3FF}"}


PROBES = {"llama": llama, "device": device, "sim": sim, "vision": vision, "vulkan": vulkan}


def main() -> None:
    try:
        answer = PROBES[sys.argv[1]]()
    except Exception as error:
        hint = getattr(error, "hint", "")
        message = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
        answer = {"error": message, "hint": hint}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
