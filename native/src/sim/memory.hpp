// Device memory: a hard cap with exact counters. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace xlm::sim {

struct MemoryUse {
    uint64_t cap_bytes = 0, used_bytes = 0, peak_bytes = 0, foreign_bytes = 0;
    uint64_t n_alloc = 0, n_alloc_failed = 0;
    uint64_t free_bytes() const;
};

class DeviceMemory {
public:
    // nullptr when the cap, the injected failures or the operating system say no. Never spills.
    void * allocate(size_t bytes);
    void release(void * base);
    // False (and no change) when `cap_bytes` is below what is allocated now.
    bool set_cap(uint64_t cap_bytes);
    void set_foreign(uint64_t bytes);
    // Let `skip` allocations pass, then fail n.
    void fail_allocations(uint32_t skip, uint32_t n);
    // The block reads as zero afterwards, and takes no host memory until it is written.
    void zero(void * base);
    // All live blocks read as zero afterwards: a device that was lost remembers nothing.
    void wipe();
    MemoryUse use() const;
    void reset_counters();

private:
    bool admit(size_t bytes);
    void keep_within_cap();

    mutable std::mutex mutex_;
    MemoryUse use_;
    std::map<void *, size_t> blocks_;
    uint32_t skip_ = 0;
    uint32_t fail_ = 0;
};

} // namespace xlm::sim
