"""One model and one context of llama.cpp on XLM0, through llama_cpp's C functions.

Owned by the decode thread. Weights and KV live in XLM0's host buffers; where a
step computes is the native backend's business. One ``decode`` is one ubatch.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import llama_cpp.llama_cpp as C
import numpy as np
import numpy.typing as npt

from xlm.errors import EngineError, ModelError, XlmError
from xlm.protocol import link
from xlm_engine import gguf_check, gguf_header
from xlm_engine.llama_log import LlamaLog
from xlm_engine.vision.batch import ImageBatch
from xlm_engine.vision.check import check_projector, projector_kind, projector_numbers
from xlm_engine.vision.mtmd import Embeddings, Positions
from xlm_engine.vision.schedule import with_vision
from xlm_engine.vision.tower import VisionTower
from xlm_native import Device

Logits = npt.NDArray[np.float32]

GGML_TYPES: Final = {"f16": 1, "q8_0": 8}  # ggml.h
KEPT_PIECES: Final = 16384
CELL_PAD: Final = 256  # llama.cpp rounds a sequence's cells up to this


class _BufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


class Row(NamedTuple):
    """One token of a step."""

    token: int
    position: int
    seq_id: int
    want_logits: bool


class StepFailed(Exception):
    """llama_decode returned ``status``: 1 no KV slot, 2 aborted, -1 bad input, -2 allocation, -3 compute."""

    def __init__(self, status: int) -> None:
        super().__init__(f"llama_decode returned {status}")
        self.status: Final = status


def vocabulary_error(path: str, log: LlamaLog) -> XlmError | None:
    """llama.cpp's own verdict on a file's architecture, from reading its header only; None if it knows it."""
    params = C.llama_model_default_params()
    params.vocab_only = True
    params.load_mode = C.LLAMA_LOAD_MODE_NONE
    with log.collecting() as lines:
        model = C.llama_model_load_from_file(os.fsencode(path), params)
    if model:
        C.llama_model_free(model)
        return None
    error = gguf_check.explain_load_failure(list(lines))
    return error if error.code == "model_unknown_architecture" else None


def file_weights(path: str) -> list[link.Weight]:
    """The tensors of a model file, for the planner; empty where the header cannot be read (llama.cpp could)."""
    try:
        tensors = gguf_header.parse(Path(path)).tensors
    except (XlmError, OSError):
        return []
    return [
        link.Weight(name=t.name, type=t.type, n_columns=t.n_columns, n_elements=t.n_elements, n_bytes=t.n_bytes)
        for t in tensors
    ]


class Runtime:
    """Load with the constructor; ``close`` frees context and model. Raises ModelError or EngineError."""

    def __init__(
        self,
        device: Device,
        config: link.ModelConfig,
        n_threads: int,
        log: LlamaLog,
        progress: Callable[[float], bool],
    ) -> None:
        self.device: Final = device
        self.config: Final = config
        self._log: Final = log
        self._model: Any = None
        self._context: Any = None
        self.vision: VisionTower | None = None
        self.projector: link.Projector | None = None
        C.llama_backend_init()
        try:
            self._load(progress)
            self._load_projector(n_threads)
            self._create_context(n_threads)
        except BaseException:
            self.close()
            raise
        self.vocab: Final[Any] = C.llama_model_get_vocab(self._model)
        self.n_vocab: Final[int] = C.llama_vocab_n_tokens(self.vocab)
        self.memory: Final[Any] = C.llama_get_memory(self._context)
        self._batch: Final[Any] = C.llama_batch_init(config.n_ubatch, 0, 1)
        self._keep_columns(config.n_ubatch)
        self._logits_type: Final[Any] = ctypes.c_float * self.n_vocab
        self._pieces: Final[dict[int, bytes]] = {}
        self._images: Final = ImageBatch(self._context)

    def _keep_columns(self, n_ubatch: int) -> None:
        """The batch's columns, whose pointers would be made anew at each access: that is felt in each token."""
        batch = self._batch
        self._row_token = batch.token
        self._row_position = batch.pos
        self._row_wanted = batch.logits
        self._row_seq_id = [batch.seq_id[index] for index in range(n_ubatch)]
        for index in range(n_ubatch):
            batch.n_seq_id[index] = 1

    # -- loading

    def _load(self, progress: Callable[[float], bool]) -> None:
        callback = C.llama_progress_callback(lambda fraction, _user: progress(fraction))
        devices = (ctypes.c_void_p * 2)(self.device.ggml_device(), None)
        overrides = (_BufferOverride * 2)(_BufferOverride(b".*", self.device.host_buffer_type()), _BufferOverride())
        params = C.llama_model_default_params()
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        params.n_gpu_layers = 999
        params.load_mode = C.LLAMA_LOAD_MODE_NONE  # no mmap: weights live in XLM0's own host buffers
        params.use_extra_bufts = False
        params.progress_callback = callback
        name = os.path.basename(self.config.path)
        with self._log.collecting() as lines, self.device.loading_model(name) as model_id:
            self._model = C.llama_model_load_from_file(os.fsencode(self.config.path), params)
        if not self._model:
            raise gguf_check.explain_load_failure(list(lines))
        self.model_id: int = model_id

    def _load_projector(self, n_threads: int) -> None:
        config = self.config
        self.n_step_max = config.n_ubatch
        if not config.mmproj:
            return
        header = check_projector(config.mmproj)
        self.vision = VisionTower(config.mmproj, self._model, self.device, n_threads, self._log)
        most, together = self.vision.largest_image()
        self.projector = link.Projector(
            name=header.text("general.name") or os.path.basename(config.mmproj),
            kind=projector_kind(header),
            file_bytes=os.stat(config.mmproj).st_size,
            n_embd=self.vision.n_embd,
            max_image_tokens=most,
            sublayers=[sub for sub in self.device.sublayers() if sub.model_id == self.vision.model_id],
            hparams=projector_numbers(header),
        )
        self.n_step_max = max(config.n_ubatch, together)

    def _create_context(self, n_threads: int) -> None:
        config = self.config
        params = C.llama_context_default_params()
        params.n_ctx = config.n_ctx * config.n_sessions
        params.n_batch = params.n_ubatch = self.n_step_max
        params.n_seq_max = config.n_sessions
        params.n_threads = params.n_threads_batch = n_threads
        # the automatic probe would turn it off when the op is not on the layer's own device, which changes logits
        params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.offload_kqv = True
        params.kv_unified = False  # a stream of cells for each session: nobody's results depend on others' cells
        params.type_k = params.type_v = GGML_TYPES[config.kv_type]
        params.no_perf = True
        with self._log.collecting() as lines, self.device.creating_context(self.model_id):
            self._context = C.llama_init_from_model(self._model, params)
        if not self._context:
            words = lines[-1] if lines else "no reason given"
            problem = f"llama.cpp cannot create a context: {words}"
            if "alloc" not in "\n".join(lines):
                raise ModelError(problem, code="model_invalid")
            hint = "weights and KV cache live in host memory; lower --ctx or --sessions, or use a smaller model"
            raise ModelError(problem, code="model_too_large", hint=hint)

    def close(self) -> None:
        """Safe to call twice. The device stays open."""
        if self._context:
            C.llama_batch_free(self._batch) if hasattr(self, "_batch") else None
            C.llama_free(self._context)
        if self.vision is not None:
            self.vision.close()
        if self._model:
            C.llama_model_free(self._model)
        self._context = self._model = self.vision = None

    # -- computing

    def decode(self, rows: Sequence[Row]) -> list[Logits]:
        """Computes one step; the logits of the rows that want them, in order (views, valid until the next decode).

        StepFailed leaves the KV cache without the rows of this step.
        """
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, row in enumerate(rows):
            self._row_token[index], self._row_position[index] = row.token, row.position
            self._row_seq_id[index][0], self._row_wanted[index] = row.seq_id, row.want_logits
        status = C.llama_decode(self._context, batch)
        if status != 0:
            raise StepFailed(status)
        return [self._logits(index) for index, row in enumerate(rows) if row.want_logits]

    def decode_image(self, embeddings: Embeddings, positions: Positions, seq_id: int, *, non_causal: bool) -> None:
        """Computes one step of image tokens. Raises StepFailed as ``decode`` does."""
        status = self._images.decode(embeddings, positions, seq_id, non_causal=non_causal)
        if status != 0:
            raise StepFailed(status)

    def _logits(self, index: int) -> Logits:
        pointer = C.llama_get_logits_ith(self._context, index)
        if not pointer:
            raise EngineError("llama.cpp returned no logits", code="internal")
        values = self._logits_type.from_address(ctypes.addressof(pointer.contents))
        return np.frombuffer(values, dtype=np.float32)

    def forget(self, seq_id: int, start: int) -> bool:
        """Drops a sequence's cells from position ``start`` on. False: this model cannot (recurrent), all is dropped."""
        if C.llama_memory_seq_rm(self.memory, seq_id, start, -1):
            return True
        C.llama_memory_seq_rm(self.memory, seq_id, -1, -1)
        return start == 0

    def clear(self) -> None:
        C.llama_memory_clear(self.memory, True)

    # -- vocabulary

    def tokenize(self, text: str, special: bool) -> list[int]:
        """Tokens of a text, without BOS. ``special``: control tokens written in it are recognised."""
        if C.llama_vocab_type(self.vocab) == C.LLAMA_VOCAB_TYPE_SPM and not special:
            return self._tokenize_spm(text)
        return self._tokenize(text, special)

    def _tokenize(self, text: str, special: bool) -> list[int]:
        raw = text.encode("utf-8", "replace")
        size = len(raw) + 8
        out = (C.llama_token * size)()
        count = C.llama_tokenize(self.vocab, raw, len(raw), out, size, False, special)
        if count < 0:
            raise EngineError("the text cannot be tokenised", code="internal")
        return list(out[:count])

    def _tokenize_spm(self, text: str) -> list[int]:
        """SentencePiece puts a space before a text that begins anew; behind a line break it does not."""
        head = self._tokenize("\n", False)
        both = self._tokenize("\n" + text, False)
        return both[len(head) :] if both[: len(head)] == head else self._tokenize(text, False)

    def piece(self, token: int) -> bytes:
        """The bytes of a token; control tokens are empty."""
        found = self._pieces.get(token)
        if found is None:
            if len(self._pieces) >= KEPT_PIECES:
                self._pieces.clear()
            found = self._pieces[token] = self._read_piece(token)
        return found

    def _read_piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = C.llama_token_to_piece(self.vocab, token, buffer, size, 0, False)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def is_end(self, token: int) -> bool:
        return bool(C.llama_vocab_is_eog(self.vocab, token))

    def special_text(self, token: int) -> str:
        """The text of a control token, as chat templates write it; empty for none."""
        if token < 0:
            return ""
        return (C.llama_vocab_get_text(self.vocab, token) or b"").decode("utf-8", "replace")

    # -- facts

    def meta(self, key: str) -> str:
        """A metadata value as text; empty if it is missing."""
        size = 1 << 16
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = C.llama_model_meta_val_str(self._model, key.encode(), buffer, size)
            if count < size:
                return buffer.value.decode("utf-8", "replace") if count >= 0 else ""
            size = count + 1

    def model_facts(self, scratch_bytes: dict[int, int]) -> link.ModelFacts:
        return link.ModelFacts(
            name=self.meta("general.name") or os.path.basename(self.config.path),
            sublayers=self.language_sublayers(),
            n_ctx=self.config.n_ctx,
            n_ubatch=self.config.n_ubatch,
            scratch_bytes=scratch_bytes,
            architecture=self.meta("general.architecture"),
            n_params=C.llama_model_n_params(self._model),
            file_bytes=os.stat(self.config.path).st_size,
            n_layer=C.llama_model_n_layer(self._model),
            n_vocab=self.n_vocab,
            n_ctx_train=C.llama_model_n_ctx_train(self._model),
            quantisation=self._quantisation(),
            hparams=self._hparams(),
            n_sessions=self.config.n_sessions,
            kv_type=self.config.kv_type,
            weights=file_weights(self.config.path),
            projector=self.projector,
        )

    def _hparams(self) -> dict[str, int]:
        """The shapes the timing model asks for; what the file does not say is left out."""
        n_embd, heads = C.llama_model_n_embd(self._model), C.llama_model_n_head(self._model)
        found = {
            "n_embd": n_embd,
            "n_head": heads,
            "n_head_kv": C.llama_model_n_head_kv(self._model),
            "head_dim": self._number("attention.key_length") or (n_embd // heads if heads > 0 else 0),
            "n_ff": self._number("feed_forward_length"),
            "n_expert": self._number("expert_count"),
            "n_expert_used": self._number("expert_used_count"),
            "n_ff_expert": self._number("expert_feed_forward_length"),
        }
        return {name: value for name, value in found.items() if value > 0}

    def _number(self, key: str) -> int:
        """A count of this architecture's metadata; 0 if it is missing or no number."""
        text = self.meta(f"{self.meta('general.architecture')}.{key}")
        return int(text) if text.isdecimal() else 0

    def language_sublayers(self) -> list[link.SubLayer]:
        """All but those of a vision tower, which are behind them."""
        return [sub for sub in self.device.sublayers() if sub.model_id == self.model_id]

    def set_schedule(self, schedule: link.Schedule) -> None:
        """A schedule of the language model's sub-layers, with or without a vision phase."""
        if self.vision is not None:
            schedule = with_vision(schedule, self.device.sublayers(), self.vision.model_id)
        self.device.set_schedule(schedule)

    def _quantisation(self) -> str:
        name = C.llama_ftype_name(C.llama_model_ftype(self._model))
        return name.decode("utf-8", "replace") if name else ""
