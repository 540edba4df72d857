// Experts in device memory: a compact cache of K slots a layer, and the window that experts without a slot
// stream through. Both are copies; dropping them costs time only.
#pragma once

#include "experts.hpp"
#include "inner.hpp"

#include <array>
#include <memory>
#include <vector>

namespace xlm {

struct SubLayer;
struct Weight;

// What the control API tells of an experts sub-layer.
struct ExpertReport {
    xlm_expert_mode mode = XLM_EXPERTS_UNKNOWN;
    uint32_t n_used = 0, n_slots_wanted = 0, n_slots = 0, n_filled = 0;
    uint64_t slot_bytes = 0;
    uint64_t n_steps = 0, n_tokens = 0, n_hits = 0, n_misses = 0, n_cpu = 0, n_passes = 0;
    uint64_t bytes_uploaded = 0, bytes_saved = 0;
};

// The experts of a sub-layer whose tensors all have them along ne[2].
class ExpertState {
public:
    explicit ExpertState(uint32_t n) : n_experts(n) {
        scores.reset(n);
        map.reset(n, 0);
    }

    const uint32_t n_experts;
    xlm_expert_policy policy{}; // of the schedule; set while no graph runs

    // Owned by the holder of the device gate.
    DeviceBuffer slots;
    SlotMap map;
    std::vector<ggml_tensor> compact; // by weight of the sub-layer: [ne0, ne1, n_slots], in `slots`

    std::mutex mutex; // of what follows: the control API reads it from any thread
    ExpertScores scores;
    ExpertReport report;

    void forget_slots();  // gives the memory back; nothing reads it or writes to it
    void publish_slots(); // takes the mutex
    void set_mode(xlm_expert_mode mode);
};

// nullptr unless all weights are matrices of the same number (> 1) of experts.
std::unique_ptr<ExpertState> make_expert_state(const SubLayer & sublayer);

uint64_t expert_bytes(const SubLayer & sublayer);         // one expert, all its matrices
uint64_t largest_expert_bytes(const SubLayer & sublayer); // its largest matrix
// Device bytes of n slots.
uint64_t slots_bytes(const Inner & inner, const SubLayer & sublayer, uint32_t n_slots);

// `weight` with n experts only. Data and buffer are the caller's business.
ggml_tensor compact_tensor(const ggml_tensor & weight, uint32_t n_experts);

// Lays out the freshly allocated slots: all of them empty, and zero. False: the device is lost.
bool set_up_slots(Inner & inner, SubLayer & sublayer, uint32_t n_slots);

// Copies one expert into its slot. The slot is empty while the copy is being queued: a failure half-way
// leaves no slot that claims what it does not hold.
bool load_slot(Inner & inner, Stream stream, const SubLayer & sublayer, const SlotLoad & load);

// Device memory in equal parts; one part takes a group of experts of one matrix, and is free again when the
// work that reads it is done. Persistent: some drivers fail when such memory comes and goes by the pass.
class ExpertWindow {
public:
    static constexpr size_t kParts = 4;

    explicit ExpertWindow(Inner & inner) : inner_(inner) {}

    // `bytes` in parts that hold `largest` each. False: the budget, the device or `bytes` is too small.
    bool ensure(uint64_t bytes, uint64_t largest);
    // Parts that `bytes` make, at most kParts; it takes two.
    size_t parts_of(uint64_t bytes, uint64_t largest) const;
    bool present() const { return static_cast<bool>(buffer_); }
    uint64_t bytes() const { return buffer_.bytes(); }
    size_t experts_per_part(uint64_t largest_expert_bytes) const; // 0 without a window
    void drop();                                                  // waits for uploads under way

    // Another upload may have to wait for the reader of its part.
    bool full() const { return reads_[next_] != nullptr; }
    // Nothing reads the window any more: the compute stream is idle.
    void all_read() { reads_.fill(nullptr); }
    // Queues the upload of a group of experts (ascending) of one matrix into the next part, and makes compute
    // wait for it. Until the part's last reader is done, either the host waits, so that never more than kParts groups
    // are under way, or the device does. `tensor` becomes the matrix with just these experts.
    bool upload(const Weight & weight, const std::vector<uint32_t> & experts, ggml_tensor & tensor, bool host_waits);
    // The work on the part last uploaded is submitted.
    bool submitted();

private:
    bool fill(const Weight & weight, const std::vector<uint32_t> & experts, ggml_tensor & tensor);

    Inner & inner_;
    DeviceBuffer buffer_;
    uint64_t part_bytes_ = 0;
    size_t n_parts_ = 0, next_ = 0;
    std::array<ggml_backend_event_t, kParts> reads_{};
};

} // namespace xlm
