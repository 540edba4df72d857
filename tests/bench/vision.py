"""Images: device memory of a whole request, ours against stock libmtmd and llama.cpp; reclaim in mid-encode.

The reclaims alone, in under four minutes on a quiet machine: ``python -m tests.bench.vision_reclaim``.

Every run is a process of its own: devices cannot be taken out of ggml's registry, and a peak is a process' peak.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.integration.engine.vision_rig import Rig, rig
from tests.support.stock_vlm import marker, stock_vlm
from tests.support.vlm import Files, frame, write_vlm
from xlm.protocol import link
from xlm_engine import logs
from xlm_engine.vision.image import Image
from xlm_native import Sim

MIB = 1 << 20
RESOLUTIONS = {"480p": (854, 480), "720p": (1280, 720), "1080p": (1920, 1080), "1440p": (2560, 1440)}
BUDGETS = {"6 MiB": 6 * MIB, "16 MiB": 16 * MIB, "all": 1 << 31}
VRAM = 3 << 30
SHAPE = {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_ff": 256}  # patches of 28 pixels: 4,784 at 1440p
N_TOKENS = 8


def make_files(folder: Path) -> Files:
    return write_vlm(folder, "qwen25vl", **SHAPE)


def picture(name: str) -> Image:
    width, height = RESOLUTIONS[name]
    return Image.from_rgb8(frame(width, height), width, height)


# -- in a child


def stock_peak(files: Files, resolution: str, *, flash: bool) -> dict[str, Any]:
    """Everything on the device, as llama.cpp does it when told to use the card."""
    from xlm_native import _load

    _load.load_ggml()
    os.environ["XLM_SIM"] = f"vram={VRAM},link=0"
    ggml = ctypes.CDLL("libggml.so.0")
    for name in ("ggml_backend_load", "ggml_backend_dev_by_type"):
        getattr(ggml, name).restype = ctypes.c_void_p
    assert ggml.ggml_backend_load(str(_load.library_path(_load.SIM)).encode())
    device = ggml.ggml_backend_dev_by_type(1)
    with stock_vlm(files, device=device, flash=flash, n_ctx=4096, n_ubatch=64, n_threads=2) as stock:
        tokens = stock.greedy(f"<|im_start|>user\n{marker()}Look.<|im_end|>\n", [picture(resolution)], N_TOKENS)
    return {"peak": Sim().counters().peak_bytes, "tokens": tokens}


def our_peaks(files: Files, resolution: str) -> dict[str, Any]:
    """By budget: the virtual GPU's own peak over a request, its parts alone, and what ran where."""
    found: dict[str, Any] = {}
    sim = link.DeviceConfig(kind="sim", sim=link.SimConfig(vram_bytes=VRAM, link_bytes_per_s=0))
    with rig(files, 0, sim) as engine:
        for name, budget in BUDGETS.items():
            found[name] = one_budget(engine, picture(resolution), budget)
    return found


def one_budget(engine: Rig, image: Image, budget: int) -> dict[str, Any]:
    vision = engine.runtime.vision
    assert vision is not None
    engine.set_budget(budget)
    settle(engine)
    engine.device.reset_stats()
    engine.say("Words.", [], session=f"w{budget}", max_tokens=N_TOKENS)
    language = engine.device.memory().peak_used_bytes
    engine.device.trim()
    vision._seen.clear()
    engine.device.reset_stats()
    began = time.perf_counter()
    seen = vision.see(image.key, image)
    while vision.encode_one([seen], 1):
        pass
    encode_s = time.perf_counter() - began
    alone = engine.device.memory().peak_used_bytes
    stats = engine.device.stats()
    vision.end_phase()
    vision._seen.clear()
    settle(engine)
    engine.device.reset_stats()
    engine.say("Look.", [image], session=f"i{budget}", max_tokens=N_TOKENS)
    memory = engine.device.memory()
    return {
        "peak": memory.peak_used_bytes,
        "device": memory.device_used_bytes,
        "over": memory.over_budget_events,
        "language": language,
        "vision": alone,
        "encode_s": encode_s,
        "segments_device": stats["n_segments_device"],
        "segments_cpu": stats["n_segments_cpu"],
    }


def settle(engine: Rig) -> None:
    engine.batcher.budget_changed()
    while engine.batcher.has_uploads:
        engine.batcher.settle(1 << 40)


