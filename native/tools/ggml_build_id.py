"""Print "<version> <commit>" of a ggml-base library: ggml_build_id.py LIBGGML_BASE."""

import ctypes
import sys


def build_id(library: str) -> str:
    lib = ctypes.CDLL(library)
    parts = []
    for name in ("ggml_version", "ggml_commit"):
        function = getattr(lib, name)
        function.restype = ctypes.c_char_p
        parts.append(function().decode())
    return " ".join(parts)


if __name__ == "__main__":
    print(build_id(sys.argv[1]))
