"""The package's version; the protocol's is in ``xlm.protocol.messages``."""

from __future__ import annotations

from importlib import metadata

try:
    __version__ = metadata.version("xlm")
except metadata.PackageNotFoundError:  # used from a source tree
    __version__ = "0+unknown"
