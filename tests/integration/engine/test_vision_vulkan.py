"""Images on XLM0 over Vulkan: encoded on the CPU, to its bits, whatever the budget does.

In a child process, for drivers and ggml may abort, which must fail a test and not end pytest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.integration.engine.test_vision import encode, picture
from tests.integration.engine.vision_rig import rig
from tests.integration.test_vulkan import LIBRARY, run_child
from tests.support.stock_vlm import stock_vlm
from tests.support.vlm import write_vlm
from xlm.protocol import link

BUDGETS_MIB = (64, 1, 64)


# -- in the child


def compare(family: str, out: Path) -> None:
    files = write_vlm(out.parent, family, n_layer=2)
    image = picture(336, 336)
    with stock_vlm(files, n_ctx=1024, n_ubatch=64, n_threads=1) as stock:
        expected = stock.embeddings(image)
    with rig(files, 0, link.DeviceConfig(kind="vulkan", library=str(LIBRARY))) as engine:
        for i, budget in enumerate(BUDGETS_MIB):
            engine.set_budget(budget << 20)
            engine.device.reset_stats()
            parts = encode(engine, image).embeddings
            equal = all(p is not None and np.array_equal(p, q) for p, q in zip(parts, expected, strict=True))
            facts = {"scenario": str(i), "equal": equal, "stats": engine.device.stats()}
            with out.open("a") as file:
                file.write(json.dumps(facts) + "\n")


# -- in pytest


@pytest.mark.parametrize("family", ["qwen25vl", "gemma3"])
def test_images_are_the_cpus_and_the_engine_lives(family: str, tmp_path: Path) -> None:
    found = run_child(family, tmp_path, __file__)
    for i in range(len(BUDGETS_MIB)):
        scenario = found[str(i)]
        assert scenario["equal"], scenario
        assert scenario["stats"]["n_vision_graphs"] > 0
        assert scenario["stats"]["n_segments_device"] == 0


if __name__ == "__main__":
    compare(sys.argv[1], Path(sys.argv[2]))
