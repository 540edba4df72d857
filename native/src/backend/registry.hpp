// What is known of models: their weights, grouped into sub-layers, and the
// state tensors (KV, recurrent) of their contexts.
#pragma once

#include "classify.hpp"
#include "experts_cache.hpp"
#include "inner.hpp"
#include "range_set.hpp"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace xlm {

struct SubLayer;
struct HostBuffer;

// A weight tensor. `shadow` is the tensor device work sees: the same shape, with
// data and buffer of the resident copy or of the ring piece.
struct Weight {
    const ggml_tensor * tensor = nullptr;
    HostBuffer * home = nullptr;
    SubLayer * sublayer = nullptr;
    ggml_tensor shadow{};
    uint64_t device_bytes = 0; // aligned; also the size of its ring piece
    uint64_t offset = 0;       // inside the sub-layer's resident copy
};

// A tensor that outlives graphs and changes: KV or recurrent state. Host memory
// is canonical between graphs; `dirty` are host bytes the device copy lacks,
// `unflushed` device bytes the host lacks (only inside a graph).
struct State {
    const ggml_tensor * tensor = nullptr;
    HostBuffer * home = nullptr;
    SubLayer * sublayer = nullptr; // the mixer it belongs to; nullptr if its name tells none
    ggml_tensor shadow{};
    uint64_t device_bytes = 0;
    DeviceBuffer copy;
    RangeSet unflushed;
    RangeSet touched;       // what the running graph reads and writes of it; belongs to the executor
    std::mutex dirty_mutex; // host writes come from any thread
    RangeSet dirty;

    void mark_dirty(ByteRange range) {
        const std::lock_guard<std::mutex> lock(dirty_mutex);
        dirty.add(range);
    }
};

struct SubLayer {
    uint32_t index = 0;
    uint32_t model_id = 0;
    std::string tower;
    int32_t layer = -1;
    xlm_sublayer_kind kind = XLM_KIND_OUTPUT;
    bool closed = false; // its layout is known to others: later tensors get a sub-layer of their own
    bool vision = false; // of a model with a projector: used in the vision phase only
    bool tied = false;   // a token embedding that may double as output matrix ...
    std::atomic<bool> seen_multiplied{true}; // ... and whether a graph showed that it does
    std::vector<std::unique_ptr<Weight>> weights;
    std::vector<State *> states;
    uint64_t device_bytes = 0, host_bytes = 0, largest_piece_bytes = 0;
    SubLayer * small_group = nullptr; // of the same model; nullptr if it has none

    // Schedule, set while no graph runs.
    std::vector<uint8_t> placement; // by tier: those of steps, then those of the vision phase
    uint32_t rank = UINT32_MAX;     // eviction priority: the highest rank goes first

    // Residency, owned by the holder of the device gate.
    DeviceBuffer copy;
    bool uploaded = false;
    uint64_t begun_bytes = 0;               // of its first weight: queued on the upload stream before the rest is
    ggml_backend_event_t arrives = nullptr; // all of it, or what is begun, on the upload stream; nullptr: it is there
    std::vector<char> packed; // of a small group: its copy as it is uploaded, in one piece; empty until then
    std::unique_ptr<ExpertState> experts; // nullptr: no experts, or of a form that is only handled as a whole

    bool wanted(xlm_placement what) const {
        for (uint8_t value : placement)
            if (value == what) return true;
        return false;
    }
    bool streamed() const { return wanted(XLM_PLACE_STREAM) || wanted(XLM_PLACE_STREAM_KV); }
    // Some tier computes it on the device with its caches there for good.
    bool keeps_states() const { return wanted(XLM_PLACE_STREAM) || wanted(XLM_PLACE_RESIDENT); }
    bool placed_by(uint32_t tier, xlm_placement what) const {
        return tier < placement.size() && placement[tier] == what;
    }
};

// A buffer handed to llama.cpp. Memory is pinned where the inner device offers that.
struct HostBuffer {
    char * base = nullptr;
    uint64_t bytes = 0;
    ggml_backend_buffer_t pinned = nullptr; // owner of the memory, or nullptr: ggml_aligned_malloc
    ggml_backend_buffer_t handle = nullptr; // what llama.cpp holds
    bool weights_type = false;              // made by XLM_HOST
    uint32_t model_id = 0;
    std::vector<const ggml_tensor *> tensors; // set up in it, views left out
};

struct Model {
    uint32_t id = 0;
    std::string name;
    std::vector<std::unique_ptr<SubLayer>> sublayers;
    uint32_t n_buffers = 0;
};

// Thread-safe unless said otherwise. Pointers stay valid until generation() changes.
class Registry {
public:
    explicit Registry(const Inner & inner) : inner_(inner) {}

    uint32_t begin_model(const char * name);
    void end_scope(uint32_t model_id); // of a model or a context: sets up what was made meanwhile
    void begin_context(uint32_t model_id);

    void add_buffer(HostBuffer * buffer);
    // The caller holds the executor: no graph runs and nothing is in flight.
    void remove_buffer(HostBuffer * buffer);
    void add_tensor(HostBuffer * buffer, const ggml_tensor * tensor);

    // Root tensors only. nullptr: not a weight (state) of ours.
    Weight * find_weight(const ggml_tensor * root);
    State * find_state(const ggml_tensor * root); // sets it up at first sight
    State * known_state(const ggml_tensor * root);
    // A host write through the buffer's vtable.
    void host_wrote(HostBuffer * buffer, const ggml_tensor * tensor, size_t offset, size_t bytes);
    void host_cleared(HostBuffer * buffer);
    // True once after weights changed behind their copies.
    bool take_weights_changed() { return weights_changed_.exchange(false); }

    uint32_t count();
    bool describe(uint32_t index, xlm_sublayer_info & info);
    // `share` may be nullptr. False: no such sub-layer.
    bool describe_experts(uint32_t index, xlm_expert_info & info, float * share, uint32_t n_share);
    void reset_expert_counters();
    uint64_t generation() const { return generation_.load(); }

    // By index. The caller holds the executor, or only reads what never changes.
    std::vector<SubLayer *> sublayers();
    std::vector<State *> states();

private:
    Model & model_of(uint32_t id);
    void resolve_locked();
    void resolve_buffer(HostBuffer & buffer);
    void add_weight(Model & model, HostBuffer & buffer, const ggml_tensor * tensor);
    SubLayer & sublayer_for(Model & model, const TensorClass & cls);
    void order_new(size_t first);
    State * make_state(HostBuffer & buffer, const ggml_tensor * tensor);
    SubLayer * mixer_of(uint32_t model_id, int32_t layer);
    void forget(const ggml_tensor * tensor);
    void drop_model_if_empty(uint32_t model_id);
    void reindex();

    const Inner & inner_;
    std::mutex mutex_;
    std::vector<HostBuffer *> buffers_;
    std::unordered_map<uint32_t, std::unique_ptr<Model>> models_;
    std::vector<SubLayer *> order_;
    std::unordered_map<const ggml_tensor *, Weight *> weights_;
    std::unordered_map<const ggml_tensor *, std::unique_ptr<State>> states_;
    std::unordered_map<const ggml_tensor *, HostBuffer *> unresolved_;
    uint32_t next_model_ = 1;
    std::atomic<uint64_t> generation_{1};
    std::atomic<bool> weights_changed_{false};
};

} // namespace xlm
