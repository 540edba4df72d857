"""Set before anything imports llama_cpp: OpenMP threads sleep at barriers instead of spinning.

Spinning costs a shared or small machine a factor of ten as soon as anything else wants a core
(docs/decisions/0006-openmp-threads-sleep.md).
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
