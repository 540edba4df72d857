#include "memory.hpp"

#include "page_pool.hpp"

#include <algorithm>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace xlm::sim {

namespace {

using Lock = std::lock_guard<std::mutex>;

void zero_pages(void * base, size_t bytes) {
#if defined(__linux__)
    if (madvise(base, bytes, MADV_DONTNEED) == 0) return;
#endif
    std::memset(base, 0, bytes);
}

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
    void * base = admit(bytes) ? PagePool::get().take(bytes) : nullptr;
    if (!base) {
        use_.n_alloc_failed++;
        return nullptr;
    }
    blocks_[base] = bytes;
    use_.n_alloc++;
    use_.used_bytes += bytes;
    use_.peak_bytes = std::max(use_.peak_bytes, use_.used_bytes);
    keep_within_cap();
    return base;
}

void DeviceMemory::release(void * base) {
    const Lock lock(mutex_);
    const auto block = blocks_.find(base);
    if (block == blocks_.end()) return;
    PagePool::get().give(block->first, block->second);
    use_.used_bytes -= block->second;
    blocks_.erase(block);
    keep_within_cap();
}

// Host pages in use and kept are together never more than the device has.
void DeviceMemory::keep_within_cap() {
    PagePool::get().keep_at_most(use_.cap_bytes - std::min(use_.cap_bytes, use_.used_bytes));
}

bool DeviceMemory::set_cap(uint64_t cap_bytes) {
    const Lock lock(mutex_);
    if (cap_bytes < use_.used_bytes) return false;
    use_.cap_bytes = cap_bytes;
    keep_within_cap();
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
