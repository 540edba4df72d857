// How failures travel: ApiError inside, a status and a message at the C boundary.
#pragma once

#include "xlm/xlm_device.h"

#include <exception>
#include <new>
#include <string>
#include <utility>

namespace xlm {

class ApiError : public std::exception {
public:
    ApiError(xlm_status status_, std::string message) : status(status_), message_(std::move(message)) {}
    const char * what() const noexcept override { return message_.c_str(); }
    const xlm_status status;

private:
    std::string message_;
};

void set_last_error(const char * message) noexcept;
const char * last_error() noexcept;

// Runs a body at a C boundary: no exception passes.
template <typename Body>
xlm_status at_boundary(Body && body) noexcept {
    try {
        return body();
    } catch (const ApiError & error) {
        set_last_error(error.what());
        return error.status;
    } catch (const std::bad_alloc &) {
        set_last_error("out of host memory");
        return XLM_ERR_HOST_MEMORY;
    } catch (const std::exception & error) {
        set_last_error(error.what());
        return XLM_ERR_STATE;
    } catch (...) {
        set_last_error("unknown failure");
        return XLM_ERR_STATE;
    }
}

} // namespace xlm
