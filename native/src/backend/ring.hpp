// Streams weights through one device buffer: pieces are uploaded in the order
// the graph uses them, as far ahead as there is room, and their place is free
// again as soon as the work that reads them is submitted (the next upload into
// it waits for that work on the device, not on the host).
//
// Owned by the holder of the device gate.
#pragma once

#include "ahead.hpp"
#include "inner.hpp"
#include "registry.hpp"
#include "ring_alloc.hpp"
#include "stats.hpp"

#include <deque>
#include <vector>

namespace xlm {

// What goes through the ring at once: a weight, or some of its rows; or caches that a step reads, side by side.
struct Streamed {
    Weight * weight = nullptr;
    int64_t first_row = 0;
    int64_t n_rows = 0;            // 0: all of it
    uint64_t bytes = 0;            // on the device
    std::vector<State *> states{}; // instead of a weight

    bool operator==(const Streamed & other) const {
        return weight == other.weight && first_row == other.first_row && n_rows == other.n_rows &&
               states == other.states;
    }
};

class Ring {
public:
    Ring(Inner & inner, Stats & stats) : inner_(inner), stats_(stats) {}

    // A ring of `bytes`, or of what the budget leaves if that is a quarter of it and holds two pieces of `largest`.
    bool ensure(uint64_t bytes, uint64_t largest, const LedgerView & view);
    uint64_t capacity_bytes() const { return weights_.capacity_bytes() + caches_.capacity_bytes(); }
    bool present() const { return static_cast<bool>(buffer_); }
    void forget(); // its pieces; waits for uploads under way
    void drop();   // the memory too

    // A new graph: what is left of the caches of one that was stopped may have changed since.
    void begin_graph();
    // What the coming graph streams, in order. Pieces already there are kept as far as they match. Of what nothing
    // waits for yet, no more is on its way at a time than takes `max_ahead_ns` by `pace`: a reclaim waits for it.
    // `cache_bytes` of the ring are for caches alone (0: they share the ring with weights).
    bool begin(const std::vector<Streamed> & order, const Pace & pace, uint64_t max_ahead_ns, bool held,
               uint64_t cache_bytes);
    // Points the shadows of the next pieces at their places and makes compute wait for them.
    bool acquire(const Streamed * wanted, size_t n_wanted);
    // From here on, or not any more: only what is acquired is queued, and what grant() lets through. Something that
    // nobody may wait behind is about to use the link.
    void hold(bool held) { ahead_.hold(held); }
    // Behind what is on its way the link has nothing else to do for so long. `hidden`: a reclaim waits as long anyway.
    bool grant(uint64_t ns, bool hidden);
    // What was acquired so far is there, as the work that read it is done.
    void arrived() { ahead_.arrived(now_ns()); }
    uint64_t free_at_ns() const { return ahead_.free_at_ns(); } // when all that was queued is there, by the pace
    // The device's view of an acquired piece.
    const ggml_tensor & tensor(size_t i) const { return pieces_[i].tensor; }
    // Their work is submitted, and what of their caches goes home is queued. No shadow points at them any more.
    bool retire(size_t n_pieces);

private:
    struct Piece {
        Streamed what;
        RingSpan span;
        ggml_tensor tensor{};
        uint64_t bytes = 0, sent_bytes = 0; // to upload, and of them on their way or there
        ggml_backend_event_t uploaded = nullptr;

        bool whole() const { return sent_bytes == bytes; }
    };
    struct Retired {
        RingSpan span;
        ggml_backend_event_t read = nullptr;
        bool states = false;                    // rows of it go home:
        ggml_backend_event_t fetched = nullptr; // when they are
    };

    // Queues uploads as far as there is room and time, into the next step if need be; the first `n_needed` in any case.
    bool pump(size_t n_needed = 0);
    RingAllocator & allocator_of(const Streamed & what);
    std::optional<RingSpan> place(const Streamed & what);
    void share_out(uint64_t cache_bytes);
    bool open_next();
    bool open(const Streamed & what, const RingSpan & span);
    bool open_weight(Piece & piece, bool padded);
    bool open_states(Piece & piece);
    bool send(Piece & piece, uint64_t bytes);
    bool send_weight(Piece & piece, uint64_t bytes);
    bool send_states(Piece & piece, uint64_t bytes);
    ggml_tensor placed(const State & state, uint64_t offset) const;
    void point_at(const Piece & piece);
    void let_go_of(const Piece & piece);
    bool wait_for_readers(const RingSpan & span, bool on_host);
    bool wait_for(const Retired & last, bool on_host);

    Inner & inner_;
    Stats & stats_;
    DeviceBuffer buffer_;
    RingAllocator weights_, caches_; // the ring's end, and its beginning
    std::vector<Streamed> order_;
    Ahead ahead_;
    size_t next_ = 0; // into order_, the next piece to upload
    size_t left_ = 0; // pieces of this graph that are not begun yet
    std::deque<Piece> pieces_;
    std::deque<Retired> retired_;
};

} // namespace xlm
