"""Reclaims in mid-encode alone: python -m tests.bench.vision_reclaim [--image 1080p] [--rounds 100] [--limit-s 200].

Computed exactly, so that its times are those of this machine's CPUs: what counts is the distance between the slowest
reclaims and the longest sub-layer, and only on a machine that does nothing else. Prints the table and the load.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from tests.bench import vision


def main() -> None:
    parser = argparse.ArgumentParser(description="Reclaims in mid-encode, over the virtual GPU.")
    parser.add_argument("--image", choices=list(vision.RESOLUTIONS), default="1080p")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--limit-s", type=float, default=200.0, help="stops after so many seconds, with fewer rounds")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="xlm-") as folder:
        vision.make_files(Path(folder))
        found = vision.child("reclaim", folder, options.image, options.rounds, options.limit_s)
    print("\n".join(vision.reclaim_rows(found)))
    print(f"\n{options.image}, {os.cpu_count()} CPUs, load {before:.1f} before, {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
