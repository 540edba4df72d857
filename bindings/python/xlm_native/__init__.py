"""cffi binding (ABI mode) of libggml-xlm, the cache device, and libggml-xlm-sim, the virtual GPU."""

from xlm_native._call import NativeError
from xlm_native._load import DEVICE, SIM, library_path, llama_library_dir, load_ggml
from xlm_native.device import Device, DeviceOptions, Memory, Release, build_info
from xlm_native.sim import Counters, Sim

__all__ = [
    "DEVICE",
    "SIM",
    "Counters",
    "Device",
    "DeviceOptions",
    "Memory",
    "NativeError",
    "Release",
    "Sim",
    "build_info",
    "library_path",
    "llama_library_dir",
    "load_ggml",
]
