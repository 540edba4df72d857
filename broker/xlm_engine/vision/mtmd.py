"""llama.cpp's libmtmd through llama_cpp's C functions: a projector file, and what it makes of an image.

Owned by the decode thread, scaling excepted. The tower's weights and compute buffers live in XLM0's host buffers.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import llama_cpp.llama_cpp as C
import numpy as np
import numpy.typing as npt
from llama_cpp import mtmd_cpp as M

from xlm.errors import EngineError, ImageError, ModelError
from xlm_engine.llama_log import LlamaLog
from xlm_engine.vision.image import Image
from xlm_native import Device

Embeddings = npt.NDArray[np.float32]  # tokens by width
Positions = npt.NDArray[np.int32]  # 4 (time, row, column, further) by tokens, or 1 by tokens


@dataclass(frozen=True, slots=True, eq=False)
class ImagePart:
    """A run of image tokens. Position of token i from ``start`` on: ``offset[:, i] + start * slope[:, i]``."""

    n_tokens: int
    n_pos: int  # positions the run takes in the conversation; fewer than tokens with M-RoPE
    non_causal: bool  # its tokens attend to each other in both directions: one step computes all of them
    offset: Positions
    slope: Positions

    def positions(self, start: int) -> Positions:
        return (self.offset + start * self.slope).astype(np.int32)


_PIXELS: Final = ctypes.POINTER(ctypes.c_uint8)
Part = ImagePart | list[int]  # a list: text tokens that libmtmd puts around images


class EncodeAborted(Exception):
    """The encoding was told to stop."""


class Projector:
    """A loaded projector file. ``close`` before the language model is freed. Raises ModelError.

    ``chunks`` may be used on any thread; it and ``encode`` take turns.
    """

    def __init__(self, path: str, model: Any, device: Device, n_threads: int, log: LlamaLog) -> None:
        self._device: Final = device
        self._log: Final = log
        self._model: Final = model
        self._turn: Final = threading.Lock()
        self._n_vocab: Final[int] = C.llama_vocab_n_tokens(C.llama_model_get_vocab(model))
        self.n_embd: Final[int] = C.llama_model_n_embd_inp(model)
        M.mtmd_log_set(log.callback, None)
        M.mtmd_helper_log_set(log.callback, None)
        self._context: Any = self._load(path, n_threads)
        self.mrope: Final[bool] = M.mtmd_decode_use_mrope(self._context)

    def _load(self, path: str, n_threads: int) -> Any:
        params = M.mtmd_context_params_default()
        params.use_gpu, params.device = True, self._device.ggml_device()  # else: the first GPU that is found
        params.n_threads = n_threads
        params.print_timings = params.warmup = False
        # the automatic choice would ask the device only; XLM0 runs what its device cannot on the CPU
        params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_ENABLED
        with self._log.collecting() as lines, self._device.loading_model(os.path.basename(path)) as model_id:
            context = M.mtmd_init_from_file(os.fsencode(path), self._model, params)
        self.model_id: int = model_id
        if not context:
            raise explain_load_failure(list(lines))
        if not M.mtmd_support_vision(context):
            M.mtmd_free(context)
            raise ModelError("the projector file holds no vision tower", code="projector_invalid")
        return context

    def close(self) -> None:
        """Safe to call twice."""
        if self._context:
            M.mtmd_free(self._context)
        self._context = None

    # -- images

    @contextmanager
    def chunks(self, image: Image, at_work: Callable[[], None] = lambda: None) -> Iterator[list[Any]]:
        """libmtmd's chunks of an image, valid inside. Scales it to the size that the tower takes.

        An image without pixels tells its chunks' sizes only. ``at_work`` is called right before libmtmd scales.
        """
        pixels = ctypes.cast(ctypes.c_char_p(image.rgb8), _PIXELS) if image.rgb8 else None  # libmtmd copies them
        bitmap: Any = M.mtmd_bitmap_init(image.width, image.height, pixels)
        chunks: Any = M.mtmd_input_chunks_init()
        try:
            self._tokenize(bitmap, chunks, at_work)
            yield [M.mtmd_input_chunks_get(chunks, index) for index in range(M.mtmd_input_chunks_size(chunks))]
        finally:
            M.mtmd_input_chunks_free(chunks)
            M.mtmd_bitmap_free(bitmap)

    def _tokenize(self, bitmap: Any, chunks: Any, at_work: Callable[[], None]) -> None:
        marker = M.mtmd_default_marker()
        text = M.mtmd_input_text(marker, len(marker), False, True)
        with self._turn, self._log.collecting() as lines:
            at_work()
            status = M.mtmd_tokenize(self._context, chunks, ctypes.byref(text), (ctypes.c_void_p * 1)(bitmap), 1)
        if status != 0:
            words = lines[-1] if lines else f"status {status}"
            raise ImageError(f"the model cannot take this image: {words}", code="image_unsupported")

    def is_image(self, chunk: Any) -> bool:
        return bool(M.mtmd_input_chunk_get_type(chunk) != M.MTMD_INPUT_CHUNK_TYPE_TEXT)

    def part(self, chunk: Any) -> Part:
        """What a chunk is, without its pixels."""
        if not self.is_image(chunk):
            return self._text(chunk)
        n_tokens = M.mtmd_input_chunk_get_n_tokens(chunk)
        at_0, at_1 = self._positions(chunk, n_tokens, 0), self._positions(chunk, n_tokens, 1)
        return ImagePart(
            n_tokens,
            M.mtmd_input_chunk_get_n_pos(chunk),
            M.mtmd_decode_use_non_causal(self._context, chunk),
            at_0,
            at_1 - at_0,
        )

    def _text(self, chunk: Any) -> list[int]:
        count = ctypes.c_size_t()
        tokens: Any = M.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
        found = list(tokens[: count.value])
        if any(not 0 <= token < self._n_vocab for token in found):
            raise ModelError(
                "the projector marks images with tokens that the model does not have", code="projector_mismatch"
            )
        return found

    def _positions(self, chunk: Any, n_tokens: int, start: int) -> Positions:
        if not self.mrope:
            return np.arange(start, start + n_tokens, dtype=np.int32)[np.newaxis]
        tokens: Any = M.mtmd_input_chunk_get_tokens_image(chunk)
        found = (M.mtmd_decoder_pos * n_tokens)()
        M.mtmd_helper_image_get_decoder_pos(tokens, start, found)
        table = np.frombuffer(memoryview(found).cast("B"), dtype=np.uint32).reshape(n_tokens, 4)
        return np.ascontiguousarray(table[:, (0, 2, 1, 3)].T).astype(np.int32)  # t, y, x, z: llama.cpp's order

    def encode(self, chunk: Any, n_tokens: int) -> Embeddings:
        """Runs the tower. EncodeAborted, or EngineError if it cannot be computed."""
        with self._turn, self._log.collecting() as lines:
            status = M.mtmd_encode_chunk(self._context, chunk)
        if status != 0:
            raise EncodeFailed(lines[-1] if lines else f"status {status}")
        pointer = M.mtmd_get_output_embd(self._context)
        return np.ctypeslib.as_array(pointer, (n_tokens, self.n_embd)).copy()


class EncodeFailed(EngineError):
    """The tower's graph ended with an error: aborted, out of memory, device lost."""

    def __init__(self, words: str) -> None:
        super().__init__(f"an image could not be encoded: {words}", code="internal")


def explain_load_failure(lines: list[str]) -> ModelError:
    """What libmtmd said, as one typed error."""
    text = "\n".join(lines)
    words = next((line for line in lines if "error:" in line), lines[-1] if lines else "no reason given")
    if "mismatch between text model" in text:
        return ModelError(f"the projector belongs to another model: {words}", code="projector_mismatch")
    return ModelError(f"libmtmd cannot load the projector: {words}", code="projector_invalid")
