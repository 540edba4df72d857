"""What handling experts one by one saves: traffic and hit rate by number of slots, against whole tensors.

usage: python -m tests.bench.experts [--json FILE] [--skew S] [--quick]

A qwen3moe model of random weights (6 layers, 64 experts, 8 used, 110 MB of experts) whose router likes some experts
more than others, on the virtual GPU in exact mode: every logit is computed, and must be that of whole tensors, bit for
bit. Each row is one schedule in one process: a prompt of 64 tokens, then single tokens chosen by a fixed seed.

    prefill MB   bytes of experts uploaded for the prompt
    MB/token     the same for a token after it
    hit rate     used experts of a layer that were in a slot
    of whole     MB/token over that of whole tensors
    ms/token     with a link of 2 GB/s; the machine's load shows in it, the bytes do not depend on it
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.integration.engine.moe_model import MoeShape, write_moe_model
from xlm.protocol import link
from xlm_engine.device import open_device
from xlm_engine.llama_log import LlamaLog
from xlm_engine.runtime import Row, Runtime

N_PROMPT, N_THREADS, LINK_BYTES_S = 64, 2, 2e9
SLOTS: Final = (0, 4, 8, 16, 24, 32, 48, 64)
WHOLE: Final = -1  # whole tensors through the ring, as for any other weight


def shape_of(skew: float) -> MoeShape:
    return MoeShape(
        n_layer=6,
        n_embd=512,
        n_head=8,
        n_kv_head=4,
        n_expert=64,
        n_used=8,
        n_ff=256,
        skew=skew,
        mixing=0.3,
        quantised=True,
    )


def schedule_of(layers: Sequence[link.SubLayer], n_slots: int, number: int) -> link.Schedule:
    """All but experts resident. A window of one byte holds no experts: whole tensors are left."""
    experts = [layer for layer in layers if layer.kind == "experts"]
    kinds = {"lookup": link.CPU, "experts": link.STREAM}
    return link.Schedule(
        schedule_id=number,
        budget_bytes=0,
        tiers=[link.Tier(max_tokens=1 << 20, placement=bytes(kinds.get(one.kind, link.RESIDENT) for one in layers))],
        priority=list(range(len(layers))),
        ring_bytes=2 * max(layer.largest_piece_bytes for layer in experts),
        expert_window_bytes=1 if n_slots == WHOLE else 16 * experts[0].largest_expert_bytes,
        experts={} if n_slots == WHOLE else {one.index: link.ExpertPolicy(n_slots=n_slots) for one in experts},
    )


class Bench:
    def __init__(self, path: Path, n_tokens: int) -> None:
        sim = link.SimConfig(vram_bytes=1 << 30, link_bytes_per_s=LINK_BYTES_S, link_latency_ns=8000.0)
        self.device: Final = open_device(link.DeviceConfig(kind="sim", sim=sim), 1 << 30, N_THREADS)
        config = link.ModelConfig(path=str(path), n_ctx=512, n_sessions=1, n_ubatch=64)
        self.runtime: Final = Runtime(self.device, config, N_THREADS, LlamaLog(), lambda _fraction: True)
        self.layers: Final = self.device.sublayers()
        rng = np.random.default_rng(5)
        self.prompt: Final = [int(token) for token in rng.integers(1000, 30000, N_PROMPT)]
        self.tokens: Final = [int(token) for token in rng.integers(1000, 30000, n_tokens)]

    def rows(self) -> Iterator[tuple[dict[str, Any], list[bytes]]]:
        for number, n_slots in enumerate((WHOLE, *SLOTS), 1):
            self.device.trim()
            self.device.set_schedule(schedule_of(self.layers, n_slots, number))
            yield self._row(n_slots)

    def _row(self, n_slots: int) -> tuple[dict[str, Any], list[bytes]]:
        self.runtime.clear()
        self.device.reset_stats()
        logits = [self._step(self.prompt, 0)]
        prompt_bytes = self._uploaded()
        self.device.reset_stats()
        began = time.perf_counter()
        logits += [self._step([token], N_PROMPT + i) for i, token in enumerate(self.tokens)]
        seconds = time.perf_counter() - began
        stats = self.device.stats()
        asked = stats["expert_hits"] + stats["expert_misses"]
        row = {
            "slots": n_slots,
            "prefill_bytes": prompt_bytes,
            "bytes_per_token": self._uploaded() / len(self.tokens),
            "hit_rate": stats["expert_hits"] / asked if asked else 0.0,
            "ms_per_token": 1e3 * seconds / len(self.tokens),
            "slot_bytes": self.device.memory().expert_slot_bytes,
        }
        return row, logits

    def _step(self, tokens: Sequence[int], position: int) -> bytes:
        self.device.begin_step(len(tokens))
        last = len(tokens) - 1
        rows = [Row(token, position + i, 0, i == last) for i, token in enumerate(tokens)]
        return self.runtime.decode(rows)[0].tobytes()

    def _uploaded(self) -> int:
        """Only experts stream here, by whichever way."""
        stats = self.device.stats()
        return stats["bytes_streamed"] + stats["expert_bytes_uploaded"]

    def close(self) -> None:
        self.runtime.close()
        self.device.close()


def measure(skew: float, n_tokens: int) -> list[dict[str, Any]]:
    """SystemExit when a logit differs from that of whole tensors."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(write_moe_model(Path(folder) / "moe.gguf", shape_of(skew)), n_tokens)
        found = list(bench.rows())
        bench.close()
    whole, expected = found[0]
    for row, logits in found:
        if logits != expected:
            raise SystemExit(f"{row['slots']} slots: logits differ from those of whole tensors")
        row["of_whole"] = row["bytes_per_token"] / whole["bytes_per_token"]
    return [row for row, _logits in found]


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    head = [
        "| slots | VRAM MB | prefill MB | MB/token | of whole | hit rate | ms/token |",
        "|---|---|---|---|---|---|---|",
    ]
    return head + [
        f"| {'whole tensors' if row['slots'] == WHOLE else row['slots']} | {row['slot_bytes'] / 1e6:.1f} "
        f"| {row['prefill_bytes'] / 1e6:.1f} | {row['bytes_per_token'] / 1e6:.2f} | {row['of_whole']:.3f} "
        f"| {row['hit_rate']:.3f} | {row['ms_per_token']:.1f} |"
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--skew", type=float, default=0.5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    rows = measure(options.skew, 16 if options.quick else 96)
    print("\n".join(table(rows)))
    if options.json is not None:
        options.json.write_text(
            json.dumps({"skew": options.skew, "rows": rows, "table": table(rows)}, indent=1), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
