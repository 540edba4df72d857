// A set of byte ranges, merged where they touch. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace xlm {

struct ByteRange {
    size_t begin = 0;
    size_t end = 0; // one past the last byte
    size_t size() const { return end - begin; }
    bool operator==(const ByteRange & other) const { return begin == other.begin && end == other.end; }
};

// Holds at most kMaxRanges; beyond that the two nearest are joined, so that it
// may cover more than was added, never less. Not thread-safe.
class RangeSet {
public:
    static constexpr size_t kMaxRanges = 64;

    void add(ByteRange range) {
        if (range.begin >= range.end) return;
        auto first = std::lower_bound(ranges_.begin(), ranges_.end(), range.begin,
                                      [](const ByteRange & r, size_t begin) { return r.end < begin; });
        auto last = first;
        while (last != ranges_.end() && last->begin <= range.end) {
            range.begin = std::min(range.begin, last->begin);
            range.end = std::max(range.end, last->end);
            ++last;
        }
        first = ranges_.erase(first, last);
        ranges_.insert(first, range);
        if (ranges_.size() > kMaxRanges) join_nearest();
    }

    void add(const RangeSet & other) {
        for (const ByteRange & range : other.ranges_)
            add(range);
    }

    // Removes what lies in `wanted` and returns it. Where that would leave too many ranges, a range is taken
    // whole: nothing that was taken may stay in the set.
    RangeSet take(const RangeSet & wanted) {
        RangeSet taken;
        for (const ByteRange & want : wanted.ranges_)
            take(want, taken);
        return taken;
    }

    size_t bytes() const {
        size_t sum = 0;
        for (const ByteRange & range : ranges_)
            sum += range.size();
        return sum;
    }

    // Of the bytes there are, in order: `count` behind the first `skip`.
    std::vector<ByteRange> part(size_t skip, size_t count) const {
        std::vector<ByteRange> parts;
        for (const ByteRange & range : ranges_) {
            const size_t before = std::min(skip, range.size()), n = std::min(count, range.size() - before);
            if (n > 0) parts.push_back({range.begin + before, range.begin + before + n});
            skip -= before;
            count -= n;
        }
        return parts;
    }

    void clear() { ranges_.clear(); }
    bool empty() const { return ranges_.empty(); }
    const std::vector<ByteRange> & ranges() const { return ranges_; }

private:
    void take(const ByteRange & want, RangeSet & taken) {
        for (size_t i = 0; i < ranges_.size();) {
            const ByteRange have = ranges_[i];
            const bool before = have.begin < want.begin, behind = want.end < have.end;
            const bool apart = have.end <= want.begin || want.end <= have.begin;
            if (apart) {
                i++;
                continue;
            }
            ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(i));
            if (before && behind && ranges_.size() + 2 > kMaxRanges) {
                taken.add(have);
                continue;
            }
            taken.add({std::max(have.begin, want.begin), std::min(have.end, want.end)});
            if (before) ranges_.insert(ranges_.begin() + static_cast<std::ptrdiff_t>(i++), {have.begin, want.begin});
            if (behind) ranges_.insert(ranges_.begin() + static_cast<std::ptrdiff_t>(i++), {want.end, have.end});
        }
    }

    void join_nearest() {
        size_t best = 0;
        for (size_t i = 1; i + 1 < ranges_.size(); i++)
            if (gap(i) < gap(best)) best = i;
        ranges_[best].end = ranges_[best + 1].end;
        ranges_.erase(ranges_.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    size_t gap(size_t i) const { return ranges_[i + 1].begin - ranges_[i].end; }

    std::vector<ByteRange> ranges_; // sorted, disjoint, not touching
};

} // namespace xlm
