// The ggml objects of the device; each is defined in the file of its vtable.
#pragma once

#include "ggml-backend-impl.h"

namespace xlm::sim {

ggml_backend_reg_t registry();                      // registry.cpp
ggml_backend_dev_t device();                        // device.cpp
ggml_backend_buffer_type_t device_buffer_type();    // buffer_type.cpp
ggml_backend_buffer_type_t host_buffer_type();      // buffer_type.cpp
ggml_backend_t new_backend();                       // backend.cpp; nullptr on failure
bool is_sim_backend(ggml_backend_t backend);        // backend.cpp
void set_n_threads(ggml_backend_t backend, int n);  // backend.cpp
ggml_backend_event_t new_event();                   // event.cpp; nullptr on failure
void free_event(ggml_backend_event_t event);        // event.cpp
void synchronize_event(ggml_backend_event_t event); // event.cpp
void record_event(ggml_backend_t backend, ggml_backend_event_t event);
void wait_event(ggml_backend_t backend, ggml_backend_event_t event);

} // namespace xlm::sim
