"""Worker: a bare llama.cpp loop on the virtual GPU, all layers on the device.

Reads one line per round from stdin and answers with one JSON line
{"tokens": N, "seconds": S}; so that rounds can be interleaved with another
process on the same machine. Started by throughput.py.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

import llama_cpp

import xlm_native
from tests.support.model import PlainLlama, model_path, smollm_prompt
from xlm._threads import step_back


def sim_device() -> int:
    """ggml_backend_dev_t of SIM0, loaded as any user of stock llama.cpp would."""
    os.environ.setdefault("XLM_SIM", "vram=1GiB")
    base = ctypes.CDLL(str(xlm_native.llama_library_dir() / "libggml.so.0"))
    base.ggml_backend_load.restype = ctypes.c_void_p
    assert base.ggml_backend_load(str(xlm_native.library_path("ggml-xlm-sim")).encode())
    base.ggml_backend_dev_by_name.restype = ctypes.c_void_p
    return int(base.ggml_backend_dev_by_name(b"SIM0"))


def main() -> None:
    step_back()  # as the engine does: whatever else runs takes the CPU from both alike
    system, text = sys.argv[1:3]
    n_tokens, n_ctx, n_threads = map(int, sys.argv[3:6])
    llama = PlainLlama(model_path(), n_ctx=n_ctx, device=sim_device(), n_gpu_layers=999, n_threads=n_threads)
    prompt = smollm_prompt(llama, system, text)
    for _ in sys.stdin:
        llama.reset()
        llama.decode(prompt)
        token, start, count = llama.argmax(), time.perf_counter(), 0
        while count < n_tokens and not llama_cpp.llama_vocab_is_eog(llama.vocab, token):
            llama.decode([token])
            token, count = llama.argmax(), count + 1
        print(json.dumps({"tokens": count, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
