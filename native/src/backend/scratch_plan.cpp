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

} // namespace

ScratchLayout plan_scratch(const std::vector<ScratchItem> & items, uint64_t alignment) {
    std::vector<size_t> order(items.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return items[a].first < items[b].first; });
    ScratchLayout layout;
    layout.offsets.assign(items.size(), 0);
    FreeList free_list;
    std::priority_queue<Death, std::vector<Death>, std::greater<>> deaths;
    const auto rounded = [&](size_t i) {
        return (std::max<uint64_t>(items[i].bytes, 1) + alignment - 1) / alignment * alignment;
    };
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

} // namespace xlm
