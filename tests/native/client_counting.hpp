// Counts the calling thread's allocations: malloc and its kin, wherever they are called from. For glibc, and not
// beside a sanitizer, which brings its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace xlm::test {

inline thread_local std::uint64_t n_allocations = 0;

} // namespace xlm::test

extern "C" {
void * __libc_malloc(std::size_t);
void * __libc_calloc(std::size_t, std::size_t);
void * __libc_realloc(void *, std::size_t);
void * __libc_memalign(std::size_t, std::size_t);

void * malloc(std::size_t size) noexcept {
    xlm::test::n_allocations++;
    return __libc_malloc(size);
}
void * calloc(std::size_t count, std::size_t size) noexcept {
    xlm::test::n_allocations++;
    return __libc_calloc(count, size);
}
void * realloc(void * memory, std::size_t size) noexcept {
    xlm::test::n_allocations++;
    return __libc_realloc(memory, size);
}
void * aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
    xlm::test::n_allocations++;
    return __libc_memalign(alignment, size);
}
int posix_memalign(void ** out, std::size_t alignment, std::size_t size) noexcept {
    xlm::test::n_allocations++;
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : 12; // ENOMEM
}
}
