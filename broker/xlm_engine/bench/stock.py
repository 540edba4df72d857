"""Stock llama.cpp on the virtual GPU: any program's llama_model_params, nothing of ours but the device SIM0."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

import llama_cpp.llama_cpp as C

import xlm_native
from xlm.errors import EngineError, ModelError
from xlm_engine.bench.sim import BenchSim
from xlm_engine.bench.steps import Steps
from xlm_engine.bench.wire import Request, Setting
from xlm_engine.runtime import _BufferOverride


class StockSide:
    """One model, one context at a time."""

    def __init__(self, request: Request) -> None:
        self.sim: Final = BenchSim(request)
        self._device: Final = self._register()
        self._model: Any = None
        self._context: Any = None
        self.steps: Steps | None = None
        self._setting = Setting()
        self._stopped = False
        self._callback: Final[Any] = C.ggml_abort_callback(lambda _data: self._stopped)
        C.llama_backend_init()

    def _register(self) -> int:
        base = ctypes.CDLL(str(xlm_native.llama_library_dir() / "libggml.so.0"))
        base.ggml_backend_load.restype = ctypes.c_void_p
        base.ggml_backend_dev_by_name.restype = ctypes.c_void_p
        cpu = ctypes.CDLL(str(xlm_native.llama_library_dir() / "libggml-cpu.so.0"))
        cpu.ggml_backend_cpu_buffer_type.restype = ctypes.c_void_p
        if not base.ggml_backend_load(os.fsencode(self.sim.path)):
            raise EngineError("llama.cpp cannot load the virtual GPU", code="abi_mismatch")
        self._cpu_buffers = int(cpu.ggml_backend_cpu_buffer_type())
        return int(base.ggml_backend_dev_by_name(b"SIM0"))

    def load(self, request: Request) -> dict[str, Any]:
        """Loads the model with a setting, at no device time. ModelError where it does not fit."""
        self.close_model()
        assert request.setting is not None
        self._setting = request.setting
        self.sim.free_of_charge()
        params = C.llama_model_default_params()
        devices = (ctypes.c_void_p * 2)(self._device if self._setting.device else None, None)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
        params.n_gpu_layers = self._setting.n_gpu_layers
        params.load_mode = C.LLAMA_LOAD_MODE_NONE
        params.no_host, params.use_extra_bufts = self._setting.repack, self._setting.repack
        pattern = self._setting.on_cpu.encode()
        overrides = (_BufferOverride * 2)(_BufferOverride(pattern, self._cpu_buffers), _BufferOverride())
        if pattern:
            params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
        self._model = C.llama_model_load_from_file(os.fsencode(request.path), params)
        if not self._model:
            raise ModelError(f"stock llama.cpp cannot load {request.path} with {self._setting}", code="model_too_large")
        return {"n_layer": C.llama_model_n_layer(self._model)}

    def context(self, request: Request) -> dict[str, Any]:
        """A context; answers the device memory that model and context take. ModelError where it does not fit."""
        self.close_context()
        self.sim.free_of_charge()
        params = C.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = request.n_ctx, request.n_ubatch, request.n_ubatch
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = request.n_threads
        params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.offload_kqv, params.op_offload = self._setting.kv_on_device, self._setting.offload
        params.no_perf = True
        self._context = C.llama_init_from_model(self._model, params)
        if not self._context:
            raise ModelError("stock llama.cpp cannot create a context", code="model_too_large")
        self.steps = Steps(self._context, request.n_ubatch, None, self._stop)
        return {"used_bytes": self.sim.used_bytes()}

    def _stop(self) -> None:
        self._stopped = True

    def prepare(self, _request: Request) -> None:
        """Nothing: its cache lies where it is used."""

    def prefill(self, request: Request) -> int:
        """The callback asks Python before every node: only here, where steps are long."""
        assert self.steps is not None
        self._stopped = False
        C.llama_set_abort_callback(self._context, self._callback, None)
        try:
            return self.steps.prefill(request.depth, request.tokens, request.limit_s, request.lead)
        finally:
            C.llama_set_abort_callback(self._context, C.ggml_abort_callback(), None)

    def close_context(self) -> None:
        if self.steps is not None:
            self.steps.close()
        if self._context:
            C.llama_free(self._context)
        self.steps = self._context = None

    def close_model(self) -> None:
        self.close_context()
        if self._model:
            C.llama_model_free(self._model)
        self._model = None

    close = close_model
