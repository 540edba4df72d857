#include "errors.hpp"

#include <cstdio>

namespace xlm {

namespace {
// Fixed size: reporting "out of memory" must not need memory.
thread_local char message_buffer[512] = "";
} // namespace

void set_last_error(const char * message) noexcept {
    std::snprintf(message_buffer, sizeof message_buffer, "%s", message);
}

const char * last_error() noexcept {
    return message_buffer;
}

} // namespace xlm
