"""The part of ggml's C API that measuring needs, through cffi (ABI mode).

cffi releases the GIL around every call, so that a copy can be submitted while another thread computes. Calls are
checked for what ggml reports; what ggml asserts ends the process, and the parent knows the task that did it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import cffi

import xlm_native
from xlm._threads import share_cores
from xlm.errors import DeviceError, EngineError
from xlm_engine.gguf_header import TYPE_SIZES

_CDEF: Final = """
typedef struct { size_t mem_size; void * mem_buffer; bool no_alloc; } ggml_init_params;
typedef struct { int type; void * buffer; int64_t ne[4]; } tensor_head;   /* how struct ggml_tensor begins */
typedef struct { const char * name; const char * value; } feature;
typedef struct { bool no_alloc; void ** ctx; } gguf_init_params;

const char * ggml_version(void);
const char * ggml_commit(void);
int64_t ggml_blck_size(int type);
size_t  ggml_type_size(int type);
size_t  ggml_row_size(int type, int64_t ne);
const char * ggml_type_name(int type);
size_t  ggml_tensor_overhead(void);
size_t  ggml_graph_overhead_custom(size_t size, bool grads);
size_t  ggml_nbytes(const void * tensor);
void *  ggml_get_data(const void * tensor);
bool    ggml_quantize_requires_imatrix(int type);
size_t  ggml_quantize_chunk(int type, const float * src, void * dst, int64_t start, int64_t nrows, int64_t n_per_row,
                            const float * imatrix);
