"""CURVE keys for tcp endpoints.

An ipc socket is private through its folder. A loopback port is open to every
program and user of the machine, so a broker started with keys encrypts the
connection, and only who knows its *server key* gets in. Both key files
therefore are 0600 in the user's own configuration folder:

    server.key          40 printable characters (Z85): what clients need
    server.key_secret   the same for the secret half: what the broker needs

Clients use keys of their own, made anew for every connection.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import platformdirs
import zmq

from xlm.errors import EndpointError

ENVIRONMENT_VARIABLE: Final = "XLM_SERVER_KEY"
_KEY_CHARACTERS: Final = 40  # 32 bytes in Z85: https://rfc.zeromq.org/spec/32/


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A broker's keys, each 40 Z85 characters. The secret half is not in ``repr``."""

    public: str
    secret: str = field(repr=False)


def key_folder() -> Path:
    """Where the key files are: ``curve`` in the user's configuration folder of xlm. Creates nothing."""
    return platformdirs.user_config_path("xlm") / "curve"


def server_keys(folder: Path | None = None) -> KeyPair:
    """The broker's keys, made at the first call. Raises EndpointError ``endpoint_forbidden``."""
    folder = folder or key_folder()
    secret_file, public_file = folder / "server.key_secret", folder / "server.key"
    if not secret_file.exists():
        _write(secret_file, zmq.curve_keypair()[1].decode("ascii"))
    secret = _read(secret_file)
    public = zmq.curve_public(secret.encode("ascii")).decode("ascii")
    if not (public_file.exists() and _read(public_file) == public):
        _write(public_file, public)
    return KeyPair(public, secret)


def find_server_key(given: str | Path | None = None) -> str | None:
    """The server key a client shall use: ``given`` (the key or its file), ``$XLM_SERVER_KEY``, or the default file.

    None: there is no key; the connection is plain. Raises EndpointError where a key is named and is none.
    """
    given = given or os.environ.get(ENVIRONMENT_VARIABLE)
    if given:
        return _key_or_file(given)
    default = key_folder() / "server.key"
    return _read(default) if default.exists() else None


def _key_or_file(given: str | Path) -> str:
    if isinstance(given, str) and _is_key(given):
        return given
    return _read(Path(given))


def _write(path: Path, key: str) -> None:
    """Whole or not at all, and never readable to others, not even for a moment."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(key + "\n")
        os.replace(draft, path)
    except OSError as error:
        raise _forbidden(path, f"cannot be written: {error.strerror}") from None


def _read(path: Path) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read(1024).strip()
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "not a path"
        raise _forbidden(path, f"cannot be read: {problem}") from None
    if sys.platform != "win32" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _forbidden(path, "can be read by others", f"chmod 600 {path}")
    if not _is_key(text):
        raise _forbidden(path, "holds no key of 40 Z85 characters")
    return text


def _is_key(text: str) -> bool:
    if len(text) != _KEY_CHARACTERS or not text.isascii():
        return False
    try:
        zmq.curve_public(text.encode("ascii"))  # any 32 bytes are a secret key: this checks the alphabet
    except (zmq.ZMQError, ValueError):
        return False
    return True


def _forbidden(path: Path, problem: str, hint: str = "") -> EndpointError:
    hint = hint or "name the server key, or remove the file and let the broker make new keys"
    return EndpointError(f"the key file {path} {problem}", code="endpoint_forbidden", hint=hint)
