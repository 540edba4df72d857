#include "experts_cache.hpp"

#include "registry.hpp"

#include <algorithm>

namespace xlm {

namespace {

// Kernels may read that far past an expert (ggml-cuda's row padding): what lies there must be finite.
constexpr uint64_t kOverreadBytes = 512;

uint64_t round_up(uint64_t bytes, uint64_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

} // namespace

void ExpertState::forget_slots() {
    slots.reset();
    map.reset(n_experts, 0);
    publish_slots();
}

void ExpertState::publish_slots() {
    const std::lock_guard<std::mutex> lock(mutex);
    report.n_slots = map.n_slots();
    report.n_filled = map.n_filled();
    report.slot_bytes = slots.bytes();
}

void ExpertState::set_mode(xlm_expert_mode mode) {
    const std::lock_guard<std::mutex> lock(mutex);
    report.mode = mode;
}

std::unique_ptr<ExpertState> make_expert_state(const SubLayer & sublayer) {
    if (sublayer.kind != XLM_KIND_EXPERTS || sublayer.weights.empty()) return nullptr;
    const int64_t n = sublayer.weights.front()->tensor->ne[2];
    for (const auto & weight : sublayer.weights)
        if (weight->tensor->ne[2] != n || weight->tensor->ne[3] != 1) return nullptr;
    return n > 1 ? std::make_unique<ExpertState>(static_cast<uint32_t>(n)) : nullptr;
}

uint64_t expert_bytes(const SubLayer & sublayer) {
    uint64_t bytes = 0;
    for (const auto & weight : sublayer.weights)
        bytes += weight->tensor->nb[2];
    return bytes;
}

uint64_t largest_expert_bytes(const SubLayer & sublayer) {
    uint64_t bytes = 0;
    for (const auto & weight : sublayer.weights)
        bytes = std::max<uint64_t>(bytes, weight->tensor->nb[2]);
    return bytes;
}

ggml_tensor compact_tensor(const ggml_tensor & weight, uint32_t n_experts) {
    ggml_tensor tensor = weight;
    tensor.ne[2] = n_experts;
    tensor.nb[3] = tensor.nb[2] * n_experts;
    tensor.extra = nullptr;
    return tensor;
}

uint64_t slots_bytes(const Inner & inner, const SubLayer & sublayer, uint32_t n_slots) {
    uint64_t bytes = 0;
    for (const auto & weight : sublayer.weights) {
        const ggml_tensor tensor = compact_tensor(*weight->tensor, n_slots);
        bytes += round_up(inner.alloc_bytes(&tensor) + kOverreadBytes, inner.alignment());
    }
    return bytes;
}

bool set_up_slots(Inner & inner, SubLayer & sublayer, uint32_t n_slots) {
    ExpertState & state = *sublayer.experts;
    state.map.reset(state.n_experts, n_slots);
    state.compact.clear();
    uint64_t offset = 0;
    for (const auto & weight : sublayer.weights) {
        ggml_tensor tensor = compact_tensor(*weight->tensor, n_slots);
        tensor.buffer = state.slots.get();
        tensor.data = state.slots.base() + offset;
        offset += round_up(inner.alloc_bytes(&tensor) + kOverreadBytes, inner.alignment());
        state.compact.push_back(tensor);
    }
    state.publish_slots();
    return inner.clear(state.slots);
}

bool load_slot(Inner & inner, Stream stream, const SubLayer & sublayer, const SlotLoad & load) {
    ExpertState & state = *sublayer.experts;
    state.map.clear(load.slot);
    for (size_t w = 0; w < sublayer.weights.size(); w++) {
        const ggml_tensor & weight = *sublayer.weights[w]->tensor;
        const size_t bytes = weight.nb[2];
        const char * data = static_cast<const char *>(weight.data) + load.expert * bytes;
        if (!inner.set(stream, &state.compact[w], data, load.slot * bytes, bytes)) return false;
    }
    state.map.assign(load.slot, load.expert);
    return true;
}

size_t ExpertWindow::parts_of(uint64_t bytes, uint64_t largest) const {
    return std::min<uint64_t>(kParts, bytes / round_up(largest + kOverreadBytes, inner_.alignment()));
}

bool ExpertWindow::ensure(uint64_t bytes, uint64_t largest) {
    if (experts_per_part(largest) > 0) return true;
    const size_t n_parts = parts_of(bytes, largest);
    if (n_parts < 2) return false;
    drop();
    const uint64_t part_bytes = bytes / n_parts / inner_.alignment() * inner_.alignment();
    buffer_ = inner_.allocate(Purpose::expert_window, n_parts * part_bytes);
    if (!buffer_ || !inner_.clear(buffer_)) return false;
    part_bytes_ = part_bytes;
    n_parts_ = n_parts;
    next_ = 0;
    all_read();
    return true;
}

void ExpertWindow::drop() {
    if (buffer_) inner_.synchronize(Stream::upload);
    buffer_.reset();
    part_bytes_ = 0;
    all_read();
}

size_t ExpertWindow::experts_per_part(uint64_t largest_expert_bytes) const {
    return part_bytes_ > kOverreadBytes ? (part_bytes_ - kOverreadBytes) / largest_expert_bytes : 0;
}

bool ExpertWindow::fill(const Weight & weight, const std::vector<uint32_t> & experts, ggml_tensor & tensor) {
    const size_t bytes = weight.tensor->nb[2];
    const char * data = static_cast<const char *>(weight.tensor->data);
    for (size_t begin = 0; begin < experts.size();) {
        size_t end = begin + 1;
        while (end < experts.size() && experts[end] == experts[end - 1] + 1)
            end++;
        if (!inner_.set(Stream::upload, &tensor, data + experts[begin] * bytes, begin * bytes, (end - begin) * bytes))
            return false;
        begin = end;
    }
    if (!inner_.needs_padding(&tensor)) return true;
    // Behind the last expert lies what the part held before, maybe of another type: finite bytes of this one.
    ggml_tensor longer = compact_tensor(tensor, static_cast<uint32_t>(experts.size()) + 1);
    return inner_.set(Stream::upload, &longer, data, experts.size() * bytes, std::min<size_t>(bytes, kOverreadBytes));
}

bool ExpertWindow::upload(const Weight & weight, const std::vector<uint32_t> & experts, ggml_tensor & tensor,
                          bool host_waits) {
    ggml_backend_event_t & read = reads_[next_];
    if (read && !(host_waits ? inner_.wait_host(read) : inner_.wait(Stream::upload, read))) return false;
    read = nullptr;
    tensor = compact_tensor(*weight.tensor, static_cast<uint32_t>(experts.size()));
    tensor.buffer = buffer_.get();
    tensor.data = buffer_.base() + next_ * part_bytes_;
    if (!fill(weight, experts, tensor)) return false;
    if (!inner_.has_events()) return inner_.synchronize(Stream::upload);
    ggml_backend_event_t uploaded = inner_.next_event(Events::experts);
    return inner_.record(Stream::upload, uploaded) && inner_.wait(Stream::compute, uploaded);
}

bool ExpertWindow::submitted() {
    if (!inner_.has_events()) return inner_.synchronize(Stream::compute);
    reads_[next_] = inner_.next_event(Events::experts);
    const bool ok = inner_.record(Stream::compute, reads_[next_]);
    next_ = (next_ + 1) % n_parts_;
    return ok;
}

} // namespace xlm
