"""Calling C and turning statuses into errors. cffi releases the GIL around every call."""

from __future__ import annotations

from typing import Any, Final

from xlm.errors import DeviceError
from xlm_native._load import ffi

OK: Final = 0
ERR_TIMEOUT: Final = 8

# xlm_status -> code of xlm.errors.CODES
_CODES: Final = {
    1: "internal",
    2: "abi_mismatch",
    3: "device_not_found",
    4: "device_out_of_memory",
    5: "device_out_of_memory",
    6: "device_lost",
    7: "internal",
    8: "timeout",
}


class NativeError(DeviceError):
    """A native call failed. ``status`` is the xlm_status, ``code`` one of ``xlm.errors.CODES``."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message, code=_CODES.get(status, "internal"))
        self.status: Final = status


def text(pointer: Any) -> str:
    """A C string as str; invalid UTF-8 is replaced, NULL is empty."""
    return ffi().string(pointer).decode("utf-8", "replace") if pointer else ""


def check(status: int, what: str, message: str) -> None:
    if status != OK:
        raise NativeError(f"{what}: {message or f'status {status}'}", status=status)


def sized(type_name: str) -> Any:
    """A zeroed struct with struct_size set."""
    pointer = ffi().new(f"{type_name} *")
    pointer.struct_size = ffi().sizeof(type_name)
    return pointer


def fields(struct: Any) -> dict[str, Any]:
    """The plain numbers of a struct by name, without struct_size and reserved fields."""
    members = ffi().typeof(struct).item.fields
    names = (name for name, _ in members if name != "struct_size" and not name.startswith("reserved"))
    return {name: getattr(struct, name) for name in names}
