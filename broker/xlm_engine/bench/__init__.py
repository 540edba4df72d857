"""The measuring half of ``xlm bench``: loads a model on the virtual GPU and times single steps.

Runs as processes of their own (``python -m xlm_engine.bench stock|ours|write``), one for each side of the comparison:
ggml's registry and the virtual GPU belong to a process, and one that crashes ends one measurement.
"""
