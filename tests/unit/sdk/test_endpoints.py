from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xlm.errors import EndpointError
from xlm.protocol import endpoints, keys
from xlm.protocol.endpoints import parse_endpoint

LONGEST = "/" + "a" * 106


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("ipc:///run/user/1000/xlm/broker.sock", "ipc:///run/user/1000/xlm/broker.sock"),
        (f"ipc://{LONGEST}", f"ipc://{LONGEST}"),
        ("ipc:///tmp/schöner Ordner/s", "ipc:///tmp/schöner Ordner/s"),
        ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5555"),
        ("tcp://127.8.9.10:1", "tcp://127.8.9.10:1"),
        ("tcp://localhost:65535", "tcp://127.0.0.1:65535"),
        ("tcp://[::1]:5555", "tcp://[::1]:5555"),
    ],
)
def test_taken(text: str, url: str) -> None:
    assert parse_endpoint(text).url == url


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"ipc://{LONGEST}b", "endpoint_too_long"),
        ("ipc:///" + "ö" * 54, "endpoint_too_long"),  # bytes count, not characters
        ("ipc://relative.sock", "endpoint_invalid"),
        ("ipc://@abstract", "endpoint_invalid"),
        ("ipc://*", "endpoint_invalid"),
        ("ipc://", "endpoint_invalid"),
        ("ipc:///folder/", "endpoint_invalid"),
        ("ipc:///a\0b", "endpoint_invalid"),
        ("ipc:///tmp/\udcff", "endpoint_invalid"),  # the byte FF of a command line
        ("tcp://0.0.0.0:5555", "endpoint_not_local"),
        ("tcp://*:5555", "endpoint_not_local"),
        ("tcp://192.168.1.2:5555", "endpoint_not_local"),
        ("tcp://example.org:5555", "endpoint_not_local"),
        ("tcp://localhost.example.org:5555", "endpoint_not_local"),
        ("tcp://[::]:5555", "endpoint_not_local"),
        ("tcp://[::ffff:192.168.1.2]:5555", "endpoint_not_local"),
        ("tcp://eth0:5555", "endpoint_not_local"),
        ("tcp://127.1:5555", "endpoint_not_local"),
        ("tcp://::1:5555", "endpoint_invalid"),
        ("tcp://[127.0.0.1]:5555", "endpoint_invalid"),
        ("tcp://127.0.0.1", "endpoint_invalid"),
        ("tcp://127.0.0.1:", "endpoint_invalid"),
        ("tcp://127.0.0.1:0", "endpoint_invalid"),
        ("tcp://127.0.0.1:*", "endpoint_invalid"),
        ("tcp://127.0.0.1:65536", "endpoint_invalid"),
        ("tcp://127.0.0.1:-5", "endpoint_invalid"),
        ("tcp://127.0.0.1:5e3", "endpoint_invalid"),
        ("tcp://:5555", "endpoint_invalid"),
        ("udp://127.0.0.1:5555", "endpoint_invalid"),
        ("inproc://x", "endpoint_invalid"),
        ("/run/xlm.sock", "endpoint_invalid"),
        ("nonsense", "endpoint_invalid"),
    ],
)
def test_refused(text: str, code: str) -> None:
    with pytest.raises(EndpointError) as caught:
        parse_endpoint(text)
    assert caught.value.code == code
    assert caught.value.hint


@given(st.one_of(st.text(), st.text().map("tcp://".__add__), st.text().map("ipc://".__add__)))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        endpoint = parse_endpoint(text)
    except EndpointError:
        return
    assert endpoint.scheme in ("ipc", "tcp")


def test_a_broker_may_let_the_system_choose_a_port() -> None:
    assert parse_endpoint("tcp://127.0.0.1:*", any_port=True).url == "tcp://127.0.0.1:*"
    assert parse_endpoint("tcp://[::1]:0", any_port=True).port == 0


def test_the_default_can_be_named_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(endpoints.ENVIRONMENT_VARIABLE, "tcp://127.0.0.1:7777")
    assert parse_endpoint(None).port == 7777
    monkeypatch.setenv(endpoints.ENVIRONMENT_VARIABLE, "tcp://10.0.0.1:7777")
    with pytest.raises(EndpointError):
        parse_endpoint("")


@pytest.mark.skipif(sys.platform == "win32", reason="tcp is the default there")
def test_the_default_is_a_private_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(endpoints.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert parse_endpoint().path == tmp_path / "xlm" / "broker.sock"
    assert not (tmp_path / "xlm").exists()


# -- keys ------------------------------------------------------------------------------


def test_keys_are_made_once_and_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "curve"
    first = keys.server_keys(folder)
    assert keys.server_keys(folder) == first
    assert first.secret not in repr(first)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert sorted(file.name for file in folder.iterdir()) == ["server.key", "server.key_secret"]
    assert keys.find_server_key(folder / "server.key") == first.public
    assert keys.find_server_key(first.public) == first.public


def test_a_lost_public_key_is_made_again_from_the_secret_one(tmp_path: Path) -> None:
    first = keys.server_keys(tmp_path)
    (tmp_path / "server.key").unlink()
    assert keys.server_keys(tmp_path) == first
    assert keys.find_server_key(tmp_path / "server.key") == first.public


@pytest.mark.parametrize("content", ["", "short", "~" * 40, "ü" * 40, "a" * 41])
def test_a_broken_key_file_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "server.key"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(EndpointError, match=r"server\.key"):
        keys.find_server_key(file)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    keys.server_keys(tmp_path)
    (tmp_path / "server.key").chmod(0o644)
    with pytest.raises(EndpointError, match="chmod 600"):
        keys.find_server_key(tmp_path / "server.key")


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="cannot be read"):
        keys.find_server_key(tmp_path / "none")
    with pytest.raises(EndpointError, match="cannot be read"):
        keys.find_server_key("a\0b")
