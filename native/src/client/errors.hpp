// Errors: the table of codes, what one call or message failed with, and the calling thread's last one.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <string_view>

#include <xlm/xlm.h>

namespace xlm::client {

struct CodeInfo {
    xlm_result result;
    std::string_view name; // as on the wire
    xlm_fault fault;
    bool retryable;
    std::string_view hint;
};

/// nullptr: nobody knows it.
const CodeInfo * find_code(xlm_result result) noexcept;
const CodeInfo * find_code(std::string_view name) noexcept;
xlm_fault find_fault(std::string_view name) noexcept;

/// A failure with a message of fixed size, so that reporting one never allocates.
struct Failure {
    xlm_result result = XLM_SUCCESS;
    xlm_fault fault = XLM_FAULT_NONE;
    bool retryable = false;
    std::uint16_t message_bytes = 0;
    std::uint16_t hint_bytes = 0;
    std::uint64_t minimum_bytes = 0;
    char message[384] = {};
    char hint[128] = {};

    Failure() = default;
    /// Fault, retryable and hint as the table has them. A message that is too long is cut at a character.
    Failure(xlm_result result, std::string_view message) noexcept;

    void set_message(std::string_view text) noexcept;
    void set_hint(std::string_view text) noexcept;
    std::string_view message_view() const noexcept { return {message, message_bytes}; }
    std::string_view hint_view() const noexcept { return {hint, hint_bytes}; }
    explicit operator bool() const noexcept { return result != XLM_SUCCESS; }
    /// Its strings are those of this object.
    xlm_error view() const noexcept;
};

/// Carries a Failure out of nested code, within the library only.
struct Failed : std::exception {
    explicit Failed(const Failure & why) noexcept : failure(why) {}
    Failed(xlm_result result, std::string_view message) noexcept : failure(result, message) {}
    const char * what() const noexcept override { return failure.message; }
    Failure failure;
};

/// Remembers the failure for xlm_last_error() and returns its code.
xlm_result fail(const Failure & failure) noexcept;
xlm_result fail(xlm_result result, std::string_view message) noexcept;
const Failure & last_failure() noexcept;
/// That as a line: name, message and hint. This thread's, until the next call.
const char * last_failure_line() noexcept;

/// Runs `body` (which returns a result or count); whatever it throws becomes a result.
template <typename Body>
xlm_result guarded(Body && body) noexcept {
    try {
        return body();
    } catch (const Failed & error) {
        return fail(error.failure);
    } catch (const std::bad_alloc &) {
        return fail(XLM_ERROR_OUT_OF_MEMORY, "the host's allocator has no memory");
    } catch (const std::exception & error) {
        return fail(XLM_ERROR_INTERNAL, error.what());
    } catch (...) {
        return fail(XLM_ERROR_INTERNAL, "an unknown exception");
    }
}

} // namespace xlm::client
