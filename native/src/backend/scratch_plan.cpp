#include "scratch_plan.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>

namespace xlm {

namespace {

// Free spans by offset, neighbours joined.
class FreeList {
public:
    uint64_t take(uint64_t bytes) {
        for (auto it = spans_.begin(); it != spans_.end(); ++it) {
            if (it->second < bytes) continue;
            const uint64_t offset = it->first, rest = it->second - bytes;
            spans_.erase(it);
            if (rest > 0) spans_.emplace(offset + bytes, rest);
            return offset;
        }
        return grow(bytes);
    }

    void give(uint64_t offset, uint64_t bytes) {
        auto next = spans_.lower_bound(offset);
        if (next != spans_.end() && offset + bytes == next->first) {
            bytes += next->second;
            next = spans_.erase(next);
        }
        if (next != spans_.begin()) {
            auto previous = std::prev(next);
            if (previous->first + previous->second == offset) {
                previous->second += bytes;
                return;
            }
        }
        spans_.emplace(offset, bytes);
    }

    uint64_t end() const { return end_; }

private:
    // Extends the buffer; a free span at its end is part of the new place.
    uint64_t grow(uint64_t bytes) {
        uint64_t offset = end_;
        if (!spans_.empty()) {
            auto last = std::prev(spans_.end());
            if (last->first + last->second == end_) {
                offset = last->first;
                spans_.erase(last);
            }
        }
        end_ = offset + bytes;
        return offset;
    }

    std::map<uint64_t, uint64_t> spans_;
    uint64_t end_ = 0;
};

struct Death {
    int last;
    size_t item;
    bool operator>(const Death & other) const { return last > other.last; }
};

uint64_t rounded_bytes(const ScratchItem & item, uint64_t alignment) {
    return (std::max<uint64_t>(item.bytes, 1) + alignment - 1) / alignment * alignment;
}

struct Placed {
    uint64_t offset, end;
    int first, last;
};

// `placed` is in order of offsets.
uint64_t lowest_free(const std::vector<Placed> & placed, const ScratchItem & item, uint64_t bytes) {
    uint64_t offset = 0;
    for (const Placed & other : placed) {
        if (other.first > item.last || other.last < item.first || other.end <= offset) continue;
        if (other.offset >= offset + bytes) break;
        offset = other.end;
    }
    return offset;
}

// First fit.
ScratchLayout in_order_of_birth(const std::vector<ScratchItem> & items, uint64_t alignment) {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].first < items[b].first; });
    ScratchLayout layout;
    layout.offsets.assign(items.size(), 0);
    FreeList free_list;
    std::priority_queue<Death, std::vector<Death>, std::greater<>> deaths;
    const auto rounded = [&](size_t i) { return rounded_bytes(items[i], alignment); };
    for (size_t i : order) {
        if (items[i].first < 0) continue;
        while (!deaths.empty() && deaths.top().last < items[i].first) {
            free_list.give(layout.offsets[deaths.top().item], rounded(deaths.top().item));
            deaths.pop();
        }
        layout.offsets[i] = free_list.take(rounded(i));
        deaths.push({items[i].last, i});
    }
    layout.peak_bytes = free_list.end();
    return layout;
}

// Each at the lowest offset that is free all its life.
ScratchLayout largest_first(const std::vector<ScratchItem> & items, uint64_t alignment) {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].bytes > items[b].bytes; });
    ScratchLayout layout;
    layout.offsets.assign(items.size(), 0);
    std::vector<Placed> placed;
    for (size_t i : order) {
        if (items[i].first < 0) continue;
        const uint64_t bytes = rounded_bytes(items[i], alignment), offset = lowest_free(placed, items[i], bytes);
        const Placed place{offset, offset + bytes, items[i].first, items[i].last};
        placed.insert(std::upper_bound(placed.begin(), placed.end(), place,
                                       [](const Placed & a, const Placed & b) { return a.offset < b.offset; }),
                      place);
        layout.offsets[i] = offset;
        layout.peak_bytes = std::max(layout.peak_bytes, place.end);
    }
    return layout;
}

} // namespace

ScratchLayout plan_scratch(const std::vector<ScratchItem> & items, uint64_t alignment) {
    ScratchLayout by_birth = in_order_of_birth(items, alignment), by_size = largest_first(items, alignment);
    return by_size.peak_bytes < by_birth.peak_bytes ? by_size : by_birth;
}

} // namespace xlm
