/* xlm_device.h - control API of the cache device XLM0 (libggml-xlm).
 *
 * For the engine process, not for games (games link xlm.h). Plain C99, called
 * through cffi in ABI mode.
 *
 * One idea: host memory is the only home of weights, KV and activations; VRAM
 * on the *inner* device (cuda, vulkan, sim) holds copies that may be dropped
 * at any sub-layer border without losing a bit.
 *
 * Conventions
 *  - Every struct starts with `struct_size` (set it to sizeof; append-only).
 *  - Every call returns xlm_status; 0 is success. xlm_device_last_error()
 *    gives the message of the calling thread's last failure.
 *  - Sizes are bytes, times are nanoseconds on CLOCK_MONOTONIC.
 *  - Thread safety: all functions may be called from any thread at any time
 *    after xlm_device_open() returned, unless a comment says otherwise.
 *  - Nothing here aborts or throws.
 */
#ifndef XLM_DEVICE_H
#define XLM_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#  define XLM_DEVICE_API __declspec(dllexport)
#else
#  define XLM_DEVICE_API __attribute__((visibility("default")))
#endif

typedef int32_t xlm_status;
enum {
    XLM_OK                    = 0,
    XLM_ERR_INVALID_ARGUMENT  = 1,  /* caller: see message */
    XLM_ERR_ABI_MISMATCH      = 2,  /* ggml here is not the ggml this library was built for; names both versions */
    XLM_ERR_NO_DEVICE         = 3,  /* inner library or device not found */
    XLM_ERR_DEVICE_MEMORY     = 4,  /* inner device refused an allocation inside the budget */
    XLM_ERR_HOST_MEMORY       = 5,
    XLM_ERR_DEVICE_LOST       = 6,  /* inner device failed; everything runs on the CPU from now on */
    XLM_ERR_STATE             = 7,  /* call out of order, e.g. open twice */
    XLM_ERR_TIMEOUT           = 8   /* reclaim not finished in time; it still goes on */
};

/* STREAM_KV: of a sub-layer with a KV cache, the cache is streamed with the weights: what a step reads of it goes through
 * the ring, new rows go home at once, and nothing of it stays. It takes ring_bytes of at least kv_device_bytes. Weights
 * that another tier keeps resident are used where they are. Without a cache the same as STREAM. */
enum xlm_placement { XLM_PLACE_CPU = 0, XLM_PLACE_STREAM = 1, XLM_PLACE_RESIDENT = 2, XLM_PLACE_STREAM_KV = 3 };

enum xlm_sublayer_kind {
    XLM_KIND_SMALL          = 0,  /* norms, biases, scales, router: one group a model, resident whenever the device is used */
    XLM_KIND_ATTENTION      = 1,  /* the mixer of a layer (attention, ssm, rwkv ...) and its KV */
    XLM_KIND_FFN            = 2,
    XLM_KIND_EXPERTS        = 3,
    XLM_KIND_SHARED_EXPERTS = 4,
    XLM_KIND_EXTRAS         = 5,  /* per-layer extras (altup, laurel, ple ...) */
    XLM_KIND_OUTPUT         = 6,
    XLM_KIND_LOOKUP         = 7,  /* GET_ROWS on the host only; never on the device */
    XLM_KIND_PROJECTOR      = 8   /* of a vision tower, outside of its layers: patch embedding and projector */
};

typedef struct xlm_device_config {
    uint32_t    struct_size;
    const char *inner;          /* "none" (CPU only), "sim", "vulkan", "cuda"; UTF-8 */
    const char *inner_library;  /* path of the inner ggml backend library; NULL for "none" */
    uint32_t    inner_index;    /* which device of that library */
    uint32_t    n_threads;      /* of the internal CPU backend; 0 = hardware */
    uint64_t    budget_bytes;   /* first budget; 0 = CPU only */
    uint32_t    max_sublayers_in_flight_decode;  /* bound of work queued ahead, beside that of its time (4 ms); 0 = default (16) */
    uint32_t    max_sublayers_in_flight_prefill; /* 0 = default (16; 1 until it is known how long one takes) */
} xlm_device_config;

