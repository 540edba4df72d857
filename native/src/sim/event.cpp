#include "backend.hpp"
#include "vtables.hpp"

#include <mutex>
#include <new>

namespace xlm::sim {

namespace {

// Holds the latest record; waiting without one is a no-op, as on CUDA.
struct Event {
    std::mutex mutex;
    SignalPtr latest;

    SignalPtr get() {
        const std::lock_guard<std::mutex> lock(mutex);
        return latest;
    }
    void put(SignalPtr signal) {
        const std::lock_guard<std::mutex> lock(mutex);
        latest = std::move(signal);
    }
};

Event & of(ggml_backend_event_t event) {
    return *static_cast<Event *>(event->context);
}

} // namespace

ggml_backend_event_t new_event() {
    auto * context = new (std::nothrow) Event;
    auto * event = context ? new (std::nothrow) ggml_backend_event{device(), context} : nullptr;
    if (!event) delete context;
    return event;
}

void free_event(ggml_backend_event_t event) {
    delete &of(event);
    delete event;
}

void record_event(ggml_backend_t backend, ggml_backend_event_t event) {
    of(event).put(stream_of(backend).record());
}

void wait_event(ggml_backend_t backend, ggml_backend_event_t event) {
    if (const SignalPtr signal = of(event).get()) stream_of(backend).wait(signal);
}

void synchronize_event(ggml_backend_event_t event) {
    const SignalPtr signal = of(event).get();
    counted_host_sync([&] {
        if (!signal) return;
        signal->wait();
        host_wait_until_ns(signal->time_ns());
    });
}

} // namespace xlm::sim
