"""Benchmarks: `make bench` rewrites docs/benchmarks.md. Each compares two things in one run, as a ratio."""

import os

# for both sides alike: the engine sets it for itself; a bare loop would spin, and look slow on a busy machine
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
