"""Bare llama.cpp with bare libmtmd, on the CPU or on any ggml device: what images must give."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import mtmd_cpp

from tests.support.model import PlainLlama
from tests.support.vlm import Files
from xlm_engine.vision.image import Image

Embeddings = npt.NDArray[np.float32]


class StockVlm:
    """One model and its tower through libmtmd's own helpers. ``device``: a ggml device for both, None is the CPU.

    ``layers``: of the language model, on the device; None: all. ``tower``: on the device too.
    """

    def __init__(
        self, files: Files, *, device: int | None = None, flash: bool = True, layers: int | None = None,
        tower: bool = True, **options: Any,
    ) -> None:  # fmt: skip
        layers = layers if layers is not None else 999
        self.llama = PlainLlama(files.model, device=device, n_gpu_layers=layers if device is not None else 0, **options)
        params = mtmd_cpp.mtmd_context_params_default()
        tower = tower and device is not None
        params.use_gpu, params.device = tower, device if tower else None
        params.n_threads = options.get("n_threads", 2)
        params.warmup = False
        params.print_timings = False
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        self.context: Any = mtmd_cpp.mtmd_init_from_file(str(files.mmproj).encode(), self.llama.model, params)
        assert self.context, f"plain libmtmd cannot load {files.mmproj}"

    def close(self) -> None:
        mtmd_cpp.mtmd_free(self.context)
        self.llama.close()

    @contextmanager
    def chunks(self, text: str, images: Sequence[Image]) -> Iterator[Any]:
        """``text`` holds libmtmd's marker once for each image; it is parsed for special tokens."""
        bitmaps = [mtmd_cpp.mtmd_bitmap_init(i.width, i.height, _bytes(i.rgb8)) for i in images]
        chunks: Any = mtmd_cpp.mtmd_input_chunks_init()
        raw = text.encode()
        wanted = mtmd_cpp.mtmd_input_text(raw, len(raw), False, True)
        array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
        status = mtmd_cpp.mtmd_tokenize(self.context, chunks, ctypes.byref(wanted), array, len(bitmaps))
        assert status == 0, f"mtmd_tokenize returned {status}"
        try:
            yield chunks
        finally:
            mtmd_cpp.mtmd_input_chunks_free(chunks)
            for bitmap in bitmaps:
                mtmd_cpp.mtmd_bitmap_free(bitmap)

    def embeddings(self, image: Image) -> list[Embeddings]:
        """What the tower makes of an image: one array (tokens by width) for each of its image chunks."""
        result = []
        with self.chunks(marker(), [image]) as chunks:
            for index in range(mtmd_cpp.mtmd_input_chunks_size(chunks)):
                chunk: Any = mtmd_cpp.mtmd_input_chunks_get(chunks, index)
                if mtmd_cpp.mtmd_input_chunk_get_type(chunk) != mtmd_cpp.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                    continue
                assert mtmd_cpp.mtmd_encode_chunk(self.context, chunk) == 0
                shape = (
                    mtmd_cpp.mtmd_input_chunk_get_n_tokens(chunk),
                    llama_cpp.llama_model_n_embd_inp(self.llama.model),
                )
                result.append(np.ctypeslib.as_array(mtmd_cpp.mtmd_get_output_embd(self.context), shape).copy())
        return result

    def greedy(self, text: str, images: Sequence[Image], n_tokens: int) -> list[int]:
        """Greedy continuation of a prompt with images, from an empty cache."""
        self.evaluate(text, images)
        out: list[int] = []
        while len(out) < n_tokens:
            token = self.llama.argmax()
            if llama_cpp.llama_vocab_is_eog(self.llama.vocab, token):
                break
            out.append(token)
            self.llama.decode([token])
        return out

    def evaluate(self, text: str, images: Sequence[Image]) -> None:
        """Encodes the images of a prompt and computes it, from an empty cache."""
        self.llama.reset()
        past = llama_cpp.llama_pos(0)
        with self.chunks(text, images) as chunks:
            status = mtmd_cpp.mtmd_helper_eval_chunks(
                self.context, self.llama.context, chunks, 0, 0, self.llama.n_ubatch, True, ctypes.byref(past)
            )
        assert status == 0, f"mtmd_helper_eval_chunks returned {status}"


def marker() -> str:
    return mtmd_cpp.mtmd_default_marker().decode()


def _bytes(data: bytes) -> Any:
    return (ctypes.c_uint8 * len(data)).from_buffer_copy(data)


@contextmanager
def stock_vlm(files: Files, **options: Any) -> Iterator[StockVlm]:
    stock = StockVlm(files, **options)
    try:
        yield stock
    finally:
        stock.close()
