"""Benchmarks: `make bench` rewrites docs/benchmarks.md. Each compares two things in one run, as a ratio."""

from xlm._threads import share_cores

# for both sides alike: the engine sets it for itself; a bare loop would spin, and look slow on a busy machine
share_cores()
