#include "buffer.hpp"

#include "cost_model.hpp"
#include "modelled_data.hpp"
#include "vtables.hpp"

#include <algorithm>
#include <cstring>

namespace xlm::sim {

namespace {

DeviceBuffer & of(ggml_backend_buffer_t buffer) {
    return *static_cast<DeviceBuffer *>(buffer->context);
}

bool refuse_if_lost(SimDevice & device) {
    if (!device.loss.lost()) return false;
    device.counters.dropped();
    return true;
}

void buffer_free(ggml_backend_buffer_t buffer) {
    SimDevice & device = SimDevice::instance();
    if (of(buffer).in_use()) device.counters.freed_in_use();
    of(buffer).wait_unused();
    device.memory.release(of(buffer).base);
    delete &of(buffer);
}

void * buffer_get_base(ggml_backend_buffer_t buffer) {
    return of(buffer).base;
}

void buffer_memset_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t bytes) {
    SimDevice & device = SimDevice::instance();
    if (refuse_if_lost(device)) return;
    if (!device.modelled() || data_is_real(*tensor, bytes)) {
        std::memset(static_cast<char *>(tensor->data) + offset, value, bytes);
    }
}

void buffer_set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t bytes) {
    SimDevice & device = SimDevice::instance();
    if (refuse_if_lost(device)) return;
    const ns_t end_ns = device.submit_copy(Direction::to_device, 0, bytes);
    if (!device.modelled() || data_is_real(*tensor, bytes)) {
        std::memcpy(static_cast<char *>(tensor->data) + offset, data, bytes);
    }
    host_wait_until_ns(end_ns);
}

void buffer_get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t bytes) {
    SimDevice & device = SimDevice::instance();
    if (refuse_if_lost(device)) return;
    const ns_t end_ns = device.submit_copy(Direction::to_host, 0, bytes);
    if (device.modelled()) {
        read_modelled(*tensor, data, offset, bytes);
    } else {
        std::memcpy(data, static_cast<const char *>(tensor->data) + offset, bytes);
    }
    host_wait_until_ns(end_ns);
}

bool buffer_cpy_tensor(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
    if (!device_buffer_of(*src)) return false;
    SimDevice & device = SimDevice::instance();
    if (refuse_if_lost(device)) return true;
    const size_t bytes = ggml_nbytes(src);
    if (!device.modelled() || data_is_real(*src, bytes)) std::memmove(dst->data, src->data, bytes);
    if (device.modelled()) host_wait_until_ns(device.submit_compute(0, device_copy_ns(device.config(), bytes)));
    return true;
}

void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    SimDevice & device = SimDevice::instance();
    if (refuse_if_lost(device)) return;
    if (value == 0) {
        device.memory.zero(of(buffer).base);
    } else if (!device.modelled()) {
        std::memset(of(buffer).base, value, buffer->size);
    }
}

const ggml_backend_buffer_i device_buffer_interface = {
    /* .free_buffer   = */ buffer_free,
    /* .get_base      = */ buffer_get_base,
    /* .init_tensor   = */ nullptr,
    /* .memset_tensor = */ buffer_memset_tensor,
    /* .set_tensor    = */ buffer_set_tensor,
    /* .get_tensor    = */ buffer_get_tensor,
    /* .set_tensor_2d = */ nullptr, // ggml loops over set_tensor
    /* .get_tensor_2d = */ nullptr, // ggml loops over get_tensor
    /* .cpy_tensor    = */ buffer_cpy_tensor,
    /* .clear         = */ buffer_clear,
    /* .reset         = */ nullptr,
};

} // namespace

void DeviceBuffer::acquire() {
    const std::lock_guard<std::mutex> lock(mutex_);
    n_uses_++;
}

void DeviceBuffer::release() {
    // Notified under the lock: the waiter deletes this object as soon as it can take it.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--n_uses_ == 0) unused_.notify_all();
}

void DeviceBuffer::use_until(ns_t end_ns) {
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_until_ns_ = std::max(busy_until_ns_, end_ns);
}

bool DeviceBuffer::in_use() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return n_uses_ > 0 || busy_until_ns_ > now_ns();
}

void DeviceBuffer::wait_unused() {
    std::unique_lock<std::mutex> lock(mutex_);
    unused_.wait(lock, [this] { return n_uses_ == 0; });
}

void BufferUses::add(DeviceBuffer * buffer) {
    if (!buffer || std::find(buffers_.begin(), buffers_.end(), buffer) != buffers_.end()) return;
    buffers_.push_back(buffer);
    buffer->acquire();
}

void BufferUses::until(ns_t end_ns) {
    for (DeviceBuffer * buffer : buffers_)
        buffer->use_until(end_ns);
}

BufferUses::~BufferUses() {
    for (DeviceBuffer * buffer : buffers_)
        buffer->release();
}

DeviceBuffer * device_buffer_of(const ggml_tensor & tensor) {
    const ggml_backend_buffer_t buffer = tensor.view_src ? tensor.view_src->buffer : tensor.buffer;
    if (!buffer || buffer->buft != device_buffer_type()) return nullptr;
    return static_cast<DeviceBuffer *>(buffer->context);
}

ggml_backend_buffer_t alloc_device_buffer(ggml_backend_buffer_type_t type, size_t bytes) try {
    SimDevice & device = SimDevice::instance();
    void * base = device.memory.allocate(device.loss.lost() ? 0 : bytes);
    if (!base) return nullptr;
    return ggml_backend_buffer_init(type, device_buffer_interface, new DeviceBuffer(base), bytes);
} catch (...) {
    return nullptr;
}

} // namespace xlm::sim