typedef struct xlm_sublayer_info {
    uint32_t struct_size;
    uint32_t index;                /* dense over all live models; stable until a model ends */
    uint32_t model_id;
    int32_t  layer;                /* -1 where it has none */
    uint32_t kind;                 /* xlm_sublayer_kind */
    uint32_t n_tensors;
    uint64_t device_bytes;         /* VRAM one resident copy takes (aligned) */
    uint64_t host_bytes;
    uint64_t kv_device_bytes;      /* VRAM of its KV copies, all contexts; 0 if none */
    uint64_t largest_piece_bytes;  /* largest single piece that has to fit the ring when streamed */
    /* Experts only, else 0. K slots take at most K * expert_bytes + expert_overhead_bytes of VRAM. */
    uint32_t n_experts;
    uint32_t reserved0;
    uint64_t expert_bytes;          /* one expert, all its matrices: what a miss uploads */
    uint64_t expert_overhead_bytes; /* alignment and padding, however many slots */
    uint64_t largest_expert_bytes;  /* its largest matrix: the window of a schedule must hold two of them */
} xlm_sublayer_info;

typedef struct xlm_tier_schedule {
    uint32_t       struct_size;
    uint32_t       max_tokens;     /* this tier serves steps of up to that many tokens; the last tier serves the rest */
    const uint8_t *placement;      /* [n_sublayers] xlm_placement, by sub-layer index */
    uint64_t       scratch_bytes;  /* what the planner set aside for activations; advisory */
    /* Kept free of resident copies in steps of this tier, where that is less than the schedule's reserve_bytes: ring +
     * scratch of this tier. While no other steps run, the rest is lent to sub-layers that only such tiers want resident;
     * a step of another tier takes it back. 0: the schedule's */
    uint64_t       reserve_bytes;
} xlm_tier_schedule;

/* How an experts sub-layer is kept when it is not resident as a whole. Its placement must be
 * STREAM (or RESIDENT, where the whole does not fit). Times are of the planner's timing model:
 * a missing expert is uploaded, or computed on the CPU beside the device, whichever ends sooner. */
typedef struct xlm_expert_policy {
    uint32_t struct_size;
    uint32_t n_slots;       /* K: experts kept on the device; fewer where memory is short; 0 = none, used experts go through the window */
    uint64_t upload_ns;     /* one expert over the link */
    uint64_t cpu_ns;        /* one expert for one token on the CPU; 0 = never on the CPU */
    uint64_t cpu_token_ns;  /* ... for each further token of the same step */
    uint64_t cpu_fixed_ns;  /* once a step and layer: activations to the CPU and back */
    uint32_t cpu_threads;   /* that compute them, as the times above assume; 0 = all */
    uint32_t cpu_part_ns;   /* once more where the device computes others of the layer: rows are gathered and put in place */
} xlm_expert_policy;

typedef struct xlm_schedule {
    uint32_t                 struct_size;
    uint32_t                 n_tiers;      /* >= 1, ascending max_tokens */
    const xlm_tier_schedule *tiers;
    uint32_t                 n_sublayers;  /* must equal xlm_device_sublayer_count() */
    const uint32_t          *priority;     /* [n_sublayers] sub-layer indices, the last is evicted first; NULL = index order */
    uint64_t                 ring_bytes;   /* streaming ring; 0 = no streaming (stream falls back to CPU) */
    uint64_t                 reserve_bytes;/* kept free of resident copies: ring + scratch of the largest tier */
    uint64_t                 schedule_id;  /* echoed in stats */
    const xlm_expert_policy *experts;      /* [n_sublayers], by sub-layer index; others than experts are ignored; NULL = no slots */
    uint64_t                 expert_window_bytes; /* experts without a slot go through this; 0 = a share of ring_bytes */
    /* The vision phase: graphs of a model with a projector. max_tokens counts patches here. Without these tiers its
     * sub-layers run on the CPU. */
    uint32_t                 n_vision_tiers;
    uint32_t                 reserved0;
    const xlm_tier_schedule *vision_tiers;      /* placement: [n_sublayers], as in tiers */
    uint64_t                 vision_ring_bytes; /* the ring of that phase */
} xlm_schedule;

/* What the device memory under our control holds now. used = resident + kv + ring + scratch. */
typedef struct xlm_memory {
    uint32_t struct_size;
    uint32_t reserved0;
    uint64_t budget_bytes;          /* target in force */
    uint64_t used_bytes;            /* our ledger */
    uint64_t resident_bytes;
    uint64_t kv_bytes;
    uint64_t ring_bytes;
    uint64_t scratch_bytes;
    uint64_t device_used_bytes;     /* the inner device's own counter: exact on sim; total - free elsewhere (whole card) */
    uint64_t device_total_bytes;
    uint64_t peak_used_bytes;       /* ledger peak since open or xlm_device_reset_stats */
    uint64_t over_budget_events;    /* times used_bytes was above the budget in force after a release was reported: must stay 0 */
    uint64_t expert_slot_bytes;     /* part of resident_bytes: slots of experts */
    uint64_t expert_window_bytes;   /* part of ring_bytes: the window of experts without a slot */
} xlm_memory;

