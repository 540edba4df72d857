"""``python -m xlm_engine.template_child``: takes one chat template apart, with limits, and exits.

stdin: JSON {"source", "bos", "eos"}; stdout: JSON {"template"} or {"problem"}.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import Final

import msgspec

from xlm.errors import GenerationError
from xlm_engine import template_render
from xlm_engine.template_render import Template, TemplateProblem

CPU_S: Final = 5  # what ends a template that never does
TIMEOUT_S: Final = 120.0  # a child beside a game that takes all cores needs seconds for as much as its imports
MEMORY_BYTES: Final = 1 << 30


class Job(msgspec.Struct):
    source: str
    bos: str = ""
    eos: str = ""


class Result(msgspec.Struct, omit_defaults=True):
    template: Template | None = None
    problem: str = ""


def _limit_self() -> None:
    with contextlib.suppress(ImportError):  # Windows has no rlimits: there only the time is bounded
        import resource

        for kind, wanted in ((resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, CPU_S)):
            hard = resource.getrlimit(kind)[1]  # whoever started us may allow less already; a limit cannot be raised
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (most, most))


def main() -> int:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    _limit_self()
    try:
        result = Result(template=template_render.take_apart(job.source, job.bos, job.eos))
    except TemplateProblem as problem:
        result = Result(problem=str(problem))
    except (MemoryError, RecursionError, OverflowError) as error:
        result = Result(problem=f"the chat template needs too much: {type(error).__name__}")
    sys.stdout.buffer.write(msgspec.json.encode(result))
    return 0


def take_apart(source: str, bos: str, eos: str) -> Template:
    """Runs the child. GenerationError ``template_invalid`` if the template fails, takes too long or too much."""
    result = _run(msgspec.json.encode(Job(source=source, bos=bos, eos=eos)))
    if result.template is None:
        raise GenerationError(result.problem, code="template_invalid")
    return result.template


def _environment() -> dict[str, str]:
    """The child finds its modules where this process found them."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _run(job: bytes) -> Result:
    command = [sys.executable, "-m", "xlm_engine.template_child"]
    try:
        done = subprocess.run(
            command, input=job, capture_output=True, timeout=TIMEOUT_S, check=True, env=_environment()
        )
        return msgspec.json.decode(done.stdout, type=Result)
    except subprocess.TimeoutExpired:
        return Result(problem=f"the chat template takes longer than {TIMEOUT_S:g} s")
    except (subprocess.CalledProcessError, msgspec.DecodeError):
        return Result(problem="the chat template uses too much time or memory")


if __name__ == "__main__":
    sys.exit(main())
