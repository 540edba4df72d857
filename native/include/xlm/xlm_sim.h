/* xlm_sim.h - control API of the virtual GPU "SIM0" (libggml-xlm-sim).
 *
 * A ggml device with its own capped memory, asynchronous compute and copy
 * streams with events, a throttled link, counters and fault injection. Usable
 * by XLM0 and by stock llama.cpp (n_gpu_layers). Configure before the first
 * ggml_backend_init()/allocation; counters and faults may be used at any time
 * from any thread. Plain C99. Same conventions as xlm_device.h.
 *
 * Programs that know nothing of this header configure the device through the
 * environment variable XLM_SIM, e.g. "mode=modelled,vram=4GiB,link=12e9"; see
 * docs/virtual-gpu.md. It is read at the first use of the library; a bad value
 * makes ggml_backend_init() return NULL. xlm_sim_configure() replaces it.
 */
#ifndef XLM_SIM_H
#define XLM_SIM_H

#include "xlm_device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum xlm_sim_mode { XLM_SIM_EXACT = 0, XLM_SIM_MODELLED = 1 };
enum xlm_sim_arbitration { XLM_SIM_FIFO = 0, XLM_SIM_CHUNKED = 1, XLM_SIM_SMALL_FIRST = 2 };

typedef struct xlm_sim_config {
    uint32_t struct_size;
    uint32_t mode;                     /* xlm_sim_mode */
    uint64_t vram_bytes;               /* hard cap */
    double   link_bytes_per_s;         /* each direction; 0 = unthrottled */
    double   link_latency_ns;          /* added to each copy */
    uint32_t arbitration;              /* xlm_sim_arbitration of the upload engine */
    uint32_t reserved0;
    double   compute_flops_per_s;      /* modelled mode: roofline */
    double   memory_bytes_per_s;       /* modelled mode */
    double   op_launch_ns;             /* modelled mode, per op */
    double   graph_launch_ns;          /* modelled mode, per submission */
    double   cpu_slowdown_per_gb_s;    /* modelled contention: documented, reported, 0 = none */
    uint32_t n_threads;                /* exact mode: ggml-cpu threads of the compute stream; 0 = hardware */
    uint32_t reserved1;
} xlm_sim_config;

typedef struct xlm_sim_counters {
    uint32_t struct_size;
    uint32_t lost;                     /* device-lost in force */
    uint64_t used_bytes, peak_bytes, vram_bytes;
    uint64_t n_alloc, n_alloc_failed;
    uint64_t n_graphs, n_ops, compute_ns;
    uint64_t n_h2d, h2d_bytes, h2d_ns;
    uint64_t n_d2h, d2h_bytes, d2h_ns;
    uint64_t n_host_syncs, host_sync_wait_ns;
    uint64_t n_graphs_failed;          /* refused or failed on a worker */
    uint64_t n_dropped;                /* copies dropped because the device was lost */
    uint64_t n_frees_in_use;           /* buffers freed under running work: a caller's bug on a real card, made harmless here */
    uint64_t foreign_bytes;
    uint64_t n_losses;                 /* how often the device was lost, also where that was undone; never reset */
} xlm_sim_counters;

/* Defaults: exact, 256 MiB, 12 GB/s, 8 us, small-first, 1 TFLOP/s, 100 GB/s. */
XLM_DEVICE_API void       xlm_sim_default_config(xlm_sim_config *config);
/* Replaces the whole configuration; n_threads holds for backends made afterwards.
 * XLM_ERR_INVALID_ARGUMENT names the bad field.
 * XLM_ERR_STATE when memory is allocated on the device and vram_bytes shrinks below it or the mode changes
 * (also while backends of the device exist). */
XLM_DEVICE_API xlm_status xlm_sim_configure(const xlm_sim_config *config);
XLM_DEVICE_API xlm_status xlm_sim_get_counters(xlm_sim_counters *counters);
XLM_DEVICE_API xlm_status xlm_sim_reset_counters(void);  /* keeps used_bytes; peak := used */
/* The next n allocations after `skip` successful ones fail. n = 0 clears. */
XLM_DEVICE_API xlm_status xlm_sim_fail_allocations(uint32_t skip, uint32_t n);
/* Device lost after n more submissions: graph_compute returns GGML_STATUS_FAILED, copies are
 * dropped, allocations fail. Work accepted before the loss completes; events still signal, so nothing hangs. */
XLM_DEVICE_API xlm_status xlm_sim_lose_device(uint32_t after_submissions);
/* Waits for accepted work, then the device works again. What was in its memory is gone: all reads as zero. */
XLM_DEVICE_API xlm_status xlm_sim_restore_device(void);
/* Bytes per second the link carries to the device at this moment: the configured rate while it is busy, else 0. */
XLM_DEVICE_API double     xlm_sim_upload_bytes_per_s(void);
/* When the device works on the calling thread's last operation (copy or graph). Modelled mode; zeros in exact mode, where
 * it is not known at submission. */
XLM_DEVICE_API xlm_status xlm_sim_last_operation(uint64_t *begin_ns, uint64_t *end_ns);
/* Another process takes / gives back memory: counts against the cap, visible in free memory. */
XLM_DEVICE_API xlm_status xlm_sim_set_foreign_bytes(uint64_t bytes);
/* ggml_backend_reg_t; also what the exported ggml_backend_init() returns. NULL, with a message on stderr too, when
 * XLM_SIM is bad or the loaded ggml is not the one this library was built for. */
XLM_DEVICE_API void      *xlm_sim_registry(void);
/* Message of the calling thread's last failed call; never NULL; valid until its next call. */
XLM_DEVICE_API const char *xlm_sim_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