typedef struct xlm_release {
    uint32_t struct_size;
    uint32_t completed;             /* 1: used_bytes <= budget now */
    uint64_t budget_bytes;
    uint64_t used_bytes;
    uint64_t device_used_bytes;
    uint64_t released_bytes;        /* dropped for this request */
    uint64_t release_ns;            /* request -> released */
} xlm_release;

typedef struct xlm_stats {
    uint32_t struct_size;
    uint32_t device_lost;           /* 1 after a device fault */
    uint64_t schedule_id;
    uint64_t n_graphs, n_segments_device, n_segments_cpu;
    uint64_t n_pieces_streamed, bytes_streamed;   /* weights through the ring */
    uint64_t bytes_resident_uploaded;
    uint64_t bytes_activations_up, bytes_activations_down;
    uint64_t bytes_kv_up, bytes_kv_written_back;
    uint64_t n_evictions, n_reclaims, reclaim_ns_max;
    uint64_t ns_graph, ns_wait_device, ns_cpu_compute;
    uint64_t n_fallback_cpu;        /* sub-layers that ran on the CPU though the schedule said otherwise */
    uint64_t scratch_need_decode_bytes;   /* device scratch an all-device step of 1 token needs (largest seen) */
    uint64_t scratch_need_prefill_bytes;  /* the same for the largest step seen */
    uint64_t prefill_tokens_seen;         /* tokens of that largest step */
    uint64_t n_device_refusals;           /* allocations the device refused though the budget allowed them */
    uint64_t n_replays;                   /* steps run again on the CPU because the device was lost in them */
    uint64_t pageable_host_bytes;         /* host buffers that could not be pinned, since open: uploads from them are slower */
    /* Experts handled one by one, all layers. A hit or a miss is one expert of one layer in one step. */
    uint64_t expert_steps;                /* layer and step */
    uint64_t expert_hits, expert_misses;  /* used experts that were in a slot, that were not */
    uint64_t expert_cpu;                  /* misses computed on the CPU */
    uint64_t expert_bytes_uploaded;
    uint64_t expert_bytes_saved;          /* what streaming the whole tensors would have moved beyond that */
    uint64_t expert_passes;               /* groups of experts that went through the window */
    uint64_t expert_whole;                /* sub-layers planned with whole tensors though the schedule streams them: see xlm_expert_info.mode */
    uint64_t sublayer_ns_max;             /* longest time one sub-layer took on the device; what a reclaim may have to wait for */
    uint64_t ns_paced;                    /* rests within steps, by xlm_device_set_pace() */
    uint64_t n_vision_graphs;
    uint64_t vision_scratch_need_bytes;   /* device scratch the largest vision graph needs wholly on the device */
    uint64_t n_vision_attention_cpu;      /* attention operations of vision graphs that the device cannot run */
    uint64_t n_attention_tiles;           /* pieces of attention whose mask came tile by tile */
    uint64_t bytes_masks_up;              /* masks sent for them */
    uint64_t n_patch_tiles;               /* parts of vision sub-layers that were computed for some patches at a time */
    uint64_t bytes_kv_streamed;           /* part of bytes_kv_up: caches that went through the ring */
    uint64_t n_plans;                     /* made: a graph is planned anew where what it found before changed */
} xlm_stats;

/* How an experts sub-layer was planned last. */
enum xlm_expert_mode {
    XLM_EXPERTS_UNKNOWN  = 0,  /* no graph yet, or no experts */
    XLM_EXPERTS_CPU      = 1,
    XLM_EXPERTS_RESIDENT = 2,  /* all of them on the device */
    XLM_EXPERTS_SLOTS    = 3,  /* by expert: slots, and the window where it is needed */
    XLM_EXPERTS_WINDOW   = 4,  /* by expert, no slots */
    XLM_EXPERTS_WHOLE_GRAPH  = 5, /* whole tensors: the graph of this model is of a form not known */
    XLM_EXPERTS_WHOLE_WINDOW = 6  /* whole tensors: no memory for slots or window */
};

