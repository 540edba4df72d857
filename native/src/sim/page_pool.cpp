#include "page_pool.hpp"

#include <algorithm>
#include <cstring>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <sys/mman.h>
#endif

namespace xlm::sim {

namespace {

// Long enough for a game that takes memory and gives it back at once, short enough that
// the process' own memory follows what the device holds.
constexpr std::chrono::seconds kKeepFor{2};

#if defined(_WIN32)
void * map_pages(size_t bytes) {
    return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}
void unmap_pages(void * base, size_t) {
    VirtualFree(base, 0, MEM_RELEASE);
}
#else
void * map_pages(size_t bytes) {
    void * base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? nullptr : base;
}

// In small pieces: a long munmap would hold up every other mapping call of the process.
void unmap_pages(void * base, size_t bytes) {
    constexpr size_t piece_bytes = size_t{1} << 20;
    for (size_t at = 0; at < bytes; at += piece_bytes)
        madvise(static_cast<char *>(base) + at, std::min(piece_bytes, bytes - at), MADV_DONTNEED);
    munmap(base, bytes);
}
#endif

} // namespace

PagePool & PagePool::get() {
    static PagePool * pool = new PagePool(kKeepFor);
    return *pool;
}

PagePool::~PagePool() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
    for (const Pages & pages : kept_)
        unmap_pages(pages.base, pages.bytes);
}

void * PagePool::take(size_t bytes) {
    if (void * base = find(bytes)) return base;
    return map_pages(bytes);
}

void * PagePool::find(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Pages & p) { return p.bytes == bytes; });
    if (at == kept_.rend()) return nullptr;
    void * base = at->base;
    kept_.erase(std::next(at).base());
    kept_bytes_ -= bytes;
    return base;
}

void PagePool::give(void * base, size_t bytes) noexcept {
    try {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
        kept_.push_back({base, bytes, Clock::now()});
        kept_bytes_ += bytes;
    } catch (...) {
        unmap_pages(base, bytes);
        return;
    }
    changed_.notify_one();
}

void PagePool::keep_at_most(uint64_t bytes) noexcept {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto now = Clock::now();
        uint64_t left = kept_bytes_;
        for (Pages & pages : kept_) {
            if (left <= bytes) break;
            left -= pages.bytes;
            pages.since = now - keep_for_; // overdue
        }
    }
    changed_.notify_one();
}

uint64_t PagePool::kept_bytes() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return kept_bytes_;
}

bool PagePool::next_to_unmap(Pages & pages) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stop_) {
        if (kept_.empty()) {
            changed_.wait(lock);
        } else if (const auto due = kept_.front().since + keep_for_; due > Clock::now()) {
            changed_.wait_until(lock, due);
        } else {
            pages = kept_.front();
            kept_.pop_front();
            kept_bytes_ -= pages.bytes;
            return true;
        }
    }
    return false;
}

void PagePool::run() {
    Pages pages{};
    while (next_to_unmap(pages))
        unmap_pages(pages.base, pages.bytes);
}

} // namespace xlm::sim
