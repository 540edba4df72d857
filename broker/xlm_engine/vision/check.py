"""Looks at a projector file before libmtmd does, so that a wrong or damaged one is a clear error and not a crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from xlm.errors import ModelError
from xlm_engine import gguf_header
from xlm_engine.gguf_header import Header

# libmtmd makes their tokens or positions from what stands before an image, which a conversation may change
UNSUPPORTED: Final = frozenset({"deepseek4v", "hunyuanvl"})


def check_projector(path: str) -> Header:
    """What the file says of itself. ModelError ``projector_not_found`` or ``projector_invalid``."""
    file = Path(path)
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "does not exist"
        raise ModelError(f"the projector {path} {what}", code="projector_not_found")
    if not os.access(file, os.R_OK):
        raise ModelError(f"the projector {path} cannot be read", code="projector_not_found")
    try:
        header = gguf_header.parse(file)
    except (ModelError, OSError, ValueError) as error:  # an empty file cannot be mapped
        raise _invalid(path, str(error)) from error
    _check_content(path, header, file.stat().st_size)
    return header


def projector_kind(header: Header) -> str:
    return header.text("clip.projector_type") or header.text("clip.vision.projector_type")


def projector_numbers(header: Header) -> dict[str, int]:
    """The whole numbers under ``clip.vision.``, by the rest of their key: what the tower's work depends on."""
    prefix = "clip.vision."
    names = [key.removeprefix(prefix) for key in header.metadata if key.startswith(prefix)]
    return {name: header.number(prefix + name) for name in names if header.number(prefix + name) > 0}


def _check_content(path: str, header: Header, file_bytes: int) -> None:
    architecture = header.text("general.architecture")
    if architecture != "clip":
        raise _invalid(path, f"its architecture is {architecture or 'not named'}, a projector's is clip")
    if not header.metadata.get("clip.has_vision_encoder"):
        raise _invalid(path, "it has no vision encoder")
    kind = projector_kind(header)
    if not kind:
        raise _invalid(path, "it does not say what kind it is (clip.projector_type)")
    if kind in UNSUPPORTED:
        raise _invalid(path, f"images of kind {kind} depend on the text before them, which is not supported")
    for key in ("embedding_length", "attention.head_count", "patch_size", "image_size"):
        if header.number(f"clip.vision.{key}") < 1:
            raise _invalid(path, f"clip.vision.{key} is missing or not positive")
    if header.needed_file_bytes > file_bytes:
        raise _invalid(path, f"it ends after {file_bytes} of {header.needed_file_bytes} bytes")


def _invalid(path: str, why: str) -> ModelError:
    return ModelError(f"{path} is no usable projector: {why}", code="projector_invalid")
