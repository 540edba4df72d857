#include "inner.hpp"

#include "errors.hpp"
#include "shared_library.hpp"

#include "xlm/xlm_sim.h"

#include <cstdlib>
#include <utility>

namespace xlm {

namespace {

// Freeing may throw on a lost device; the memory is gone either way.
void free_buffer(ggml_backend_buffer_t buffer) noexcept {
    try {
        ggml_backend_buffer_free(buffer);
    } catch (...) {
    }
}

constexpr uint64_t kSubmittedBytes = 16 << 20; // of copied graphs: a large image has very many tiles
constexpr size_t kMostRecorded = 4096;         // events of a stream that is not synchronized in between

using SimCounters = xlm_status (*)(xlm_sim_counters *);

bool read_sim(void * function, xlm_sim_counters & counters) {
    counters = {};
    counters.struct_size = sizeof counters;
    return function && reinterpret_cast<SimCounters>(function)(&counters) == XLM_OK;
}

} // namespace

void as_bytes(ggml_tensor & tensor, uint64_t bytes) {
    tensor.type = GGML_TYPE_I8;
    tensor.ne[0] = static_cast<int64_t>(bytes);
    tensor.ne[1] = tensor.ne[2] = tensor.ne[3] = 1;
    tensor.nb[0] = 1;
    tensor.nb[1] = tensor.nb[2] = tensor.nb[3] = bytes;
}

void DeviceBuffer::swap(DeviceBuffer & other) noexcept {
    std::swap(buffer_, other.buffer_);
    std::swap(ledger_, other.ledger_);
    std::swap(purpose_, other.purpose_);
    std::swap(bytes_, other.bytes_);
    std::swap(base_, other.base_);
}

void DeviceBuffer::reset() {
    if (!buffer_) return;
    free_buffer(std::exchange(buffer_, nullptr));
    ledger_->release(purpose_, std::exchange(bytes_, 0));
    base_ = nullptr;
}

template <typename Call>
bool Inner::guarded(Call && call) {
    if (!usable()) return false;
    try {
        if (call()) return true;
    } catch (...) { // a lost Vulkan device throws through ggml
    }
    mark_lost();
    return false;
}

// A backend built to be loaded at run time exports ggml_backend_init; one built to be linked, as in a
// llama-cpp-python with CUDA, only the function of its own name.
static ggml_backend_init_t find_entry(void * library) {
    for (const char * name : {"ggml_backend_init", "ggml_backend_cuda_reg", "ggml_backend_vk_reg"})
        if (void * symbol = find_symbol(library, name)) return reinterpret_cast<ggml_backend_init_t>(symbol);
    return nullptr;
}

// The virtual GPU can say what is wrong (a bad XLM_SIM, another ggml); of others the driver is missing.
static std::string why_none(void * library) {
    void * function = find_symbol(library, "xlm_sim_last_error");
    const std::string said = function ? reinterpret_cast<const char * (*)()>(function)() : "";
    return said.empty() ? "no device driver was found" : said;
}

// ggml-vulkan uses a descriptor set again after each synchronization, and writes as many of its bindings as the next
// pipeline reads; what is left in the others may be a buffer that is gone. A driver must not look at those. Mesa's
// software driver counts references in them, so in freed memory (decision 31).
static bool counts_unread_bindings(const std::string & device) {
    const char * said = std::getenv("XLM_VULKAN_RENEW"); // 1 or 0, whatever the driver
    return said && *said ? *said == '1' : device.rfind("llvmpipe", 0) == 0;
}

void Inner::load(const std::string & library, uint32_t index) {
    std::string reason;
    library_ = open_library(library, reason);
    if (!library_) throw ApiError(XLM_ERR_NO_DEVICE, "cannot load the inner device library " + library + ": " + reason);
    ggml_backend_init_t init = find_entry(library_);
    if (!init) throw ApiError(XLM_ERR_NO_DEVICE, library + " is not a ggml backend (no ggml_backend_init)");
    ggml_backend_reg_t registry = init();
    if (!registry) throw ApiError(XLM_ERR_NO_DEVICE, library + " offers no device: " + why_none(library_));
    if (registry->api_version != GGML_BACKEND_API_VERSION)
        throw ApiError(XLM_ERR_ABI_MISMATCH,
                       library + " has ggml backend API " + std::to_string(registry->api_version) +
                           ", this library was built for " + std::to_string(GGML_BACKEND_API_VERSION));
    const size_t count = ggml_backend_reg_dev_count(registry);
    if (index >= count)
        throw ApiError(XLM_ERR_NO_DEVICE, library + " has " + std::to_string(count) + " devices; number " +
                                              std::to_string(index) + " was asked for");
    device_ = ggml_backend_reg_dev_get(registry, index);
    vulkan_ = std::string(ggml_backend_reg_name(registry)) == "Vulkan";
    renews_ = vulkan_ && counts_unread_bindings(ggml_backend_dev_description(device_));
    sim_counters_ = find_symbol(library_, "xlm_sim_get_counters");
    sim_last_ = find_symbol(library_, "xlm_sim_last_operation");
}

void Inner::open(const std::string & name, const std::string & library, uint32_t index) {
    close();
    if (name == "none") return;
    try {
        load(library, index);
        losses_seen_ = losses();
        if (!make_instances()) throw ApiError(XLM_ERR_NO_DEVICE, "the inner device " + name + " cannot be started");
        probe();
    } catch (const ApiError &) {
        close();
        throw;
    } catch (const std::exception & error) { // Vulkan without a driver throws
        close();
        throw ApiError(XLM_ERR_NO_DEVICE, "the inner device " + name + " failed: " + error.what());
    }
}

// What the device can do, asked once.
void Inner::probe() {
    type_ = ggml_backend_dev_buffer_type(device_);
    alignment_ = std::max<uint64_t>(256, ggml_backend_buft_get_alignment(type_));
    host_type_ = ggml_backend_dev_host_buffer_type(device_);
    if (host_type_ && !ggml_backend_buft_is_host(host_type_)) host_type_ = nullptr;
    description_ = ggml_backend_dev_description(device_);
    const ggml_backend_i & calls = instance(Stream::compute)->iface;
    has_events_ = device_->iface.event_new && calls.event_record && calls.event_wait && calls.set_tensor_async;
}

bool Inner::make_instances() {
    bool all = true;
    for (ggml_backend_t & backend : instances_) {
        backend = ggml_backend_dev_init(device_, nullptr);
        all = all && backend;
    }
    return all;
}

void Inner::free_events() {
    for (EventPool & pool : event_pools_)
        for (ggml_backend_event_t & event : pool.events)
            if (event) ggml_backend_event_free(std::exchange(event, nullptr));
    recorded_.clear();
}

void Inner::free_instances() {
    try {
        free_events();
        for (ggml_backend_t & backend : instances_)
            if (backend) ggml_backend_free(std::exchange(backend, nullptr));
    } catch (...) { // a lost device; what it held is gone
    }
    submitted_.release();
    computed_ = false;
}

void Inner::close() {
    free_instances();
    // The library stays loaded: drivers do not survive being unloaded.
    library_ = nullptr;
    device_ = nullptr;
    type_ = host_type_ = nullptr;
    sim_counters_ = sim_last_ = nullptr;
    has_events_ = vulkan_ = renews_ = false;
    description_ = "none";
    lost_ = false;
}

bool Inner::recover() {
    if (!present()) return false;
    free_instances();
    losses_seen_ = losses(); // one from now on is a new one
    try {
        if (!make_instances()) return false;
    } catch (...) {
        return false;
    }
    lost_ = false;
    return healthy();
}

bool Inner::healthy() {
    xlm_sim_counters counters;
    if (read_sim(sim_counters_, counters) && (counters.lost || counters.n_losses != losses_seen_)) mark_lost();
    return usable();
}

uint64_t Inner::losses() const {
    xlm_sim_counters counters;
    return read_sim(sim_counters_, counters) ? counters.n_losses : 0;
}

DeviceMemory Inner::memory() const {
    if (!present()) return {};
    xlm_sim_counters counters;
    if (read_sim(sim_counters_, counters)) return {counters.used_bytes, counters.vram_bytes};
    size_t free_bytes = 0, total_bytes = 0;
    ggml_backend_dev_memory(device_, &free_bytes, &total_bytes);
    return {total_bytes > free_bytes ? total_bytes - free_bytes : 0, total_bytes};
}

uint64_t Inner::alloc_bytes(const ggml_tensor * tensor) const {
    const uint64_t bytes = type_ ? ggml_backend_buft_get_alloc_size(type_, tensor) : ggml_nbytes(tensor);
    return (bytes + alignment_ - 1) / alignment_ * alignment_;
}

bool Inner::needs_padding(const ggml_tensor * tensor) const {
    return type_ && ggml_backend_buft_get_alloc_size(type_, tensor) > ggml_nbytes(tensor);
}

bool Inner::supports_op(const ggml_tensor * op) const {
    return device_ && ggml_backend_dev_supports_op(device_, op);
}

DeviceBuffer Inner::allocate(Purpose purpose, uint64_t bytes) {
    device_refused_ = false;
    if (!usable() || bytes == 0 || bytes > ggml_backend_buft_get_max_size(type_)) return {};
    if (!ledger_.try_reserve(purpose, bytes)) return {};
    ggml_backend_buffer_t buffer = nullptr;
    try {
        buffer = ggml_backend_buft_alloc_buffer(type_, bytes);
    } catch (...) {
    }
    if (!buffer) {
        ledger_.release(purpose, bytes);
        device_refused_ = healthy(); // a lost device refuses too
        return {};
    }
    DeviceBuffer result(buffer, &ledger_, purpose, bytes);
    // A device may round up; the difference is booked too, or the buffer is given back.
    const uint64_t actual = ggml_backend_buffer_get_size(buffer);
    if (actual > bytes) {
        if (!ledger_.try_reserve(purpose, actual - bytes)) return {};
        result.bytes_ = actual;
    }
    result.base_ = static_cast<char *>(ggml_backend_buffer_get_base(buffer));
    const bool weights = purpose != Purpose::kv && purpose != Purpose::scratch;
    if (weights) ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (purpose == Purpose::scratch) ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
    return result;
}

bool Inner::clear(const DeviceBuffer & buffer) {
    return guarded([&] {
        ggml_backend_buffer_clear(buffer.get(), 0);
        return true;
    });
}

bool Inner::init_tensor(ggml_tensor * tensor) {
    return guarded([&] { return ggml_backend_buffer_init_tensor(tensor->buffer, tensor) == GGML_STATUS_SUCCESS; });
}

void Inner::tell_device_times(TraceScope & scope) const {
    using LastOperation = xlm_status (*)(uint64_t *, uint64_t *);
    if (sim_last_ && trace_.on())
        reinterpret_cast<LastOperation>(sim_last_)(&scope.event.device_begin_ns, &scope.event.device_end_ns);
}

bool Inner::set(Stream stream, ggml_tensor * tensor, const void * data, size_t offset, size_t bytes) {
    return guarded([&] {
        ggml_backend_t backend = instance(stream);
        TraceScope scope(trace_, stream == Stream::upload ? XLM_TRACE_UPLOAD : XLM_TRACE_COPY_UP, label_);
        scope.event.bytes = bytes;
        if (backend->iface.set_tensor_async) {
            backend->iface.set_tensor_async(backend, tensor, data, offset, bytes);
            tell_device_times(scope);
            return true;
        }
        // A synchronous device: what runs may still read the place.
        synchronize_instance(Stream::compute);
        tensor->buffer->iface.set_tensor(tensor->buffer, tensor, data, offset, bytes);
        return true;
    });
}

bool Inner::get(Stream stream, const ggml_tensor * tensor, void * data, size_t offset, size_t bytes) {
    return guarded([&] {
        ggml_backend_t backend = instance(stream);
        TraceScope scope(trace_, stream == Stream::download ? XLM_TRACE_WRITE_BACK : XLM_TRACE_COPY_DOWN, label_);
        scope.event.bytes = bytes;
        if (backend->iface.get_tensor_async) {
            backend->iface.get_tensor_async(backend, tensor, data, offset, bytes);
            tell_device_times(scope);
            return true;
        }
        synchronize_instance(stream);
        tensor->buffer->iface.get_tensor(tensor->buffer, tensor, data, offset, bytes);
        return true;
    });
}

bool Inner::compute(ggml_cgraph * graph) {
    return guarded([&] {
        TraceScope scope(trace_, XLM_TRACE_DEVICE, label_);
        if (submitted_.bytes() > kSubmittedBytes) synchronize_instance(Stream::compute);
        ggml_backend_t backend = instance(Stream::compute);
        computed_ = true;
        const bool ok = backend->iface.graph_compute(backend, submitted_.keep(*graph)) == GGML_STATUS_SUCCESS;
        tell_device_times(scope);
        return ok;
    });
}

void Inner::synchronize_instance(Stream stream) {
    ggml_backend_synchronize(instance(stream));
    n_recorded_[static_cast<size_t>(stream)] = 0;
    if (stream != Stream::compute) return;
    submitted_.release();
    if (renews_ && std::exchange(computed_, false)) renew_compute();
}

// A new instance has no descriptor sets yet. Events keep a pointer into the one that recorded them until the host waits
// for them, which resets those they stood for before; so what other streams still have to wait for comes first.
void Inner::renew_compute() {
    ggml_backend_synchronize(instance(Stream::upload));
    ggml_backend_synchronize(instance(Stream::download));
    for (ggml_backend_event_t event : recorded_)
        ggml_backend_event_synchronize(event);
    recorded_.clear();
    ggml_backend_t & backend = instances_[static_cast<size_t>(Stream::compute)];
    ggml_backend_free(std::exchange(backend, nullptr));
    backend = ggml_backend_dev_init(device_, nullptr);
    if (!backend) throw ApiError(XLM_ERR_DEVICE_LOST, "the device cannot be started again");
}

bool Inner::synchronize(Stream stream) {
    return guarded([&] {
        const TraceScope scope(trace_, XLM_TRACE_WAIT, label_);
        synchronize_instance(stream);
        return true;
    });
}

void Inner::drain() {
    for (size_t stream = 0; stream < kStreams; stream++) {
        try {
            if (instances_[stream]) synchronize_instance(static_cast<Stream>(stream));
        } catch (...) { // a lost device has nothing under way that could be waited for
        }
    }
}

// ggml-vulkan lets go of what it made for an event when the host waits for it, and for a stream when that is
// synchronized; both are rare where the device waits. An event that comes up for reuse is long over.
ggml_backend_event_t Inner::next_event(Events use) {
    EventPool & pool = event_pools_[static_cast<size_t>(use)];
    ggml_backend_event_t & event = pool.events[pool.at];
    pool.at = (pool.at + 1) % kEvents;
    const bool ok = guarded([&] {
        if (event && vulkan_) ggml_backend_event_synchronize(event);
        if (!event) event = ggml_backend_event_new(device_);
        return event != nullptr;
    });
    return ok ? event : nullptr;
}

bool Inner::record(Stream stream, ggml_backend_event_t event) {
    return guarded([&] {
        ggml_backend_t backend = instance(stream);
        if (!event) return false;
        backend->iface.event_record(backend, event);
        if (renews_ && stream == Stream::compute) recorded_.push_back(event);
        const size_t n_recorded = ++n_recorded_[static_cast<size_t>(stream)];
        if (vulkan_ && n_recorded >= kMostRecorded) synchronize_instance(stream);
        return true;
    });
}

bool Inner::wait(Stream stream, ggml_backend_event_t event) {
    return guarded([&] {
        ggml_backend_t backend = instance(stream);
        backend->iface.event_wait(backend, event);
        return true;
    });
}

bool Inner::wait_host(ggml_backend_event_t event) {
    return guarded([&] {
        const TraceScope scope(trace_, XLM_TRACE_WAIT, label_);
        ggml_backend_event_synchronize(event);
        return true;
    });
}

} // namespace xlm
