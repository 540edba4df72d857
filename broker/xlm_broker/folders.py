"""Folders for sockets and locks: private to the user, checked before anything is put there."""

from __future__ import annotations

import os
import stat
import sys
import warnings
from pathlib import Path

import platformdirs

from xlm.errors import EndpointError


def runtime_folder() -> Path:
    """A folder private to the user, emptied at log-out where the system does so. Creates nothing."""
    with warnings.catch_warnings():  # without XDG_RUNTIME_DIR it falls back to a private folder, and warns
        warnings.simplefilter("ignore")
        return platformdirs.user_runtime_path("xlm", ensure_exists=False)


def prepare_folder(folder: Path) -> None:
    """Makes the folder (0700) or checks that no one else can put a socket of theirs in the place of ours."""
    try:
        _make_private(folder)
        info = folder.stat()
    except OSError as error:
        raise _forbidden(folder, error.strerror or str(error)) from error
    if not stat.S_ISDIR(info.st_mode):
        raise _forbidden(folder, "it is not a folder")
    if sys.platform != "win32":
        _check_owner(folder, info)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _forbidden(folder, "it is not writable")


def _make_private(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)


def _check_owner(folder: Path, info: os.stat_result) -> None:
    if info.st_uid not in (os.getuid(), 0):
        raise _forbidden(folder, f"it belongs to user {info.st_uid}")
    if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
        raise _forbidden(folder, "everyone may write to it")


def _forbidden(folder: Path, why: str) -> EndpointError:
    return EndpointError(f"the socket folder {folder} cannot be used: {why}", code="endpoint_forbidden")
