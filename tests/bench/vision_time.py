"""Images: time from a picture to the first token and to the last, ours against stock libmtmd and llama.cpp.

On a modelled card, whose work takes the time that its rates say; the CPU's is real. Stock is given the best of what
fits the budget: tower on the card or on the CPU, every ``n_gpu_layers``; each is measured once, with its peak, and a
budget takes the fastest whose peak fits. Ours plans for the budget. Every run is a process of its own.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import llama_cpp.llama_cpp as C

from tests.bench.vision import MIB, RESOLUTIONS, picture, settle
from tests.integration.engine.vision_rig import Rig, rig
from tests.support.stock_vlm import StockVlm, marker, stock_vlm
from tests.support.vlm import Files, write_vlm
from xlm.protocol import link
from xlm.protocol.messages import Sampling
from xlm_broker.planner.sharding.modelled import card_of_sim
from xlm_broker.planner.sharding.planner import ShardingPlanner
from xlm_broker.planner.sharding.tower import tower_from_facts
from xlm_broker.planner.sharding.vision import VisionPlanner
from xlm_engine import device as engine_device
from xlm_engine import logs, warmup
from xlm_engine.vision.image import Image
from xlm_native import Sim

BUDGETS: Final = {"16 MiB": 16 * MIB, "48 MiB": 48 * MIB, "256 MiB": 256 * MIB}
SHAPE: Final = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_ff": 256}
N_TOKENS: Final = 16
TURNS: Final = {"480p": 20, "720p": 10, "1080p": 6, "1440p": 3}  # the least of them counts
SAMPLING: Final = Sampling(temperature=1.0, seed=7)
RATES: Final = {"compute_flops_per_s": 2e12, "memory_bytes_per_s": 100e9}
LINK_BYTES_S: Final = 6e9
VRAM: Final = 3 << 30
N_THREADS: Final = 2
PROMPT: Final = f"<|im_start|>user\n{marker()}Look.<|im_end|>\n<|im_start|>assistant\n"


def sim_settings() -> str:
    return (
        f"vram={VRAM},link={LINK_BYTES_S:g},mode=modelled,flops={RATES['compute_flops_per_s']:g},"
        f"membw={RATES['memory_bytes_per_s']:g}"
    )


# -- in a child


def stock_times(files: Files, resolution: str, tower: bool, layers: int) -> dict[str, Any]:
    """Seconds to the first token and to the last, the least of some turns, and the peak on the card."""
    device = _stock_device() if tower or layers else None
    options: dict[str, Any] = {"n_ctx": 4096, "n_ubatch": 512, "n_threads": N_THREADS}
    with stock_vlm(files, device=device, layers=layers, tower=tower, **options) as stock:
        turns = [_stock_turn(stock, picture(resolution)) for _ in range(TURNS[resolution])]
    peak = Sim().counters().peak_bytes if device is not None else 0
    return {"first_s": min(t[0] for t in turns), "all_s": min(t[1] for t in turns), "peak": peak}


def _stock_device() -> int:
    from xlm_native import _load

    _load.load_ggml()
    ggml = ctypes.CDLL("libggml.so.0")
    for name in ("ggml_backend_load", "ggml_backend_dev_by_type"):
        getattr(ggml, name).restype = ctypes.c_void_p
    assert ggml.ggml_backend_load(str(_load.library_path(_load.SIM)).encode())
    found: int = ggml.ggml_backend_dev_by_type(1)
    return found


def _stock_turn(stock: StockVlm, image: Image) -> tuple[float, float]:
    began = time.perf_counter()
    with _stock_sampler() as sampler:
        stock.evaluate(PROMPT, [image])
        token = C.llama_sampler_sample(sampler, stock.llama.context, -1)
        first = time.perf_counter() - began
        for _ in range(N_TOKENS - 1):
            stock.llama.decode([token])
            token = C.llama_sampler_sample(sampler, stock.llama.context, -1)
        return first, time.perf_counter() - began


@contextmanager
def _stock_sampler() -> Iterator[Any]:
    """llama.cpp's own, with the settings of our turns."""
    chain: Any = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    for part in (
        C.llama_sampler_init_top_k(SAMPLING.top_k),
        C.llama_sampler_init_top_p(SAMPLING.top_p, 1),
        C.llama_sampler_init_min_p(SAMPLING.min_p, 1),
        C.llama_sampler_init_temp(SAMPLING.temperature),
        C.llama_sampler_init_dist(SAMPLING.seed or 0),
    ):
        C.llama_sampler_chain_add(chain, part)
    try:
        yield chain
    finally:
        C.llama_sampler_free(chain)


def our_times(files: Files, resolution: str) -> dict[str, Any]:
    config = link.SimConfig(vram_bytes=VRAM, link_bytes_per_s=LINK_BYTES_S, modelled=True, extra=RATES)
    found: dict[str, Any] = {}
    with rig(files, 0, link.DeviceConfig(kind="sim", sim=config), n_ubatch=512, n_threads=N_THREADS) as engine:
        planner = ShardingPlanner(card=card_of_sim(config), threads=N_THREADS)
        for name, budget in BUDGETS.items():
            found[name] = _our_budget(engine, planner, config, picture(resolution), budget, TURNS[resolution])
    return found