void *  ggml_init(ggml_init_params params);
void    ggml_free(void * ctx);
void *  ggml_new_tensor_4d(void * ctx, int type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
void *  ggml_get_tensor(void * ctx, const char * name);
void *  ggml_permute(void * ctx, void * a, int a0, int a1, int a2, int a3);
void *  ggml_mul_mat(void * ctx, void * a, void * b);
void *  ggml_mul_mat_id(void * ctx, void * as, void * b, void * ids);
void *  ggml_flash_attn_ext(void * ctx, void * q, void * k, void * v, void * mask, float scale, float max_bias,
                            float logit_softcap);
void *  ggml_rms_norm(void * ctx, void * a, float eps);
void *  ggml_add(void * ctx, void * a, void * b);
void *  ggml_mul(void * ctx, void * a, void * b);
void *  ggml_silu(void * ctx, void * a);
void *  ggml_swiglu_split(void * ctx, void * a, void * b);
void *  ggml_soft_max(void * ctx, void * a);
void *  ggml_rope_ext(void * ctx, void * a, void * b, void * c, int n_dims, int mode, int n_ctx_orig, float freq_base,
                      float freq_scale, float ext_factor, float attn_factor, float beta_fast, float beta_slow);
void *  ggml_new_graph_custom(void * ctx, size_t size, bool grads);
void    ggml_build_forward_expand(void * graph, void * tensor);

const char * ggml_backend_dev_description(void * device);
void    ggml_backend_dev_memory(void * device, size_t * free, size_t * total);
void *  ggml_backend_dev_init(void * device, const char * params);
void *  ggml_backend_dev_host_buffer_type(void * device);
void    ggml_backend_free(void * backend);
void *  ggml_backend_get_default_buffer_type(void * backend);
void *  ggml_backend_buft_alloc_buffer(void * buft, size_t size);
size_t  ggml_backend_buft_get_alignment(void * buft);
size_t  ggml_backend_buft_get_max_size(void * buft);
size_t  ggml_backend_buft_get_alloc_size(void * buft, const void * tensor);
void    ggml_backend_buffer_free(void * buffer);
void *  ggml_backend_buffer_get_base(void * buffer);
void    ggml_backend_buffer_set_usage(void * buffer, int usage);
int     ggml_backend_tensor_alloc(void * buffer, void * tensor, void * addr);
int     ggml_backend_view_init(void * tensor);
void    ggml_backend_tensor_set(void * tensor, const void * data, size_t offset, size_t size);
void    ggml_backend_tensor_set_async(void * backend, void * tensor, const void * data, size_t offset, size_t size);
void    ggml_backend_tensor_get_async(void * backend, const void * tensor, void * data, size_t offset, size_t size);
void    ggml_backend_synchronize(void * backend);
int     ggml_backend_graph_compute(void * backend, void * graph);
bool    ggml_backend_supports_op(void * backend, const void * op);
size_t  ggml_backend_reg_dev_count(void * reg);
void *  ggml_backend_reg_dev_get(void * reg, size_t index);
void *  ggml_backend_reg_get_proc_address(void * reg, const char * name);

void *  gguf_init_from_file(const char * fname, gguf_init_params params);
void    gguf_free(void * ctx);
int64_t gguf_get_n_tensors(const void * ctx);
const char * gguf_get_tensor_name(const void * ctx, int64_t tensor_id);
"""
_CPU_CDEF: Final = """
void * ggml_backend_cpu_init(void);
void   ggml_backend_cpu_set_n_threads(void * backend, int n_threads);
void * ggml_backend_cpu_reg(void);
"""
# what a backend library exports: all but the first are of builds that are linked, not loaded
_ENTRIES: Final = ("ggml_backend_init", "ggml_backend_cuda_reg", "ggml_backend_vk_reg")


class Ggml:
    """ggml of llama-cpp-python. Thread-safe as far as ggml's functions are."""

    def __init__(self) -> None:
        folder = xlm_native.load_ggml()
        self.ffi: Final[Any] = cffi.FFI()
        self.ffi.cdef(_CDEF)
        self.ffi.cdef(_CPU_CDEF)
        self.lib: Final[Any] = self._open(folder, "ggml-base")
        self.cpu: Final[Any] = self._open(folder, "ggml-cpu")
        self.types: Final[dict[str, int]] = dict(self._types())

    def _open(self, folder: Path, name: str) -> Any:
        """By the soname, which finds the copy that is loaded already."""
        names = (f"lib{name}.so.0", f"lib{name}.so", f"lib{name}.dylib", f"{name}.dll")
        path = next((folder / file for file in names if (folder / file).exists()), None)
        if path is None:
            raise DeviceError(f"{folder} holds no {name}", code="abi_mismatch")
        try:
            return self.ffi.dlopen(str(path))
        except OSError as error:
            raise DeviceError(f"{path} cannot be loaded: {error}", code="abi_mismatch") from error

    def _types(self) -> Iterator[tuple[str, int]]:
        """Names as in files and plans: Q4_K, IQ2_XS."""
        for number in TYPE_SIZES:  # ggml asserts on ids that it does not have
            yield self.text(self.lib.ggml_type_name(number)).upper(), number

    def text(self, pointer: Any) -> str:
        return self.ffi.string(pointer).decode("utf-8", "replace") if pointer else ""

    @property
    def version(self) -> str:
        return f"{self.text(self.lib.ggml_version())} ({self.text(self.lib.ggml_commit())})"

    def cpu_features(self) -> str:
        """What this build of ggml-cpu uses, "AVX2,F16C,FMA"."""
        found = self.lib.ggml_backend_reg_get_proc_address(
            self.cpu.ggml_backend_cpu_reg(), b"ggml_backend_get_features"
        )
        if not found:
            return ""
        entry = self.ffi.cast("feature * (*)(void *)", found)(self.cpu.ggml_backend_cpu_reg())
        names = []
        while entry.name != self.ffi.NULL:
            if self.text(entry.value) not in ("", "0"):
                names.append(self.text(entry.name))
            entry += 1
        return ",".join(sorted(names))

    def registry(self, library: Path) -> Any:
        """The ggml_backend_reg_t of a backend library. DeviceError if it is none or has no device."""
        try:
            opened = self.ffi.dlopen(str(library), self.ffi.RTLD_NOW)
        except OSError as error:
            raise DeviceError(f"{library} cannot be loaded: {error}", code="device_not_found") from error
        self._keep = [*getattr(self, "_keep", []), opened]  # a library is never unloaded
        registry = self._entry(library)()
        if not registry:
            raise DeviceError(f"{library} offers no backend", code="abi_mismatch")
        return registry

    def _entry(self, library: Path) -> Any:
        for name in _ENTRIES:
            functions = cffi.FFI()
            functions.cdef(f"void * {name}(void);")
            function = getattr(functions.dlopen(str(library)), name, None)
            if function is not None:
                return lambda function=function, own=functions: self.ffi.cast(
                    "void *", int(own.cast("uintptr_t", function()))
                )
        raise DeviceError(f"{library} is no ggml backend", code="abi_mismatch")

    def device(self, registry: Any, index: int) -> Any:
        """The ggml_backend_dev_t. DeviceError ``device_not_found`` if there are fewer."""
        count = self.lib.ggml_backend_reg_dev_count(registry)
        if index >= count:
            raise DeviceError(f"there is no device {index}: the backend has {count}", code="device_not_found")
        return self.lib.ggml_backend_reg_dev_get(registry, index)


@functools.cache
def ggml() -> Ggml:
    """Loaded once. Its OpenMP threads wait as the engine's do: measured is what is used."""
    share_cores()
    return Ggml()


def check(status: int, what: str) -> None:
    """EngineError for a ggml_status other than success."""
    if status != 0:
        raise EngineError(f"ggml: {what} failed with status {status}", code="internal")
