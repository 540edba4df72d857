#include "memory.hpp"

#include "reaper.hpp"

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

using Lock = std::lock_guard<std::mutex>;

// Pages come when touched and go soon after they are freed, so that the process'
// own memory follows what the device holds. Fresh pages read as zero.
#if defined(_WIN32)
void * map_pages(size_t bytes) {
    return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}
void unmap_pages(void * base, size_t) {
    VirtualFree(base, 0, MEM_RELEASE);
}
void zero_pages(void * base, size_t bytes) {
    std::memset(base, 0, bytes);
}
#else
void * map_pages(size_t bytes) {
    void * base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return base == MAP_FAILED ? nullptr : base;
}
void unmap_pages(void * base, size_t bytes) {
    Reaper::get().take(base, bytes);
}
void zero_pages(void * base, size_t bytes) {
#if defined(__linux__)
    if (madvise(base, bytes, MADV_DONTNEED) == 0) return;
#endif
    std::memset(base, 0, bytes);
}
#endif

} // namespace

uint64_t MemoryUse::free_bytes() const {
    const uint64_t taken = used_bytes + std::min(foreign_bytes, UINT64_MAX - used_bytes);
    return taken < cap_bytes ? cap_bytes - taken : 0;
}

bool DeviceMemory::admit(size_t bytes) {
    if (skip_ > 0) {
        skip_--;
    } else if (fail_ > 0) {
        fail_--;
        return false;
    }
    return bytes > 0 && bytes <= use_.free_bytes();
}

void * DeviceMemory::allocate(size_t bytes) {
    const Lock lock(mutex_);
    void * base = admit(bytes) ? map_pages(bytes) : nullptr;
    if (!base) {
        use_.n_alloc_failed++;
        return nullptr;
    }
    blocks_[base] = bytes;
    use_.n_alloc++;
    use_.used_bytes += bytes;
    use_.peak_bytes = std::max(use_.peak_bytes, use_.used_bytes);
    return base;
}

void DeviceMemory::release(void * base) {
    const Lock lock(mutex_);
    const auto block = blocks_.find(base);
    if (block == blocks_.end()) return;
    unmap_pages(block->first, block->second);
    use_.used_bytes -= block->second;
    blocks_.erase(block);
}

bool DeviceMemory::set_cap(uint64_t cap_bytes) {
    const Lock lock(mutex_);
    if (cap_bytes < use_.used_bytes) return false;
    use_.cap_bytes = cap_bytes;
    return true;
}

void DeviceMemory::set_foreign(uint64_t bytes) {
    const Lock lock(mutex_);
    use_.foreign_bytes = bytes;
}

void DeviceMemory::fail_allocations(uint32_t skip, uint32_t n) {
    const Lock lock(mutex_);
    skip_ = n > 0 ? skip : 0;
    fail_ = n;
}

void DeviceMemory::zero(void * base) {
    const Lock lock(mutex_);
    const auto block = blocks_.find(base);
    if (block != blocks_.end()) zero_pages(block->first, block->second);
}

void DeviceMemory::wipe() {
    const Lock lock(mutex_);
    for (const auto & [base, bytes] : blocks_)
        zero_pages(base, bytes);
}

MemoryUse DeviceMemory::use() const {
    const Lock lock(mutex_);
    return use_;
}

void DeviceMemory::reset_counters() {
    const Lock lock(mutex_);
    use_.n_alloc = use_.n_alloc_failed = 0;
    use_.peak_bytes = use_.used_bytes;
}

} // namespace xlm::sim
