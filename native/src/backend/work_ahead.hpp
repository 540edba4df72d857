// Work that one stream was given and that is not known to be done. What is queued
// delays a reclaim, so the queue is bounded by the time it will take: a fast
// device gets a deep queue, a slow one a short one.
//
// Owned by the holder of the device gate.
#pragma once

#include "cache.hpp"
#include "gate.hpp"
#include "pace.hpp"

#include <list>

namespace xlm {

// A quarter of a frame at 60 Hz: a reclaim waits for at most that much, or for one sub-layer that takes longer.
constexpr uint64_t kQueueNs = 4'000'000;

class WorkAhead {
public:
    enum class Fed { done, interrupted, lost };

    WorkAhead(Inner & inner, Stats & stats, Stream stream, Pace & upload_pace)
        : inner_(inner), stats_(stats), stream_(stream), upload_pace_(upload_pace) {}

    // Waits for the oldest work until `ns` more, of `n_units` sub-layers, keep the bounds. False: device lost.
    bool make_room(uint64_t ns, uint32_t n_units, uint32_t max_units);
    // Work was submitted; `pace` learns from how long it takes. Without events it is waited for.
    bool submitted(Pace & pace, uint64_t cost, uint32_t n_units);
    // Copies to the device in pieces, and stops between two of them when a reclaim is asked for (no gate: never).
    Fed upload(ggml_tensor & target, const void * data, size_t begin, size_t end, Gate * gate);
    // The same for a whole sub-layer whose memory is there. It counts as uploaded once all is queued.
    Fed upload(Cache & cache, SubLayer & sublayer, Gate * gate);
    // The first bytes of it, as many as go up in `ns`.
    Fed begin_upload(Cache & cache, SubLayer & sublayer, uint64_t ns);
    // The event behind the newest work; nullptr when nothing is queued.
    ggml_backend_event_t newest() const { return items_.empty() ? nullptr : items_.back().event; }
    // Waits for all of it.
    bool finish();
    // The stream is idle, or lost.
    void forget();

private:
    struct Item {
        ggml_backend_event_t event;
        Pace * pace;
        uint64_t cost, ns, submitted_ns;
        uint32_t n_units;
    };

    Fed upload_weights(SubLayer & sublayer, Gate * gate);
    Fed upload_packed(SubLayer & sublayer, Gate * gate);
    bool mark_uploads();
    bool push(Pace & pace, uint64_t cost, uint32_t n_units);
    bool wait_oldest();
    void join_items();
    void note_done(const Item & item, uint64_t begin_ns, uint64_t end_ns);

    Inner & inner_;
    Stats & stats_;
    const Stream stream_;
    Pace & upload_pace_;
    std::list<Item> items_;
    uint64_t queued_ns_ = 0, queued_units_ = 0;
    uint64_t unmarked_bytes_ = 0;  // uploads since the last event
    uint64_t last_done_ns_ = 0;    // when the work before items_.front() was seen to be done ...
    bool last_done_exact_ = false; // ... and whether that is when it was
};

} // namespace xlm