/* Routing and cache of one experts sub-layer. Counters since open or xlm_device_reset_stats. */
typedef struct xlm_expert_info {
    uint32_t struct_size;
    uint32_t index;           /* sub-layer */
    uint32_t mode;            /* xlm_expert_mode */
    uint32_t n_experts;
    uint32_t n_used;          /* experts a token uses; 0 until a graph showed it */
    uint32_t n_slots_wanted;  /* K of the schedule */
    uint32_t n_slots;         /* on the device now */
    uint32_t n_slots_filled;
    uint64_t slot_bytes;      /* VRAM of the slots now */
    uint64_t n_steps, n_tokens;
    uint64_t n_hits, n_misses, n_cpu, n_passes;
    uint64_t bytes_uploaded, bytes_saved;
} xlm_expert_info;

/* What an event of a trace tells of. Times of the host are those of the call, not of the device's work. */
enum xlm_trace_kind {
    XLM_TRACE_STEP       = 1,  /* one graph, whole; n_tokens */
    XLM_TRACE_CPU        = 2,  /* sub-layers computed on the CPU */
    XLM_TRACE_DEVICE     = 3,  /* sub-layers given to the device */
    XLM_TRACE_UPLOAD     = 4,  /* weights copied ahead of their use; bytes */
    XLM_TRACE_COPY_UP    = 5,  /* activations, rows of the KV cache, weights that stay; bytes */
    XLM_TRACE_COPY_DOWN  = 6,  /* activations and results; bytes */
    XLM_TRACE_WRITE_BACK = 7,  /* new rows of the KV cache; bytes */
    XLM_TRACE_WAIT       = 8   /* the host waits for the device */
};

typedef struct xlm_trace_event {
    uint32_t struct_size;
    uint32_t kind;             /* xlm_trace_kind */
    int32_t  sublayer;         /* the first it belongs to; -1: none */
    uint32_t n_sublayers;      /* that many in the order of the graph */
    uint32_t n_tokens;
    uint32_t reserved0;
    uint64_t bytes;
    uint64_t begin_ns, end_ns;                /* of the call on the host */
    uint64_t device_begin_ns, device_end_ns;  /* of the device's work; 0 = the inner device cannot tell (only the virtual GPU in modelled time can) */
} xlm_trace_event;

/* -- life -------------------------------------------------------------- */

/* Checks the ABI (ggml version + commit, struct sizes, a toy graph), loads the
 * inner backend privately, creates XLM0. Once a process. The ggml-base,
 * ggml-cpu and ggml libraries of llama-cpp-python must already be loaded. */
XLM_DEVICE_API xlm_status  xlm_device_open(const xlm_device_config *config);
/* All contexts and models must be freed before. Safe to call twice. */
XLM_DEVICE_API void        xlm_device_close(void);
/* Message of the calling thread's last failed call; never NULL; valid until its next call. */
XLM_DEVICE_API const char *xlm_device_last_error(void);
/* One line: library version, ggml version and commit it was built for. Callable before open. */
XLM_DEVICE_API const char *xlm_device_build_info(void);
/* Name of the inner device for people, e.g. "NVIDIA GeForce RTX 4070" or "sim 256 MiB". */
XLM_DEVICE_API const char *xlm_device_inner_description(void);

/* -- what llama.cpp is given ------------------------------------------- */

XLM_DEVICE_API void *xlm_device_ggml_device(void);       /* ggml_backend_dev_t for llama_model_params.devices */
XLM_DEVICE_API void *xlm_device_host_buffer_type(void);  /* ggml_backend_buffer_type_t for tensor_buft_overrides (".*") */

/* -- models ------------------------------------------------------------ */

/* Buffers created by this thread between begin and end belong to the model:
 * call around llama_model_load_from_file(). */
XLM_DEVICE_API xlm_status xlm_device_model_begin(const char *name, uint32_t *model_id);
XLM_DEVICE_API xlm_status xlm_device_model_end(uint32_t model_id);
/* The same around llama_init_from_model(): KV buffers made meanwhile belong to that model. */
XLM_DEVICE_API xlm_status xlm_device_context_begin(uint32_t model_id);
XLM_DEVICE_API xlm_status xlm_device_context_end(uint32_t model_id);

