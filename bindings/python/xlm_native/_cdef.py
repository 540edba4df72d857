"""Generated from native/include/xlm by `python -m xlm_native._generate`. Do not edit."""

from typing import Final

XLM_DEVICE: Final = """
typedef int32_t xlm_status;
enum {
XLM_OK = 0,
XLM_ERR_INVALID_ARGUMENT = 1,
XLM_ERR_ABI_MISMATCH = 2,
XLM_ERR_NO_DEVICE = 3,
XLM_ERR_DEVICE_MEMORY = 4,
XLM_ERR_HOST_MEMORY = 5,
XLM_ERR_DEVICE_LOST = 6,
XLM_ERR_STATE = 7,
XLM_ERR_TIMEOUT = 8
};
enum xlm_placement { XLM_PLACE_CPU = 0, XLM_PLACE_STREAM = 1, XLM_PLACE_RESIDENT = 2, XLM_PLACE_STREAM_KV = 3 };
enum xlm_sublayer_kind {
XLM_KIND_SMALL = 0,
XLM_KIND_ATTENTION = 1,
XLM_KIND_FFN = 2,
XLM_KIND_EXPERTS = 3,
XLM_KIND_SHARED_EXPERTS = 4,
XLM_KIND_EXTRAS = 5,
XLM_KIND_OUTPUT = 6,
XLM_KIND_LOOKUP = 7,
XLM_KIND_PROJECTOR = 8
};
typedef struct xlm_device_config {
uint32_t struct_size;
const char *inner;
const char *inner_library;
uint32_t inner_index;
uint32_t n_threads;
uint64_t budget_bytes;
uint32_t max_sublayers_in_flight_decode;
uint32_t max_sublayers_in_flight_prefill;
} xlm_device_config;
typedef struct xlm_sublayer_info {
uint32_t struct_size;
uint32_t index;
uint32_t model_id;
int32_t layer;
uint32_t kind;
uint32_t n_tensors;
uint64_t device_bytes;
uint64_t host_bytes;
uint64_t kv_device_bytes;
uint64_t largest_piece_bytes;
uint32_t n_experts;
uint32_t reserved0;
uint64_t expert_bytes;
uint64_t expert_overhead_bytes;
uint64_t largest_expert_bytes;
} xlm_sublayer_info;
typedef struct xlm_tier_schedule {
uint32_t struct_size;
uint32_t max_tokens;
const uint8_t *placement;
uint64_t scratch_bytes;
uint64_t reserve_bytes;
} xlm_tier_schedule;
typedef struct xlm_expert_policy {
uint32_t struct_size;
uint32_t n_slots;
uint64_t upload_ns;
uint64_t cpu_ns;
uint64_t cpu_token_ns;
uint64_t cpu_fixed_ns;
uint32_t cpu_threads;
uint32_t cpu_part_ns;
} xlm_expert_policy;
typedef struct xlm_schedule {
uint32_t struct_size;
uint32_t n_tiers;
const xlm_tier_schedule *tiers;
uint32_t n_sublayers;
const uint32_t *priority;
uint64_t ring_bytes;
uint64_t reserve_bytes;
uint64_t schedule_id;
const xlm_expert_policy *experts;
uint64_t expert_window_bytes;
uint32_t n_vision_tiers;
uint32_t reserved0;
const xlm_tier_schedule *vision_tiers;
uint64_t vision_ring_bytes;
} xlm_schedule;
typedef struct xlm_memory {
uint32_t struct_size;
uint32_t reserved0;
uint64_t budget_bytes;
uint64_t used_bytes;
uint64_t resident_bytes;
uint64_t kv_bytes;
uint64_t ring_bytes;
uint64_t scratch_bytes;
uint64_t device_used_bytes;
uint64_t device_total_bytes;
uint64_t peak_used_bytes;
uint64_t over_budget_events;
uint64_t expert_slot_bytes;
uint64_t expert_window_bytes;
} xlm_memory;
typedef struct xlm_release {
uint32_t struct_size;
uint32_t completed;
uint64_t budget_bytes;
uint64_t used_bytes;
uint64_t device_used_bytes;
uint64_t released_bytes;
uint64_t release_ns;
} xlm_release;
typedef struct xlm_stats {
uint32_t struct_size;
uint32_t device_lost;
uint64_t schedule_id;
uint64_t n_graphs, n_segments_device, n_segments_cpu;
uint64_t n_pieces_streamed, bytes_streamed;
uint64_t bytes_resident_uploaded;
uint64_t bytes_activations_up, bytes_activations_down;
uint64_t bytes_kv_up, bytes_kv_written_back;
uint64_t n_evictions, n_reclaims, reclaim_ns_max;
uint64_t ns_graph, ns_wait_device, ns_cpu_compute;
uint64_t n_fallback_cpu;
uint64_t scratch_need_decode_bytes;
uint64_t scratch_need_prefill_bytes;
uint64_t prefill_tokens_seen;
uint64_t n_device_refusals;
uint64_t n_replays;
uint64_t pageable_host_bytes;
uint64_t expert_steps;
uint64_t expert_hits, expert_misses;
uint64_t expert_cpu;
uint64_t expert_bytes_uploaded;
uint64_t expert_bytes_saved;
uint64_t expert_passes;
uint64_t expert_whole;
uint64_t sublayer_ns_max;
uint64_t ns_paced;
uint64_t n_vision_graphs;
uint64_t vision_scratch_need_bytes;
uint64_t n_vision_attention_cpu;
uint64_t n_attention_tiles;
uint64_t bytes_masks_up;
uint64_t n_patch_tiles;
uint64_t bytes_kv_streamed;
uint64_t n_plans;
} xlm_stats;
enum xlm_expert_mode {
XLM_EXPERTS_UNKNOWN = 0,
XLM_EXPERTS_CPU = 1,
XLM_EXPERTS_RESIDENT = 2,
XLM_EXPERTS_SLOTS = 3,
XLM_EXPERTS_WINDOW = 4,
XLM_EXPERTS_WHOLE_GRAPH = 5,
XLM_EXPERTS_WHOLE_WINDOW = 6
};
typedef struct xlm_expert_info {
uint32_t struct_size;
uint32_t index;
uint32_t mode;
uint32_t n_experts;
uint32_t n_used;
uint32_t n_slots_wanted;
uint32_t n_slots;
uint32_t n_slots_filled;
uint64_t slot_bytes;
uint64_t n_steps, n_tokens;
uint64_t n_hits, n_misses, n_cpu, n_passes;
uint64_t bytes_uploaded, bytes_saved;
} xlm_expert_info;
enum xlm_trace_kind {
XLM_TRACE_STEP = 1,
XLM_TRACE_CPU = 2,
XLM_TRACE_DEVICE = 3,
XLM_TRACE_UPLOAD = 4,
XLM_TRACE_COPY_UP = 5,
XLM_TRACE_COPY_DOWN = 6,
XLM_TRACE_WRITE_BACK = 7,
XLM_TRACE_WAIT = 8
};
typedef struct xlm_trace_event {
uint32_t struct_size;
uint32_t kind;
int32_t sublayer;
uint32_t n_sublayers;
uint32_t n_tokens;
uint32_t reserved0;
uint64_t bytes;
uint64_t begin_ns, end_ns;
uint64_t device_begin_ns, device_end_ns;
} xlm_trace_event;
xlm_status xlm_device_open(const xlm_device_config *config);
void xlm_device_close(void);
const char *xlm_device_last_error(void);
const char *xlm_device_build_info(void);
const char *xlm_device_inner_description(void);
void *xlm_device_ggml_device(void);
void *xlm_device_host_buffer_type(void);
xlm_status xlm_device_model_begin(const char *name, uint32_t *model_id);
xlm_status xlm_device_model_end(uint32_t model_id);
xlm_status xlm_device_context_begin(uint32_t model_id);
xlm_status xlm_device_context_end(uint32_t model_id);
uint32_t xlm_device_sublayer_count(void);
xlm_status xlm_device_sublayer(uint32_t index, xlm_sublayer_info *info);
xlm_status xlm_device_set_budget(uint64_t budget_bytes, uint64_t timeout_ns, xlm_release *result);
xlm_status xlm_device_set_schedule(const xlm_schedule *schedule);
xlm_status xlm_device_settle(uint64_t max_bytes, uint32_t *more);
xlm_status xlm_device_begin_step(uint32_t n_tokens);
xlm_status xlm_device_abort_step(void);
xlm_status xlm_device_set_pace(double duty, uint64_t max_rest_ns);
xlm_status xlm_device_begin_vision(void);
xlm_status xlm_device_end_vision(void);
xlm_status xlm_device_trim(void);
xlm_status xlm_device_recover(void);
xlm_status xlm_device_experts(uint32_t index, xlm_expert_info *info, float *share, uint32_t n_share);
xlm_status xlm_device_memory(xlm_memory *memory);
xlm_status xlm_device_stats(xlm_stats *stats);
xlm_status xlm_device_reset_stats(void);
xlm_status xlm_device_trace(uint32_t capacity);
xlm_status xlm_device_trace_read(xlm_trace_event *events, uint32_t n_events, uint32_t *n_read,
uint64_t *n_lost);
"""

