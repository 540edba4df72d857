// First-in-first-out allocation of spans inside one buffer. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

namespace xlm {

struct RingSpan {
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

inline bool overlaps(const RingSpan & a, const RingSpan & b) {
    return a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

// Spans never wrap: what does not fit before the end starts at zero again.
// Freed in the order they were taken. Not thread-safe.
class RingAllocator {
public:
    explicit RingAllocator(uint64_t capacity_bytes = 0) : capacity_(capacity_bytes) {}

    std::optional<RingSpan> allocate(uint64_t bytes) {
        const uint64_t offset = place(bytes);
        if (offset == kNowhere) return std::nullopt;
        live_.push_back({offset, bytes});
        head_ = offset + bytes;
        return live_.back();
    }

    void pop_front() {
        live_.pop_front();
        if (live_.empty()) head_ = 0;
    }

    bool empty() const { return live_.empty(); }
    uint64_t capacity_bytes() const { return capacity_; }

private:
    static constexpr uint64_t kNowhere = UINT64_MAX;

    uint64_t place(uint64_t bytes) const {
        if (bytes == 0 || bytes > capacity_) return kNowhere;
        if (live_.empty()) return 0;
        const uint64_t tail = live_.front().offset;
        if (head_ > tail) { // live spans lie in [tail, head)
            if (bytes <= capacity_ - head_) return head_;
            return bytes <= tail ? 0 : kNowhere;
        }
        return head_ + bytes <= tail ? head_ : kNowhere; // wrapped
    }

    uint64_t capacity_;
    uint64_t head_ = 0;
    std::deque<RingSpan> live_;
};

} // namespace xlm
