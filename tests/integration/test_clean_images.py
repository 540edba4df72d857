"""Nothing grows: fifty images in a row at a fixed budget leave device counter and memory where they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import xlm
from tests.integration.test_clean import least_growth
from tests.support.running_broker import running_broker
from tests.support.vlm import frame, write_vlm

ROUNDS, ROUND, WARM_UP = 3, 17, 6
WIDTH, HEIGHT = 448, 448  # 600 KB of pixels, 256 patches
LEAK_BYTES = 150 << 10  # an image that leaves so much behind is a leak


def look(client: xlm.Client, seed: int) -> int:
    pixels = np.frombuffer(frame(WIDTH, HEIGHT, seed), np.uint8).reshape(HEIGHT, WIDTH, 3)
    with client.open_session() as npc:
        return len(npc.say("Look.", images=[pixels], max_tokens=2, temperature=0.0).token_ids)


def test_fifty_images_leave_no_trace(tmp_path: Path) -> None:
    files = write_vlm(tmp_path, "qwen25vl", n_layer=2)
    bounded = {"image_max": "2MiB", "image_store": "4MiB", "image_store_all": "4MiB"}
    options = {"model": str(files.model), "mmproj": str(files.mmproj), "ctx": 512, "budget": "24MiB"}
    with running_broker(**options, **bounded) as broker, broker.connect() as client:
        for seed in range(WARM_UP):
            assert look(client, seed)
        device, memory = [client.status().device["device_used_bytes"]], [broker.rss_bytes()]
        for turn in range(ROUNDS):
            for index in range(ROUND):
                look(client, WARM_UP + turn * ROUND + index)
            device.append(client.status().device["device_used_bytes"])
            memory.append(broker.rss_bytes())
        assert 0 < max(device) <= 24 << 20
        assert least_growth(device) <= 0
        assert least_growth(memory) < ROUND * LEAK_BYTES
        assert client.status().engine["restarts"] == 0
