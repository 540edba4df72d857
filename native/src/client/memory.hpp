// The host's allocator as a memory resource. Everything the client keeps hangs on one of these.
#pragma once

#include <memory_resource>
#include <new>

#include <xlm/xlm.h>

namespace xlm::client {

class HostMemory final : public std::pmr::memory_resource {
public:
    /// `hooks` with both functions, or empty for the C++ runtime's.
    explicit HostMemory(const xlm_allocator & hooks) noexcept : hooks_(hooks) {}

private:
    void * do_allocate(std::size_t bytes, std::size_t alignment) override {
        void * memory = hooks_.allocate ? hooks_.allocate(hooks_.user_data, bytes, alignment)
                                        : ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
        if (memory == nullptr) throw std::bad_alloc();
        return memory;
    }

    void do_deallocate(void * memory, std::size_t bytes, std::size_t alignment) override {
        if (hooks_.release)
            hooks_.release(hooks_.user_data, memory, bytes, alignment);
        else
            ::operator delete(memory, std::align_val_t(alignment));
    }

    bool do_is_equal(const std::pmr::memory_resource & other) const noexcept override { return this == &other; }

    xlm_allocator hooks_;
};

using Memory = std::pmr::memory_resource;

} // namespace xlm::client
