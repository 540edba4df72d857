"""Model files with one fault each, by the error code they must give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

from tests.support.model import model_path


def not_found(folder: Path) -> Path:
    return folder / "missing.gguf"


def directory(folder: Path) -> Path:
    return folder


def empty(folder: Path) -> Path:
    path = folder / "empty.gguf"
    path.touch()
    return path


def truncated(folder: Path) -> Path:
    path = folder / "cut.gguf"
    whole = model_path().read_bytes()
    path.write_bytes(whole[: len(whole) * 6 // 10])
    return path


def bad_magic(folder: Path) -> Path:
    path = folder / "magic.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(4096))
    return path


def write_gguf(path: Path, architecture: str, **uint32: int) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in uint32.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def unknown_architecture(folder: Path) -> Path:
    return write_gguf(folder / "foo.gguf", "foo")


def missing_tokenizer(folder: Path) -> Path:
    return write_gguf(folder / "mute.gguf", "llama", context_length=64, embedding_length=32, block_count=1)


def too_large(folder: Path) -> Path:
    """A model of 4 TiB, whole as far as its header can tell: the weights are a hole in a sparse file."""
    path = folder / "huge.gguf"
    rows, columns = 1 << 20, 1 << 20
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "<eos>"])
    writer.add_token_types([1, 1, 3])
    writer.add_token_merges(["a b"])
    for key, value in {"context_length": 64, "embedding_length": 32, "block_count": 1}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_tensor_info("token_embd.weight", (rows, columns), np.dtype(np.float32), rows * columns * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + rows * columns * 4 + 64)
    return path


BAD_MODELS: dict[str, Callable[[Path], Path]] = {
    "model_not_found": not_found,
    "model_is_directory": directory,
    "model_empty": empty,
    "model_truncated": truncated,
    "model_bad_magic": bad_magic,
    "model_unknown_architecture": unknown_architecture,
    "model_missing_tokenizer": missing_tokenizer,
    "model_too_large": too_large,
}
