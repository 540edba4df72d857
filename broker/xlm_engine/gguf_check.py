"""Looks at a model file before llama.cpp does, so that each fault gets its own clear error.

llama.cpp stays the judge of everything else (``explain_load_failure`` maps what
it says). Order: file, header, architecture, tokenizer, memory, completeness.
"""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Final

import psutil

from xlm.errors import ModelError, XlmError
from xlm_engine import gguf_header
from xlm_engine.gguf_header import ArrayInfo, Header

RAM_RESERVE_BYTES: Final = 256 << 20  # for compute buffers, Python and the rest of the process

# tokenizer kinds that need merges, besides tokens
_NEED_MERGES: Final = frozenset({"gpt2"})
_KV_TYPE_BYTES: Final = {"f16": 2.0, "q8_0": 34 / 32}


def check_file(path: str) -> Header:
    """Everything that can be told from the header. Raises ModelError; returns the header."""
    file = Path(path)
    _check_entry(file)
    try:
        header = gguf_header.parse(file)
    except OSError as error:
        raise _unreadable(path, error) from error
    _check_architecture(header)
    _check_tokenizer(header)
    _check_numbers(header)
    return header


def _unreadable(path: str, error: OSError) -> ModelError:
    problem = f"{path} cannot be read: {error.strerror}"
    if error.errno == errno.ENOMEM:
        return ModelError(problem, code="model_unreadable", hint="free memory, or raise this process's limit of it")
    return ModelError(problem, code="model_unreadable")


def _check_entry(file: Path) -> None:
    try:
        is_dir, exists = file.is_dir(), file.exists()
        size = file.stat().st_size if exists else 0
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {error}", code="model_unreadable") from error
    if not exists:
        raise ModelError(f"there is no file {file}", code="model_not_found")
    if is_dir:
        raise ModelError(f"{file} is a folder", code="model_is_directory")
    if not file.is_file() or not os.access(file, os.R_OK):
        raise ModelError(f"{file} cannot be read", code="model_unreadable")
    if size == 0:
        raise ModelError(f"{file} is empty", code="model_empty")


def _check_architecture(header: Header) -> None:
    name = header.text("general.architecture")
    if not name:
        raise ModelError("the file names no architecture (general.architecture)", code="model_unknown_architecture")
    if name == "clip":
        raise ModelError(
            "this is a vision projector (architecture clip), not a language model",
            code="model_unknown_architecture",
            hint="name the language model's file",
        )


def _check_tokenizer(header: Header) -> None:
    model = header.text("tokenizer.ggml.model")
    if model in ("", "none", "no_vocab"):
        raise _missing("tokenizer.ggml.model")
    required = ["tokenizer.ggml.tokens"] + ["tokenizer.ggml.merges"] * (model in _NEED_MERGES)
    for key in required:
        value = header.metadata.get(key)
        length = value.length if isinstance(value, ArrayInfo) else len(value) if isinstance(value, list) else 0
        if length == 0:
            raise _missing(key)


def _check_numbers(header: Header) -> None:
    """Those that llama.cpp takes as they are, to compute nothing but NaN with them or to fail an assertion.

    A missing one is llama.cpp's to judge: which are needed depends on the architecture.
    """
    arch = header.text("general.architecture")
    key = f"{arch}.block_count"
    if key in header.metadata and header.number(key) < 1:
        raise _senseless(key, header.metadata[key], "at least 1")
    for key, value in header.metadata.items():
        if not (key.startswith(f"{arch}.") and key.endswith("epsilon")):
            continue
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise _senseless(key, value, "a positive number")


def _senseless(key: str, value: object, wanted: str) -> ModelError:
    return ModelError(f"{key} is {value!r:.40}, but must be {wanted}", code="model_invalid")


def _missing(key: str) -> ModelError:
    return ModelError(f"the file lacks {key}", code="model_missing_tokenizer")


def kv_bytes(header: Header, n_cells: int, kv_type: str) -> int:
    """Estimate of the KV cache for ``n_cells`` tokens in all; 0 if the header does not say."""
    arch = header.text("general.architecture")
    heads = header.number(f"{arch}.attention.head_count")
    kv_heads = header.number(f"{arch}.attention.head_count_kv") or heads
    per_head = header.number(f"{arch}.embedding_length") // heads if heads else 0
    key = header.number(f"{arch}.attention.key_length") or per_head
    value = header.number(f"{arch}.attention.value_length") or per_head
    n_layer = header.number(f"{arch}.block_count")
    return int(n_layer * n_cells * kv_heads * (key + value) * _KV_TYPE_BYTES.get(kv_type, 2.0))


def check_memory(header: Header, n_cells: int, kv_type: str, available_bytes: int | None = None) -> None:
    """ModelError ``model_too_large`` if weights and KV do not fit the host's free memory."""
    free = psutil.virtual_memory().available if available_bytes is None else available_bytes
    weights, kv = header.tensor_bytes, kv_bytes(header, n_cells, kv_type)
    if weights + kv + RAM_RESERVE_BYTES > free:
        raise ModelError(
            f"weights of {weights >> 20} MiB and a KV cache of {kv >> 20} MiB do not fit the {free >> 20} MiB of "
            "memory that are free",
            code="model_too_large",
        )


def check_complete(header: Header, path: str) -> None:
    """ModelError ``model_truncated`` if the file is shorter than its header says."""
    needed, size = header.needed_file_bytes, os.stat(path).st_size
    if size < needed:
        raise ModelError(f"{path} has {size} bytes of {needed}", code="model_truncated")


def check_model(path: str, n_cells: int, kv_type: str) -> Header:
    """All checks, in the order that names the most helpful fault first."""
    header = check_file(path)
    check_memory(header, n_cells, kv_type)
    check_complete(header, path)
    return header


# what llama.cpp says -> code; the first match counts
_SAYINGS: Final = (
    ("unknown model architecture", "model_unknown_architecture"),
    ("unsupported model architecture", "model_unknown_architecture"),
    ("tokenizer.ggml", "model_missing_tokenizer"),
    ("cannot find tokenizer", "model_missing_tokenizer"),
    ("vocab", "model_missing_tokenizer"),
    ("not within the file bounds", "model_truncated"),
    ("failed to allocate", "model_too_large"),
    ("unable to allocate", "model_too_large"),
)


def explain_load_failure(lines: list[str]) -> XlmError:
    """The typed error for llama.cpp's own words (its error log of this load)."""
    words = [line.strip() for line in lines if line.strip()]
    message = next((line for line in words if "error loading model" in line), words[-1] if words else "no reason given")
    everything = "\n".join(words).lower()
    code = next((code for saying, code in _SAYINGS if saying in everything), "model_invalid")
    return ModelError(f"llama.cpp: {message}", code=code)
