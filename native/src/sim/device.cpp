#include "sim_device.hpp"
#include "vtables.hpp"

#include "ggml-cpu.h"

#include <cstdio>
#include <cstring>
#include <string>

namespace xlm::sim {

namespace {

constexpr int64_t min_offload_batch = 32; // below it, moving weights costs more than the CPU's work

const char * device_get_name(ggml_backend_dev_t) {
    return "SIM0";
}

const char * device_get_description(ggml_backend_dev_t) {
    return "xlm virtual GPU";
}

void device_get_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    const MemoryUse use = SimDevice::instance().memory.use();
    *free = use.free_bytes();
    *total = use.cap_bytes;
}

enum ggml_backend_dev_type device_get_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

void device_get_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = {};
    props->name = device_get_name(dev);
    props->description = device_get_description(dev);
    props->type = device_get_type(dev);
    device_get_memory(dev, &props->memory_free, &props->memory_total);
    props->caps = {
        /* .async                = */ true,
        /* .host_buffer          = */ true,
        /* .buffer_from_host_ptr = */ false,
        /* .events               = */ true,
        /* .mmap_support         = */ true,
    };
}

ggml_backend_t device_init_backend(ggml_backend_dev_t, const char *) {
    return new_backend();
}

ggml_backend_buffer_type_t device_get_buffer_type(ggml_backend_dev_t) {
    return device_buffer_type();
}

ggml_backend_buffer_type_t device_get_host_buffer_type(ggml_backend_dev_t) {
    return host_buffer_type();
}

// Ops that call back into the host program cannot run on a card.
bool is_host_callback(ggml_op op) {
    return op == GGML_OP_CUSTOM || op == GGML_OP_MAP_CUSTOM1 || op == GGML_OP_MAP_CUSTOM2 || op == GGML_OP_MAP_CUSTOM3;
}

// The device can do what ggml-cpu can, since ggml-cpu is its arithmetic unit.
bool device_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    if (is_host_callback(op->op)) return false;
    return ggml_backend_dev_supports_op(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), op);
}

bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type == device_buffer_type();
}

int64_t batch_size(const ggml_tensor * op) {
    switch (op->op) {
    case GGML_OP_GET_ROWS: return 0;
    case GGML_OP_MUL_MAT: return op->ne[1];
    case GGML_OP_MUL_MAT_ID:
    case GGML_OP_ROPE: return op->ne[2];
    default: return ggml_nrows(op);
    }
}

bool device_offload_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return batch_size(op) >= min_offload_batch;
}

ggml_backend_event_t device_event_new(ggml_backend_dev_t) {
    return new_event();
}

void device_event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    free_event(event);
}

void device_event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event) {
    synchronize_event(event);
}

const ggml_backend_device_i device_interface = {
    /* .get_name             = */ device_get_name,
    /* .get_description      = */ device_get_description,
    /* .get_memory           = */ device_get_memory,
    /* .get_type             = */ device_get_type,
    /* .get_props            = */ device_get_props,
    /* .init_backend         = */ device_init_backend,
    /* .get_buffer_type      = */ device_get_buffer_type,
    /* .get_host_buffer_type = */ device_get_host_buffer_type,
    /* .buffer_from_host_ptr = */ nullptr,
    /* .supports_op          = */ device_supports_op,
    /* .supports_buft        = */ device_supports_buft,
    /* .offload_op           = */ device_offload_op,
    /* .event_new            = */ device_event_new,
    /* .event_free           = */ device_event_free,
    /* .event_synchronize    = */ device_event_synchronize,
};

} // namespace

ggml_backend_dev_t device() {
    static ggml_backend_device object = {
        /* .iface   = */ device_interface,
        /* .reg     = */ registry(),
        /* .context = */ nullptr,
    };
    return &object;
}

} // namespace xlm::sim
