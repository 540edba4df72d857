// An in-order queue of device work: what one ggml backend instance is.
#pragma once

#include "signal.hpp"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <memory>

namespace xlm::sim {

class SimDevice;

// All calls return at once except synchronize(). Host pointers given to
// upload() and download() must stay valid until a synchronize, or an event
// recorded after them, has been waited for. One thread at a time per stream.
class Stream {
public:
    virtual ~Stream() = default;
    // Takes what it needs of the graph: the caller may change tensors right after.
    virtual ggml_status compute(const ggml_cgraph & graph) = 0;
    virtual void upload(ggml_tensor & tensor, const void * data, size_t offset, size_t bytes) = 0;
    virtual void download(const ggml_tensor & tensor, void * data, size_t offset, size_t bytes) = 0;
    // Both tensors lie in device memory.
    virtual void copy(const ggml_tensor & src, ggml_tensor & dst) = 0;
    virtual SignalPtr record() = 0;
    virtual void wait(const SignalPtr & signal) = 0;
    virtual void synchronize() = 0;
    virtual void set_n_threads(int n_threads) = 0;
};

// By the mode the device is configured to. nullptr when ggml-cpu gives no backend.
std::unique_ptr<Stream> make_stream(SimDevice & device);
std::unique_ptr<Stream> make_exact_stream(SimDevice & device);
std::unique_ptr<Stream> make_modelled_stream(SimDevice & device);

} // namespace xlm::sim
