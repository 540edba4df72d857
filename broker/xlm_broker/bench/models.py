"""The models of the benchmark: two with random weights, written once, and the small real one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xlm.errors import ModelError, XlmError
from xlm_broker.config import demo_model
from xlm_broker.gguf_facts import read_header

WRITTEN: Final = ("dense", "moe", "tiny", "tiny_moe")
WRITE_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True)
class BenchModel:
    name: str
    path: Path
    n_layer: int
    n_expert: int


def bench_model(name: str, folder: Path, say: Callable[[str], None]) -> BenchModel:
    """``real``, one of ``WRITTEN``, or a GGUF file. ModelError, XlmError."""
    path = demo_model() if name == "real" else folder / f"{name}.gguf" if name in WRITTEN else Path(name)
    if name in WRITTEN and not path.is_file():
        say(f"writing {path}")
        _write(name, path)
    header = read_header(path)["metadata"]
    kind = header.get("general.architecture", "")
    n_layer = int(header.get(f"{kind}.block_count", 0))
    if n_layer <= 0:
        raise ModelError(f"{path} does not say how many layers it has", code="model_invalid")
    return BenchModel(name if name in WRITTEN else path.stem if name != "real" else name, path, n_layer,
                      int(header.get(f"{kind}.expert_count", 0)))  # fmt: skip


def _write(name: str, path: Path) -> None:
    command = [sys.executable, "-m", "xlm_engine.bench", "write", name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WRITE_TIMEOUT_S, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise XlmError(f"{path} could not be written: {last}", code="internal", hint="pip install 'xlm[bench]'")
