// What the game's threads and the I/O thread share. Nothing here locks, and nothing allocates after construction.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <vector>

namespace xlm::client {

inline constexpr std::size_t cache_line_bytes = 64;

/// One producer, one consumer, slots written and read in place: their buffers keep what they have grown to.
template <typename T>
class SpscRing {
public:
    /// `capacity` is a power of two. Each slot is made as T(memory).
    SpscRing(std::size_t capacity, std::pmr::memory_resource * memory) : slots_(memory) {
        slots_.reserve(capacity);
        for (std::size_t i = 0; i < capacity; i++)
            slots_.emplace_back(memory);
    }

    // producer
    T * back() noexcept { // nullptr: full
        const std::size_t tail = tail_.load(std::memory_order_relaxed);
        return tail - head_.load(std::memory_order_acquire) == slots_.size() ? nullptr : &slot(tail);
    }
    void push() noexcept { tail_.store(tail_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
    std::size_t size() const noexcept {
        return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);
    }

    // consumer
    T * front() noexcept { // nullptr: empty
        const std::size_t head = head_.load(std::memory_order_relaxed);
        return head == tail_.load(std::memory_order_acquire) ? nullptr : &slot(head);
    }
    void pop() noexcept { head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

    std::size_t capacity() const noexcept { return slots_.size(); }

private:
    T & slot(std::size_t at) noexcept { return slots_[at & (slots_.size() - 1)]; }

    std::pmr::vector<T> slots_;
    alignas(cache_line_bytes) std::atomic<std::size_t> head_{0};
    alignas(cache_line_bytes) std::atomic<std::size_t> tail_{0};
};

/// A stack of free indices for any number of threads. Last in, first out: what was used last has warm buffers.
/// The upper half of `top_` counts the changes, so that a top that came back is told from one that stayed.
class FreeList {
public:
    FreeList(std::uint32_t count, std::pmr::memory_resource * memory) : next_(count, memory) {
        for (std::uint32_t i = count; i-- > 0;)
            release(i);
    }

    static constexpr std::uint32_t none = UINT32_MAX;

    std::uint32_t take() noexcept {
        std::uint64_t top = top_.load(std::memory_order_acquire);
        while (index(top) != none) {
            const std::uint32_t below = next_[index(top)].load(std::memory_order_relaxed);
            if (top_.compare_exchange_weak(top, successor(top, below), std::memory_order_acq_rel)) return index(top);
        }
        return none;
    }

    void release(std::uint32_t freed) noexcept {
        std::uint64_t top = top_.load(std::memory_order_acquire);
        do {
            next_[freed].store(index(top), std::memory_order_relaxed);
        } while (!top_.compare_exchange_weak(top, successor(top, freed), std::memory_order_acq_rel));
    }

private:
    static std::uint32_t index(std::uint64_t top) noexcept { return static_cast<std::uint32_t>(top); }
    static std::uint64_t successor(std::uint64_t top, std::uint32_t index) noexcept {
        return (((top >> 32) + 1) << 32) | index;
    }

    std::pmr::vector<std::atomic<std::uint32_t>> next_;
    std::atomic<std::uint64_t> top_{none};
};

/// A bounded queue of small values, many producers and one consumer. Each cell carries a turn: even rounds let a
/// producer in, odd ones the consumer (the idea is Dmitry Vyukov's bounded queue, 1024cores.net).
template <typename T>
class MpscQueue {
public:
    /// `capacity` is a power of two.
    MpscQueue(std::uint32_t capacity, std::pmr::memory_resource * memory) : cells_(capacity, memory) {
        for (std::uint32_t i = 0; i < capacity; i++)
            cells_[i].turn.store(i, std::memory_order_relaxed);
    }

    bool push(const T & value) noexcept { // false: full
        std::uint64_t at = tail_.load(std::memory_order_relaxed);
        for (;;) {
            Cell & cell = cells_[at & (cells_.size() - 1)];
            const auto ahead = static_cast<std::int64_t>(cell.turn.load(std::memory_order_acquire) - at);
            if (ahead < 0) return false;
            if (ahead > 0)
                at = tail_.load(std::memory_order_relaxed);
            else if (tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) {
                cell.value = value;
                cell.turn.store(at + 1, std::memory_order_release);
                return true;
            }
        }
    }

    bool empty() const noexcept { // for the consumer
        return cells_[head_ & (cells_.size() - 1)].turn.load(std::memory_order_acquire) != head_ + 1;
    }

    bool pop(T & value) noexcept { // false: empty
        Cell & cell = cells_[head_ & (cells_.size() - 1)];
        if (cell.turn.load(std::memory_order_acquire) != head_ + 1) return false;
        value = cell.value;
        cell.turn.store(head_ + cells_.size(), std::memory_order_release);
        head_++;
        return true;
    }

private:
    struct Cell {
        std::atomic<std::uint64_t> turn{0};
        T value{};
    };

    std::pmr::vector<Cell> cells_;
    alignas(cache_line_bytes) std::atomic<std::uint64_t> tail_{0};
    alignas(cache_line_bytes) std::uint64_t head_ = 0; // the consumer's
};

} // namespace xlm::client