XLM_DEVICE_API uint32_t   xlm_device_sublayer_count(void);
XLM_DEVICE_API xlm_status xlm_device_sublayer(uint32_t index, xlm_sublayer_info *info);

/* -- budget and schedule ------------------------------------------------ */

/* Sets the budget and waits until used <= budget or timeout_ns passed (0 = do
 * not wait). Shrinking never fails: copies are dropped at the next sub-layer
 * border of a running step, or at once when none runs. Growing only raises
 * the bound. May be called while another thread is inside llama_decode(). */
XLM_DEVICE_API xlm_status xlm_device_set_budget(uint64_t budget_bytes, uint64_t timeout_ns, xlm_release *result);
/* Takes a copy; in force at the next step. Drops what no tier keeps resident;
 * never evicts what stays resident. Uploads happen in xlm_device_settle() and
 * at first use. */
XLM_DEVICE_API xlm_status xlm_device_set_schedule(const xlm_schedule *schedule);
/* Uploads resident copies that are wanted and fit, at most max_bytes (at least
 * one sub-layer), between steps. *more = 1 while something is left to upload.
 * Call from the thread that decodes. */
XLM_DEVICE_API xlm_status xlm_device_settle(uint64_t max_bytes, uint32_t *more);
/* Announces the next llama_decode() of this thread: its number of tokens picks the tier. */
XLM_DEVICE_API xlm_status xlm_device_begin_step(uint32_t n_tokens);
/* Makes the running graph of any thread stop at its next border; llama_decode
 * then returns an error. Cleared by the next begin_step. */
XLM_DEVICE_API xlm_status xlm_device_abort_step(void);
/* Steps rest at their borders (sub-layers on the device, operations on the CPU), so that computing takes `duty` of the
 * time, over 0 and at most 1 (no rests; the default). All rests of a step together are at most max_rest_ns. At once in
 * force, also for a rest under way. A reclaim or an abort ends a rest. Results do not depend on it. */
XLM_DEVICE_API xlm_status xlm_device_set_pace(double duty, uint64_t max_rest_ns);
/* An image is about to be encoded: begins the vision phase as the first graph of a model with a projector would. The
 * language model's copies make room for as much as the last image took, and xlm_device_settle() brings the tower's in,
 * so that the graph finds them. Does nothing before the first image of a schedule, nor where the tower did not fit. */
XLM_DEVICE_API xlm_status xlm_device_begin_vision(void);
/* Ends the vision phase, which the first graph of a model with a projector begins: drops the tower's copies, ring
 * and scratch. The next graph of another model does the same. Call when the last image of a request is encoded,
 * then settle. The language model's copies are on their way back then: the next step need not wait for all of them.
 * Nothing to do is no error. */
XLM_DEVICE_API xlm_status xlm_device_end_vision(void);
/* Drops all device memory (idle), keeps budget and schedule. */
XLM_DEVICE_API xlm_status xlm_device_trim(void);
/* Tries the inner device again after XLM_ERR_DEVICE_LOST; OK = usable again. */
XLM_DEVICE_API xlm_status xlm_device_recover(void);

/* Routing of the experts sub-layer `index`. `share` may be NULL; else it takes n_share values, one an
 * expert: the part of recent tokens that used it (decayed by tokens, so that it follows the text; the sum
 * is n_used), 0 for all until a step was measured. Measured while experts are handled one by one. */
XLM_DEVICE_API xlm_status xlm_device_experts(uint32_t index, xlm_expert_info *info, float *share, uint32_t n_share);

XLM_DEVICE_API xlm_status xlm_device_memory(xlm_memory *memory);
XLM_DEVICE_API xlm_status xlm_device_stats(xlm_stats *stats);
XLM_DEVICE_API xlm_status xlm_device_reset_stats(void);

/* Records what runs and is copied from now on: the newest `capacity` events are kept, older ones of
 * before are forgotten. 0 = off, the default. Costs well below a microsecond an event, nothing when off. */
XLM_DEVICE_API xlm_status xlm_device_trace(uint32_t capacity);
/* Takes up to n_events out, oldest first; events[0].struct_size says how large one of the caller's is.
 * `n_lost` (may be NULL): how many were overwritten unread since the last call. */
XLM_DEVICE_API xlm_status xlm_device_trace_read(xlm_trace_event *events, uint32_t n_events, uint32_t *n_read,
                                                uint64_t *n_lost);

#ifdef __cplusplus
}
#endif
#endif
