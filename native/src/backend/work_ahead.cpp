#include "work_ahead.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace xlm {

namespace {

constexpr uint64_t kPieceBytes = 4 << 20;
constexpr uint64_t kPackedBytes = 4 << 20; // the most that is kept twice on the host, of a model
constexpr uint64_t kBegunAlignment = 4096;
// Events come from a pool that is reused in turn; the ring has its share of it too.
constexpr size_t kMaxItems = 64;
// A wait that took this long found the work unfinished, so it ended when the work did.
constexpr uint64_t kBlockedNs = 50'000;

} // namespace

bool WorkAhead::make_room(uint64_t ns, uint32_t n_units, uint32_t max_units) {
    const auto full = [&] {
        return queued_ns_ + ns > kQueueNs || queued_units_ + n_units > max_units || items_.size() >= kMaxItems;
    };
    while (!items_.empty() && full())
        if (!wait_oldest()) return false;
    return true;
}

bool WorkAhead::submitted(Pace & pace, uint64_t cost, uint32_t n_units) {
    unmarked_bytes_ = 0; // too little to be told apart
    if (inner_.has_events()) return push(pace, cost, n_units);
    return inner_.synchronize(stream_);
}

bool WorkAhead::push(Pace & pace, uint64_t cost, uint32_t n_units) {
    items_.push_back({inner_.next_event(Events::work), &pace, cost, pace.predict_ns(cost), now_ns(), n_units});
    queued_ns_ += items_.back().ns;
    queued_units_ += n_units;
    return inner_.record(stream_, items_.back().event);
}

bool WorkAhead::mark_uploads() {
    const uint64_t bytes = std::exchange(unmarked_bytes_, 0);
    return !inner_.has_events() || push(upload_pace_, bytes, 0);
}

WorkAhead::Fed WorkAhead::upload(ggml_tensor & target, const void * data, size_t begin, size_t end, Gate * gate) {
    while (begin < end) {
        const size_t bytes = std::min<size_t>(end - begin, kPieceBytes);
        if (!make_room(upload_pace_.predict_ns(bytes), 0, UINT32_MAX)) return Fed::lost;
        if (gate && gate->requested()) return Fed::interrupted; // perhaps while it waited for room
        if (!inner_.set(stream_, &target, static_cast<const char *>(data) + begin, begin, bytes)) return Fed::lost;
        begin += bytes;
        unmarked_bytes_ += bytes;
        if (unmarked_bytes_ >= kPieceBytes / 4 && !mark_uploads()) return Fed::lost;
    }
    return Fed::done;
}

WorkAhead::Fed WorkAhead::upload(Cache & cache, SubLayer & sublayer, Gate * gate) {
    if (!cache.point_at_copy(sublayer)) return Fed::lost;
    const bool pack = sublayer.kind == XLM_KIND_SMALL && sublayer.device_bytes <= kPackedBytes;
    const Fed fed = pack ? upload_packed(sublayer, gate) : upload_weights(sublayer, gate);
    sublayer.uploaded = fed == Fed::done;
    return fed;
}

WorkAhead::Fed WorkAhead::upload_weights(SubLayer & sublayer, Gate * gate) {
    uint64_t begun_bytes = std::exchange(sublayer.begun_bytes, 0);
    for (auto & weight : sublayer.weights) {
        const size_t bytes = ggml_nbytes(weight->tensor);
        const Fed fed = upload(weight->shadow, weight->tensor->data, std::exchange(begun_bytes, 0), bytes, gate);
        if (fed != Fed::done) return fed;
        stats_.bytes_resident_uploaded += bytes;
    }
    return Fed::done;
}

// Whoever has the rest uploaded on another stream waits for these first (SubLayer::arrives).
WorkAhead::Fed WorkAhead::begin_upload(Cache & cache, SubLayer & sublayer, uint64_t ns) {
    if (!cache.point_at_copy(sublayer)) return Fed::lost;
    Weight & first = *sublayer.weights.front();
    const uint64_t within = upload_pace_.cost_within(ns) / kBegunAlignment * kBegunAlignment;
    const uint64_t bytes = std::min<uint64_t>(ggml_nbytes(first.tensor), within);
    const Fed fed = upload(first.shadow, first.tensor->data, 0, bytes, nullptr);
    sublayer.begun_bytes = fed == Fed::done ? bytes : 0;
    return fed;
}

// Many tensors of a few bytes each: a copy of its own would cost each of them far more than its bytes.
WorkAhead::Fed WorkAhead::upload_packed(SubLayer & sublayer, Gate * gate) {
    if (sublayer.packed.size() != sublayer.device_bytes) {
        sublayer.packed.assign(sublayer.device_bytes, 0);
        for (const auto & weight : sublayer.weights)
            std::memcpy(sublayer.packed.data() + weight->offset, weight->tensor->data, ggml_nbytes(weight->tensor));
    }
    ggml_tensor whole{};
    as_bytes(whole, sublayer.device_bytes);
    whole.buffer = sublayer.copy.get();
    whole.data = sublayer.copy.base();
    const Fed fed = upload(whole, sublayer.packed.data(), 0, sublayer.packed.size(), gate);
    for (const auto & weight : sublayer.weights)
        if (fed == Fed::done) stats_.bytes_resident_uploaded += ggml_nbytes(weight->tensor);
    return fed;
}

bool WorkAhead::wait_oldest() {
    const uint64_t begin_ns = now_ns();
    const Item item = items_.front();
    if (!inner_.wait_host(item.event)) return false;
    items_.pop_front();
    queued_ns_ -= item.ns;
    queued_units_ -= item.n_units;
    note_done(item, begin_ns, now_ns());
    return true;
}

// How long an item took is known when its end and its beginning are: it began when the one before it
// ended, or when it was submitted, if the device was idle by then.
void WorkAhead::note_done(const Item & item, uint64_t begin_ns, uint64_t end_ns) {
    const bool exact = end_ns - begin_ns >= kBlockedNs, was_idle = item.submitted_ns >= last_done_ns_;
    stats_.ns_wait_device += end_ns - begin_ns;
    if (exact && (last_done_exact_ || was_idle)) {
        const uint64_t took_ns = end_ns - std::max(item.submitted_ns, last_done_ns_);
        item.pace->learn(item.cost, took_ns);
        if (item.n_units > 0) stats_.sublayer_ns_max.raise_to(took_ns / item.n_units);
    }
    last_done_ns_ = end_ns;
    last_done_exact_ = exact;
}

// What is of one kind becomes one item: waiting for each would wake this thread as often.
void WorkAhead::join_items() {
    for (auto item = items_.begin(); item != items_.end();) {
        const auto next = std::next(item);
        if (next == items_.end()) return;
        if (next->pace == item->pace) {
            next->cost += item->cost;
            next->ns += item->ns;
            next->n_units += item->n_units;
            next->submitted_ns = item->submitted_ns;
            items_.erase(item);
        }
        item = next;
    }
}

bool WorkAhead::finish() {
    join_items();
    while (!items_.empty())
        if (!wait_oldest()) return false;
    const Timed timed(stats_.ns_wait_device);
    return inner_.synchronize(stream_);
}

void WorkAhead::forget() {
    items_.clear();
    queued_ns_ = queued_units_ = unmarked_bytes_ = 0;
}

} // namespace xlm
