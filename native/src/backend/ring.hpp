// Streams weights through one device buffer: pieces are uploaded in the order
// the graph uses them, as far ahead as there is room, and their place is free
// again as soon as the work that reads them is submitted (the next upload into
// it waits for that work on the device, not on the host).
//
// Owned by the holder of the device gate.
#pragma once

#include "inner.hpp"
#include "registry.hpp"
#include "ring_alloc.hpp"
#include "stats.hpp"

#include <deque>
#include <vector>

namespace xlm {

class Ring {
public:
    Ring(Inner & inner, Stats & stats) : inner_(inner), stats_(stats) {}

    // A ring of `bytes`, or of what the budget leaves if that still holds two pieces of `largest`.
    bool ensure(uint64_t bytes, uint64_t largest, const LedgerView & view);
    uint64_t capacity_bytes() const { return allocator_.capacity_bytes(); }
    bool present() const { return static_cast<bool>(buffer_); }
    void forget(); // its pieces; waits for uploads under way
    void drop();   // the memory too

    // What the coming graph streams, in order. Pieces already there are kept as far as they match.
    bool begin(const std::vector<Weight *> & order);
    // Queues uploads as far as the ring has room, into the next step if need be.
    bool pump();
    // Points the shadows of the next pieces at their places and makes compute wait for them.
    bool acquire(const std::vector<Weight *> & pieces);
    // Their work is submitted.
    bool retire(size_t n_pieces);

private:
    struct Piece {
        Weight * weight = nullptr;
        RingSpan span;
        ggml_tensor tensor{};
        ggml_backend_event_t uploaded = nullptr;
    };
    struct Retired {
        RingSpan span;
        ggml_backend_event_t read = nullptr;
    };

    bool upload(Weight * weight, const RingSpan & span);
    bool wait_for_readers(const RingSpan & span, bool on_host);

    Inner & inner_;
    Stats & stats_;
    DeviceBuffer buffer_;
    RingAllocator allocator_;
    std::vector<Weight *> order_;
    size_t next_ = 0; // into order_, the next piece to upload
    std::deque<Piece> pieces_;
    std::deque<Retired> retired_;
};

} // namespace xlm
