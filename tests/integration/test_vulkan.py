"""XLM0 over Vulkan, on software Vulkan: the tokens of the CPU, and the logits of stock llama.cpp on that device.

Two child processes, because drivers and ggml may abort, which must fail a test and not end pytest:

- `fused`, ggml-vulkan as it is used: sixteen tokens equal the CPU's, and streaming does not change a bit.
- `unfused`, with GGML_VK_DISABLE_FUSION: every bit equals stock llama.cpp's. With fusion that cannot be asked of anyone
  who cuts a graph: ggml-vulkan moves the partial sums of an RMS_NORM into the ADD before it as long as they fit a
  buffer of 1024 bytes that starts anew with each graph, so stock's own rounding depends on the length of its graph.

A child writes a JSON line for each scenario as soon as it is done, so that a crash tells how far it came.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from tests.support.model import model_path
from xlm.protocol import link
from xlm_native._load import load_ggml
from xlm_native.device import Device, DeviceOptions

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ.get("XLM_VULKAN_LIBRARY", ROOT / "build" / "vulkan" / "libggml-vulkan.so"))
N_TOKENS = 16
N_TOKENS_SHORT = 5  # where bits are compared: each row holds 49,152 numbers
BUDGET_BYTES = 512 << 20
# Sixteen decided tokens: with other prompts software Vulkan's rounding tips a near tie, in stock llama.cpp too.
PROMPT = (
    "<|im_start|>system\nYou are Greta.<|im_end|>\n"
    "<|im_start|>user\nCan you repair my sword?<|im_end|>\n<|im_start|>assistant\n"
)
Logits = np.ndarray[Any, np.dtype[np.float32]]


# -- in the child ------------------------------------------------------------------


def raw_vulkan_device() -> int:
    """Address of the Vulkan device outside ggml's registry, as stock llama.cpp can be given it."""
    base = ctypes.CDLL(str(load_ggml() / "libggml-base.so.0"))
    init = ctypes.CDLL(str(LIBRARY), mode=ctypes.RTLD_LOCAL).ggml_backend_init
    init.restype = ctypes.c_void_p
    base.ggml_backend_reg_dev_get.restype = ctypes.c_void_p
    base.ggml_backend_reg_dev_get.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    device = base.ggml_backend_reg_dev_get(init(), 0)
    assert device, "no Vulkan device"
    return int(device)


class BufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override"""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def load_model(device: int | None, host_buffer_type: int | None, path: Path) -> Any:
    params = llama_cpp.llama_model_default_params()
    devices = (ctypes.c_void_p * 2)(device, None)
    overrides = (BufferOverride * 2)(BufferOverride(b".*", host_buffer_type), BufferOverride(None, None))
    params.devices = ctypes.cast(devices, ctypes.c_void_p)
    params.n_gpu_layers = 999 if device else 0
    params.use_extra_bufts = False
    params.load_mode = 0  # LLAMA_LOAD_MODE_NONE: no mmap, which would bypass the host buffer type
    if host_buffer_type:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model, "the model does not load"
    return model


def make_context(model: Any) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 128, 32, 32, 1
    params.n_threads = params.n_threads_batch = 2
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
    context = llama_cpp.llama_init_from_model(model, params)
    assert context, "no context"
    return context


class Session:
    """One model on one device; ``xlm`` is given when that device is XLM0."""

    def __init__(self, device: int | None, xlm: Device | None = None, path: Path | None = None) -> None:
        self.xlm = xlm
        with xlm.loading_model("smollm2") if xlm else nullcontext(0) as model_id:
            self.model = load_model(device, xlm.host_buffer_type() if xlm else None, path or model_path())
        with xlm.creating_context(model_id) if xlm else nullcontext():
            self.context = make_context(self.model)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def close(self) -> None:
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def step(self, tokens: Sequence[int]) -> Logits:
        if self.xlm:
            self.xlm.begin_step(len(tokens))
        array = (llama_cpp.llama_token * len(tokens))(*tokens)
        assert llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))) == 0
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (self.n_vocab,)).copy()

    def greedy(self, n_tokens: int) -> tuple[list[int], list[Logits]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        rows = [self.step(self.prompt())]
        tokens = [int(np.argmax(rows[-1]))]
        while len(tokens) < n_tokens:
            rows.append(self.step([tokens[-1]]))
            tokens.append(int(np.argmax(rows[-1])))
        return tokens, rows

    def prompt(self) -> list[int]:
        out = (llama_cpp.llama_token * 32)()
        n = llama_cpp.llama_tokenize(self.vocab, PROMPT.encode(), len(PROMPT), out, len(out), False, True)
        assert n > 0
        return list(out[:n])


@contextmanager
def session(device: int | None, xlm: Device | None = None) -> Iterator[Session]:
    running = Session(device, xlm)
    try:
        yield running
    finally:
        running.close()


def schedule(device: Device, placement: int, number: int) -> link.Schedule:
    """All weights with that placement; lookups on the CPU, and norms resident, which are too small to stream."""
    layers = device.sublayers()
    places = bytearray()
    for layer in layers:
        small = layer.kind == "small" and placement == link.STREAM
        places.append(link.CPU if layer.kind == "lookup" else link.RESIDENT if small else placement)
    ring = 3 * max(layer.largest_piece_bytes for layer in layers) if placement == link.STREAM else 0
    return link.Schedule(
        schedule_id=number,
        budget_bytes=BUDGET_BYTES,
        tiers=[link.Tier(max_tokens=1 << 20, placement=bytes(places))],
        priority=list(range(len(layers))),
        ring_bytes=ring,
        reserve_bytes=ring + (64 << 20),
    )


def under(running: Session, placement: int, n_tokens: int) -> tuple[list[int], list[Logits], dict[str, int]]:
    assert running.xlm
    running.xlm.set_schedule(schedule(running.xlm, placement, placement + 1))
    while running.xlm.settle(64 << 20):
        pass
    running.xlm.reset_stats()
    tokens, rows = running.greedy(n_tokens)
    return tokens, rows, running.xlm.stats()


def difference(test: Sequence[Logits], reference: Sequence[Logits]) -> dict[str, Any]:
    """Of the rows both have: equal bits or not, and the normalized mean squared error of the worst row."""
    pairs = list(zip(test, reference, strict=False))
    errors = [float(np.sum((a - b) ** 2, dtype=np.float64) / np.sum(b**2, dtype=np.float64)) for a, b in pairs]
    return {"equal": all(a.tobytes() == b.tobytes() for a, b in pairs), "worst_nmse": max(errors)}


class Child:
    """Runs scenarios and writes what came out."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def tell(self, scenario: str, **facts: Any) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps({"scenario": scenario, **facts}) + "\n")

    def plain(self, name: str, device: int | None, n_tokens: int) -> list[Logits]:
        with session(device) as running:
            tokens, rows = running.greedy(n_tokens)
        self.tell(name, tokens=tokens)
        return rows

    def xlm(self, n_tokens: int, stock: Sequence[Logits]) -> None:
        """Resident, then streamed; against each other, and against stock where it was run."""
        options = DeviceOptions(inner="vulkan", inner_library=LIBRARY, n_threads=2, budget_bytes=BUDGET_BYTES)
        device = Device.open(options)
        with session(device.ggml_device(), device) as running:
            tokens, resident, stats = under(running, link.RESIDENT, n_tokens)
            against = difference(resident, stock) if stock else None
            self.tell("resident", tokens=tokens, stats=stats, stock=against)
            tokens, streamed, stats = under(running, link.STREAM, N_TOKENS_SHORT)
            against = difference(streamed, stock) if stock else None
            self.tell("streamed", tokens=tokens, stats=stats, stock=against, resident=difference(streamed, resident))
        device.close()

    def fused(self) -> None:
        self.plain("cpu", None, N_TOKENS)
        self.xlm(N_TOKENS, [])

    def unfused(self) -> None:
        stock = self.plain("stock", raw_vulkan_device(), N_TOKENS_SHORT)
        self.xlm(N_TOKENS_SHORT, stock)


