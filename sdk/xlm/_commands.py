"""How a command of this installation is called from here, for hints that a reader can type as they stand."""

from __future__ import annotations

import re
import shlex
import shutil
import sysconfig
from pathlib import Path
from typing import Final

_NAMED: Final = re.compile(
    r"(?<![\w./\\-])(?:xlm-broker|xlm)(?= (?:--|demo|chat|status|doctor|profile|plan|bench)\b|`)"
)


def command(name: str) -> str:
    """``name`` where a shell finds it, or where this Python has no such script; else the script's path."""
    if shutil.which(name):
        return name
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    return name if found is None else shlex.quote(_short(Path(found)))


def _short(path: Path) -> str:
    """From the current folder, where it is beneath that."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def to_type(text: str) -> str:
    """``text`` with each ``xlm …`` and ``xlm-broker …`` as it is to be typed here."""
    return _NAMED.sub(lambda found: command(found[0]), text)
