"""The binding follows the headers, and says clearly what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import xlm_native
from xlm.errors import DeviceError
from xlm.protocol import link
from xlm_native import _cdef, _generate, _load
from xlm_native._call import check, fields, sized
from xlm_native.device import _validate


def test_generated_declarations_are_up_to_date() -> None:
    assert _generate.main(["--check"]) == 0


def test_every_exported_function_of_the_headers_is_declared() -> None:
    for name in ("xlm_device", "xlm_sim"):
        header = (_generate.HEADERS / f"{name}.h").read_text()
        exported = re.findall(r"^XLM_DEVICE_API[^;(]*?(\w+)\(", header, re.MULTILINE)
        declared = getattr(_cdef, name.upper())
        assert exported
        assert all(f"{function}(" in declared for function in exported)


def test_structs_have_their_size_and_only_plain_fields() -> None:
    memory = sized("xlm_memory")
    assert memory.struct_size == _load.ffi().sizeof("xlm_memory") == 104
    assert set(fields(memory)) == set(xlm_native.Memory.__dataclass_fields__)
    assert "reserved0" not in fields(memory)


def test_counters_are_those_of_the_header() -> None:
    assert set(xlm_native.Counters.__dataclass_fields__) == set(fields(sized("xlm_sim_counters")))


def test_missing_library_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLM_NATIVE_LIB_DIR", str(tmp_path))
    with pytest.raises(DeviceError, match=str(tmp_path)) as caught:
        xlm_native.library_path(xlm_native.DEVICE)
    assert caught.value.code == "device_not_found"


def test_named_folder_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / _load._file_name(xlm_native.SIM)
    path.touch()
    monkeypatch.setenv("XLM_NATIVE_LIB_DIR", str(tmp_path))
    assert xlm_native.library_path(xlm_native.SIM) == path


def test_search_covers_package_and_build_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLM_NATIVE_LIB_DIR", raising=False)
    folders = [str(folder) for folder in _load.search_dirs()]
    assert folders[0].endswith("xlm_native/lib")
    assert len(folders) == len(set(folders))


def test_ggml_comes_from_llama_cpp() -> None:
    assert (xlm_native.load_ggml() / "libggml-base.so").exists()


@pytest.mark.parametrize(
    ("status", "code"),
    [(2, "abi_mismatch"), (3, "device_not_found"), (4, "device_out_of_memory"), (6, "device_lost"), (99, "internal")],
)
def test_statuses_become_codes(status: int, code: str) -> None:
    with pytest.raises(DeviceError, match="opening: why") as caught:
        check(status, "opening", "why")
    assert caught.value.code == code


def schedule(placement: bytes, priority: list[int]) -> link.Schedule:
    tiers = [link.Tier(max_tokens=1, placement=placement)] if placement else []
    return link.Schedule(schedule_id=1, budget_bytes=0, tiers=tiers, priority=priority)


@pytest.mark.parametrize(
    ("placement", "priority"), [(b"", []), (b"\0\0", []), (b"\0\0\0", [0, 1]), (b"\0\0\0", [0, 1, 1])]
)
def test_schedules_that_c_would_read_past_are_refused(placement: bytes, priority: list[int]) -> None:
    with pytest.raises(DeviceError, match="schedule 1"):
        _validate(schedule(placement, priority), 3)
    _validate(schedule(b"\0\1\2", [2, 0, 1]), 3)
