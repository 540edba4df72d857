// Host buffers: the only home of weights, KV and activations.
#pragma once

#include "registry.hpp"

namespace xlm {

// nullptr without memory. Pinned where the inner device offers it, else pageable.
ggml_backend_buffer_t alloc_host_buffer(ggml_backend_buffer_type_t type, size_t bytes, bool weights_type);

// The HostBuffer behind a ggml buffer; nullptr when it is not ours.
HostBuffer * host_buffer_of(ggml_backend_buffer_t buffer);

} // namespace xlm
