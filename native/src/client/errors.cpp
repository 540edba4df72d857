#include "errors.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "utf8.hpp"

namespace xlm::client {

namespace {

constexpr CodeInfo codes[] = {
    {XLM_SUCCESS, "success", XLM_FAULT_NONE, false, ""},
    {XLM_ERROR_INVALID_ARGUMENT, "invalid_argument", XLM_FAULT_CALLER, false, "compare the call with xlm.h"},
    {XLM_ERROR_INVALID_UTF8, "invalid_utf8", XLM_FAULT_CALLER, false, "texts are UTF-8"},
    {XLM_ERROR_INVALID_HANDLE, "invalid_handle", XLM_FAULT_CALLER, false, "the session was closed; open another"},
    {XLM_ERROR_OUT_OF_MEMORY, "out_of_memory", XLM_FAULT_CALLER, true, "give the allocator more room"},
    {XLM_ERROR_WRONG_THREAD, "wrong_thread", XLM_FAULT_CALLER, false,
     "poll on one thread, or move with xlm_client_attach_thread()"},
    {XLM_ERROR_IN_CALLBACK, "in_callback", XLM_FAULT_CALLER, false, "call it after xlm_client_poll() has returned"},
    {XLM_ERROR_FORKED, "forked", XLM_FAULT_CALLER, false, "create a client in the child process"},
    {XLM_ERROR_UNKNOWN_CODE, "unknown_code", XLM_FAULT_BROKER, false, "update the older of library and broker"},
    {XLM_ERROR_CALLBACK_THREW, "callback_threw", XLM_FAULT_CALLER, false, "let no exception out of a callback"},
#include "error_codes.inc" // made from sdk/xlm/errors.py by native/tools/client_codes.py
};

constexpr std::string_view fault_names[] = {"none", "caller", "broker", "engine", "device", "model"};

thread_local Failure last;

std::uint16_t copy_cut(char * out, std::size_t capacity, std::string_view text) noexcept {
    std::size_t length = std::min(text.size(), capacity);
    // never in the middle of a character: step back over continuation bytes
    if (length < text.size())
        while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80)
            length--;
    if (length > 0) std::memcpy(out, text.data(), length);
    return static_cast<std::uint16_t>(length);
}

} // namespace

const CodeInfo * find_code(xlm_result result) noexcept {
    for (const CodeInfo & code : codes)
        if (code.result == result) return &code;
    return nullptr;
}

const CodeInfo * find_code(std::string_view name) noexcept {
    for (const CodeInfo & code : codes)
        if (code.name == name) return &code;
    return nullptr;
}

xlm_fault find_fault(std::string_view name) noexcept {
    for (std::uint32_t i = 1; i < std::size(fault_names); i++)
        if (fault_names[i] == name) return i;
    return XLM_FAULT_BROKER;
}

Failure::Failure(xlm_result code, std::string_view text) noexcept : result(code) {
    if (const CodeInfo * known = find_code(code)) {
        fault = known->fault;
        retryable = known->retryable;
        set_hint(known->hint);
    }
    set_message(text);
}

void Failure::set_message(std::string_view text) noexcept {
    message_bytes = copy_cut(message, sizeof message - 1, text);
    message[message_bytes] = '\0';
}

void Failure::set_hint(std::string_view text) noexcept {
    hint_bytes = copy_cut(hint, sizeof hint - 1, text);
    hint[hint_bytes] = '\0';
}

xlm_error Failure::view() const noexcept {
    const CodeInfo * known = find_code(result);
    const std::string_view name = known ? known->name : "unknown_code";
    xlm_error error = XLM_ERROR_INIT;
    error.result = result;
    error.fault = fault;
    error.retryable = retryable;
    error.name = {name.data(), name.size()};
    error.message = {message, message_bytes};
    error.hint = {hint, hint_bytes};
    error.minimum_bytes = minimum_bytes;
    return error;
}

xlm_result fail(const Failure & failure) noexcept {
    last = failure;
    return failure.result;
}

xlm_result fail(xlm_result result, std::string_view message) noexcept {
    return fail(Failure(result, message));
}

const Failure & last_failure() noexcept {
    return last;
}

const char * last_failure_line() noexcept {
    thread_local char line[64 + sizeof last.message + sizeof last.hint];
    if (!last) return "";
    const std::string_view name = last.view().name.data; // of the table: ends with a NUL
    const char * const open = last.hint_bytes ? " (" : "";
    const char * const close = last.hint_bytes ? ")" : "";
    std::snprintf(line, sizeof line, "%s: %s%s%s%s", name.data(), last.message, open, last.hint, close);
    return line;
}

} // namespace xlm::client
