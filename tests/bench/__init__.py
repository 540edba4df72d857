"""Benchmarks: `make bench` rewrites docs/benchmarks.md. Each compares two things in one run, as a ratio."""
