// Structs across versions: callers older or newer than this library have shorter or longer ones.
#pragma once

#include <algorithm>
#include <cstring>

#include "errors.hpp"

namespace xlm::client {

/// The caller's options over the defaults: fields it does not know keep theirs, fields we do not know are left out.
template <typename T>
T read_struct(const T * given, const T & defaults) {
    T out = defaults;
    if (given == nullptr) throw Failed(XLM_ERROR_INVALID_ARGUMENT, "a struct is NULL");
    if (given->struct_size < sizeof given->struct_size)
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, "struct_size is not set; start from the *_INIT macro");
    std::memcpy(&out, given, std::min<std::size_t>(given->struct_size, sizeof(T)));
    out.struct_size = sizeof(T);
    return out;
}

/// What is known into the caller's struct, as far as it goes; its struct_size stays.
template <typename T>
void write_struct(T * out, const T & value) {
    if (out == nullptr) throw Failed(XLM_ERROR_INVALID_ARGUMENT, "an out parameter is NULL");
    const std::uint32_t size = out->struct_size;
    if (size < sizeof size)
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, "struct_size is not set; start from the *_INIT macro");
    std::memcpy(out, &value, std::min<std::size_t>(size, sizeof(T)));
    out->struct_size = size;
}

} // namespace xlm::client