def reclaims(files: Files, resolution: str, rounds: int, limit_s: float = math.inf) -> dict[str, Any]:
    """Budget to zero and back, each time just after the device was given work of an image. Fewer after ``limit_s``."""
    sim = link.DeviceConfig(kind="sim", sim=link.SimConfig(vram_bytes=VRAM, link_bytes_per_s=0))
    with rig(files, 1 << 30, sim) as engine:
        engine.device.reset_stats()
        encode(engine, picture(resolution))
        longest = engine.device.stats()["sublayer_ns_max"]
        taken: list[int] = []
        ends = time.monotonic() + limit_s
        thread = threading.Thread(target=lambda: _take_budgets(engine, rounds, ends, taken))
        thread.start()
        while thread.is_alive():
            encode(engine, picture(resolution))
        over = engine.device.memory().over_budget_events
    assert taken, "not one reclaim in time"
    taken.sort()
    return {
        "n": len(taken),
        "p50_ms": taken[len(taken) // 2] / 1e6,
        "p99_ms": taken[min(len(taken) - 1, len(taken) * 99 // 100)] / 1e6,
        "longest_sublayer_ms": longest / 1e6,
        "over_grant": over,
    }


def _take_budgets(engine: Rig, rounds: int, ends: float, taken: list[int]) -> None:
    while len(taken) < rounds and time.monotonic() < ends:
        before = _given(engine)
        while _given(engine) == before:
            time.sleep(0.0005)
        taken.append(engine.device.set_budget(0, 10**11).release_ns)
        engine.device.set_budget(1 << 30, 10**10)


def _given(engine: Rig) -> int:
    """Pieces of work that the device was given."""
    stats = engine.device.stats()
    return stats["n_segments_device"] + stats["n_patch_tiles"] + stats["n_attention_tiles"]


def encode(engine: Rig, image: Image) -> None:
    vision = engine.runtime.vision
    assert vision is not None
    vision._seen.clear()
    seen = vision.see(image.key, image)
    while vision.encode_one([seen], 1):
        pass


# -- in the parent


def measure(quick: bool) -> dict[str, Any]:
    names = ["480p", "720p"] if quick else list(RESOLUTIONS)
    with tempfile.TemporaryDirectory(prefix="xlm-") as folder:
        make_files(Path(folder))
        return {
            "peaks": {name: _row(folder, name) for name in names},
            "reclaim": child("reclaim", folder, names[-1], 20 if quick else 100),
        }


def _row(folder: str, name: str) -> dict[str, Any]:
    return {
        "stock": child("stock", folder, name, False)["peak"],
        "stock_flash": child("stock", folder, name, True)["peak"],
        "ours": child("ours", folder, name),
    }


def child(what: str, folder: str, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.vision", json.dumps([what, folder, *arguments])]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    env.pop("XLM_SIM", None)
    if what == "stock":
        env["XLM_SIM"] = f"vram={VRAM},link=0"
    child = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=900)
    assert child.returncode == 0, child.stderr[-3000:]
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


def rows(result: dict[str, Any]) -> list[str]:
    """Tables for docs/benchmarks.md."""
    lines = [
        "| image | stock, no flash MiB | stock, flash MiB | "
        + " | ".join(f"ours, budget {name}" for name in BUDGETS)
        + " | max(vision, language), budget all | peak ≤ 1.05 x that | stock / ours, all on the device | with flash |",
        "|---|---|---|" + "---|" * (len(BUDGETS) + 4),
    ]
    for name, row in result["peaks"].items():
        ours, whole = row["ours"], row["ours"]["all"]
        larger = max(whole["vision"], whole["language"])
        ratio, ratio_flash = (row[which] / max(1, whole["peak"]) for which in ("stock", "stock_flash"))
        lines.append(
            f"| {name} | {row['stock'] / MIB:.1f} | {row['stock_flash'] / MIB:.1f} | "
            + " | ".join(f"{ours[budget]['peak'] / MIB:.1f}" for budget in BUDGETS)
            + f" | {larger / MIB:.1f} | {'met' if whole['peak'] <= 1.05 * larger else '**missed**'} "
            f"| {ratio:.1f} | {ratio_flash:.1f} |"
        )
    return [*lines, "", *reclaim_rows(result["reclaim"])]


def reclaim_rows(r: dict[str, Any]) -> list[str]:
    bound = r["longest_sublayer_ms"] + 5
    return [
        "| reclaims in mid-encode | p50 ms | p99 ms | longest sub-layer ms | over the grant | p99 ≤ that + 5 ms |",
        "|---|---|---|---|---|---|",
        f"| {r['n']} | {r['p50_ms']:.2f} | {r['p99_ms']:.2f} | {r['longest_sublayer_ms']:.2f} | {r['over_grant']} "
        f"| {'met' if r['p99_ms'] <= bound else '**missed**'} |",
    ]


def _run(what: str, folder: str, *arguments: Any) -> dict[str, Any]:
    files = Files(Path(folder) / "model.gguf", Path(folder) / "mmproj.gguf")
    if what == "stock":
        return stock_peak(files, arguments[0], flash=arguments[1])
    return our_peaks(files, arguments[0]) if what == "ours" else reclaims(files, *arguments)


if __name__ == "__main__":
    logs.configure("error")
    print(json.dumps(_run(*json.loads(sys.argv[1]))))