# -- in pytest -----------------------------------------------------------------------


Outcome = dict[str, dict[str, Any]]


def run_child(which: str, folder: Path, script: str = __file__, **environment: str) -> Outcome:
    assert LIBRARY.is_file(), f"{LIBRARY} is missing: run `make setup` (it runs native/tools/fetch_vulkan_backend.py)"
    out = folder / f"{which}.jsonl"
    # Device 0 by name: ggml passes over software devices unless told.
    path = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
    env = {**os.environ, "GGML_VK_VISIBLE_DEVICES": "0", "PYTHONPATH": path, **environment}
    command = [sys.executable, script, which, str(out)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    lines = out.read_text().splitlines() if out.is_file() else []
    found = {line["scenario"]: line for line in map(json.loads, lines)}
    ending = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit status {done.returncode}"
    assert done.returncode == 0, f"child {which}: {ending} after {list(found)}:\n{done.stderr[-3000:]}"
    return found


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_child("fused", tmp_path_factory.mktemp("vulkan"))


@pytest.fixture(scope="module")
def unfused(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_child("unfused", tmp_path_factory.mktemp("vulkan"), GGML_VK_DISABLE_FUSION="1")


def assert_on_device(scenario: dict[str, Any], *, streamed: bool) -> None:
    stats = scenario["stats"]
    assert stats["n_segments_device"] > 0
    assert stats["n_fallback_cpu"] == 0
    assert (stats["bytes_streamed"] > 50e6 * N_TOKENS_SHORT) == streamed


def test_resident_speaks_like_the_cpu(fused: Outcome) -> None:
    assert_on_device(fused["resident"], streamed=False)
    assert len(fused["cpu"]["tokens"]) == N_TOKENS
    assert fused["resident"]["tokens"] == fused["cpu"]["tokens"]


def test_streaming_changes_no_bit(fused: Outcome) -> None:
    assert_on_device(fused["streamed"], streamed=True)
    assert fused["streamed"]["resident"]["equal"], fused["streamed"]["resident"]


@pytest.mark.parametrize("placement", ["resident", "streamed"])
def test_logits_equal_stock_llama_cpp_on_the_same_device(unfused: Outcome, placement: str) -> None:
    assert_on_device(unfused[placement], streamed=placement == "streamed")
    assert unfused[placement]["stock"]["equal"], unfused[placement]["stock"]
    assert unfused[placement]["tokens"] == unfused["stock"]["tokens"]


if __name__ == "__main__":
    getattr(Child(Path(sys.argv[2])), sys.argv[1])()
