"""Measures this machine with ggml's own kernels: the working half of ``xlm profile``.

Runs as a process of its own, ``python -m xlm_engine.profile``: a kernel or a driver that crashes ends the
measurement of one kernel and nothing else. It stores nothing. Points go to the parent as JSON lines (wire.py).
"""
