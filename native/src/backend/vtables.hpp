// The five small tables through which ggml sees XLM0. One file each.
#pragma once

#include "ggml-backend-impl.h"

namespace xlm {

ggml_backend_reg_t registry_handle();             // backend_reg.cpp
ggml_backend_dev_t device_handle();               // device.cpp
ggml_backend_buffer_type_t device_buffer_type();  // buffer_type.cpp: "XLM0", KV and compute
ggml_backend_buffer_type_t weights_buffer_type(); // buffer_type.cpp: "XLM_HOST"
ggml_backend_t make_backend();                    // backend.cpp; nullptr without host memory
void set_backend_threads(ggml_backend_t backend, int n_threads);

} // namespace xlm