XLM_SIM: Final = """
enum xlm_sim_mode { XLM_SIM_EXACT = 0, XLM_SIM_MODELLED = 1 };
enum xlm_sim_arbitration { XLM_SIM_FIFO = 0, XLM_SIM_CHUNKED = 1, XLM_SIM_SMALL_FIRST = 2 };
typedef struct xlm_sim_config {
uint32_t struct_size;
uint32_t mode;
uint64_t vram_bytes;
double link_bytes_per_s;
double link_latency_ns;
uint32_t arbitration;
uint32_t reserved0;
double compute_flops_per_s;
double memory_bytes_per_s;
double op_launch_ns;
double graph_launch_ns;
double cpu_slowdown_per_gb_s;
uint32_t n_threads;
uint32_t reserved1;
} xlm_sim_config;
typedef struct xlm_sim_counters {
uint32_t struct_size;
uint32_t lost;
uint64_t used_bytes, peak_bytes, vram_bytes;
uint64_t n_alloc, n_alloc_failed;
uint64_t n_graphs, n_ops, compute_ns;
uint64_t n_h2d, h2d_bytes, h2d_ns;
uint64_t n_d2h, d2h_bytes, d2h_ns;
uint64_t n_host_syncs, host_sync_wait_ns;
uint64_t n_graphs_failed;
uint64_t n_dropped;
uint64_t n_frees_in_use;
uint64_t foreign_bytes;
uint64_t n_losses;
} xlm_sim_counters;
void xlm_sim_default_config(xlm_sim_config *config);
xlm_status xlm_sim_configure(const xlm_sim_config *config);
xlm_status xlm_sim_get_counters(xlm_sim_counters *counters);
xlm_status xlm_sim_reset_counters(void);
xlm_status xlm_sim_fail_allocations(uint32_t skip, uint32_t n);
xlm_status xlm_sim_lose_device(uint32_t after_submissions);
xlm_status xlm_sim_restore_device(void);
double xlm_sim_upload_bytes_per_s(void);
xlm_status xlm_sim_last_operation(uint64_t *begin_ns, uint64_t *end_ns);
xlm_status xlm_sim_set_foreign_bytes(uint64_t bytes);
void *xlm_sim_registry(void);
const char *xlm_sim_last_error(void);
"""