def _our_budget(
    engine: Rig, planner: ShardingPlanner, config: link.SimConfig, image: Image, budget: int, n_turns: int
) -> dict[str, Any]:
    facts = engine.runtime.model_facts(warmup.measure_scratch(engine.runtime, lambda _: None))
    device = engine_device.facts(engine.device, link.DeviceConfig(kind="sim", sim=config), n_threads=N_THREADS)
    schedule = planner.plan(facts, device, budget, schedule_id=budget)
    engine.device.set_budget(budget, 10**10)
    engine.batcher.set_schedule(schedule)
    settle(engine)
    engine.device.reset_stats()
    turns = [_our_turn(engine, image, f"{budget} {turn}") for turn in range(n_turns)]
    memory = engine.device.memory()
    return {
        "first_s": min(t[0] for t in turns), "all_s": min(t[1] for t in turns), "tokens": turns[-1][2],
        "peak": memory.peak_used_bytes, "over": memory.over_budget_events,
        "predicted_encode_ms": dict(schedule.predicted), "limit_s": _limit_s(planner, facts, device, image),
    }  # fmt: skip


def _our_turn(engine: Rig, image: Image, session: str) -> tuple[float, float, int]:
    """An empty card gives equal chances to all tokens, the end among them: they are drawn, not the first one taken."""
    vision = engine.runtime.vision
    assert vision is not None
    vision._seen.clear()
    began = time.perf_counter()
    gen_id = engine.start("Look.", [image], session, max_tokens=N_TOKENS, sampling=SAMPLING)
    while not engine.tokens(gen_id):
        engine.batcher.step()
    first = time.perf_counter() - began
    engine.finish(gen_id)
    taken = time.perf_counter() - began
    count = len(engine.tokens(gen_id))
    engine.batcher.drop_session(session)
    settle(engine)
    return first, taken, count


def _limit_s(planner: ShardingPlanner, facts: link.ModelFacts, device: link.DeviceFacts, image: Image) -> float:
    """Of the encoding: all of the tower on the card, at its rates, nothing waited for."""
    assert facts.projector is not None
    tower = tower_from_facts(facts.projector, len(facts.sublayers))
    assert tower is not None
    planning = planner.planning(facts, device)
    found = VisionPlanner(tower, planning.machine, planning.kernels).plan(
        tower.patches(image.width, image.height)[0], 1 << 40
    )
    return max(found.device_ns, found.upload_ns) / 1e9


# -- in the parent


def measure(quick: bool) -> dict[str, Any]:
    names = ["480p"] if quick else list(RESOLUTIONS)
    with tempfile.TemporaryDirectory(prefix="xlm-") as folder:
        write_vlm(Path(folder), "qwen25vl", **SHAPE)
        return {name: _resolution(folder, name) for name in names}


def _resolution(folder: str, name: str) -> dict[str, Any]:
    ways = [(tower, layers) for tower in (True, False) for layers in (0, 999)]
    stock = [{"way": _way(*way), **_child("stock", folder, name, *way)} for way in ways]
    return {"stock": stock, "ours": _child("ours", folder, name)}


def _way(tower: bool, layers: int) -> str:
    return f"tower {'card' if tower else 'CPU'}, layers {'card' if layers else 'CPU'}"


def _child(what: str, folder: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.vision_time", json.dumps([what, folder, *arguments])]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    env.pop("XLM_SIM", None)
    if what == "stock":
        env["XLM_SIM"] = sim_settings()
    child = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=900)
    assert child.returncode == 0, child.stderr[-3000:]
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def best_stock(stock: list[dict[str, Any]], budget: int, figure: str) -> dict[str, Any]:
    """Chosen for the figure, after measuring."""
    return min((way for way in stock if way["peak"] <= budget), key=lambda way: float(way[figure]))


def rows(result: dict[str, Any]) -> list[str]:
    """A table for docs/benchmarks.md."""
    lines = [
        "| image | budget | stock: first token ms | ours | stock: 16 tokens ms | ours | ratio "
        "| limit of the encoding ms | best stock | never slower |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in result.items():
        for budget_name, budget in BUDGETS.items():
            first, last = (best_stock(row["stock"], budget, figure) for figure in ("first_s", "all_s"))
            ours = row["ours"][budget_name]
            met = ours["first_s"] <= first["first_s"] and ours["all_s"] <= last["all_s"]
            times = (first["first_s"], ours["first_s"], last["all_s"], ours["all_s"])
            lines.append(
                f"| {name} | {budget_name} | "
                + " | ".join(f"{1e3 * seconds:.0f}" for seconds in times)
                + f" | {last['all_s'] / ours['all_s']:.2f} | {1e3 * ours['limit_s']:.1f} "
                f"| {last['way']} | {'met' if met else '**missed**'} |"
            )
    return lines


def _run(what: str, folder: str, *arguments: Any) -> dict[str, Any]:
    files = Files(Path(folder) / "model.gguf", Path(folder) / "mmproj.gguf")
    return stock_times(files, *arguments) if what == "stock" else our_times(files, *arguments)


if __name__ == "__main__":
    logs.configure("error")
    print(json.dumps(_run(*json.loads(sys.argv[1]))))
