// The inner device: loaded privately, so that ggml's registry never shows it,
// and reached only through here. Three instances: `compute` runs sub-layers and
// moves activations; `upload` feeds weights, so that a small activation never
// queues behind megabytes of weights; `download` writes KV rows back while the
// next sub-layers compute.
//
// Thread safety: none. The holder of the device gate calls (gate.hpp); some
// inner backends crash when one instance is used from two threads.
#pragma once

#include "ledger.hpp"
#include "submitted.hpp"
#include "trace.hpp"

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace xlm {

enum class Stream : uint8_t { compute, upload, download };
constexpr size_t kStreams = 3;
// Who uses events: each has a pool of its own, so that many short-lived ones never bring one up for reuse
// that somebody still waits for.
enum class Events : uint8_t { work, ring, experts, pictures, copies };

// The tensor becomes one of so many plain bytes, where it is.
void as_bytes(ggml_tensor & tensor, uint64_t bytes);

// A piece of device memory, booked in the ledger as long as it lives.
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    DeviceBuffer(ggml_backend_buffer_t buffer, Ledger * ledger, Purpose purpose, uint64_t bytes)
        : buffer_(buffer), ledger_(ledger), purpose_(purpose), bytes_(bytes) {}
    DeviceBuffer(DeviceBuffer && other) noexcept { swap(other); }
    DeviceBuffer & operator=(DeviceBuffer && other) noexcept {
        swap(other);
        return *this;
    }
    ~DeviceBuffer() { reset(); }
    void reset();

    explicit operator bool() const { return buffer_ != nullptr; }
    ggml_backend_buffer_t get() const { return buffer_; }
    uint64_t bytes() const { return bytes_; }
    char * base() const { return base_; }

private:
    friend class Inner;
    void swap(DeviceBuffer & other) noexcept;

    ggml_backend_buffer_t buffer_ = nullptr;
    Ledger * ledger_ = nullptr;
    Purpose purpose_ = Purpose::resident;
    uint64_t bytes_ = 0;
    char * base_ = nullptr;
};

struct DeviceMemory {
    uint64_t used_bytes = 0, total_bytes = 0;
};

class Inner {
public:
    Inner(Ledger & ledger, Trace & trace) : ledger_(ledger), trace_(trace) {}

    // Throws ApiError. `name` "none" leaves the device absent.
    void open(const std::string & name, const std::string & library, uint32_t index);
    void close();
    // Makes new instances after a fault. False when the device is still lost.
    bool recover();

    bool present() const { return device_ != nullptr; }
    bool usable() const { return present() && !lost_.load(std::memory_order_relaxed); }
    bool lost() const { return lost_.load(std::memory_order_relaxed); }
    void mark_lost() { lost_.store(true, std::memory_order_relaxed); }
    // Asks a device that can tell (the virtual GPU); others are taken to be well until a call fails. A loss that was
    // undone since counts: what the device held is gone all the same, and so is what it was given meanwhile.
    bool healthy();

    const std::string & description() const { return description_; }
    ggml_backend_buffer_type_t host_buffer_type() const { return host_type_; } // pinned memory; nullptr: none
    uint64_t alignment() const { return alignment_; }
    uint64_t alloc_bytes(const ggml_tensor * tensor) const; // with the padding the device wants, aligned
    bool needs_padding(const ggml_tensor * tensor) const;
    bool supports_op(const ggml_tensor * op) const;
    // False for Vulkan: towers computed in tiles corrupt the heap of a process with the software driver
    // (docs/vision.md).
    bool computes_images() const { return !vulkan_; }
    DeviceMemory memory() const;

    // Empty when the budget or the device refuses. Never throws.
    DeviceBuffer allocate(Purpose purpose, uint64_t bytes);
    // True when the last refusal came from the device though the budget allowed it.
    bool device_refused() const { return device_refused_; }

    // All return false once the device is lost. Data must stay until the stream is synchronized.
    bool clear(const DeviceBuffer & buffer); // to zero; waits
    bool init_tensor(ggml_tensor * tensor);
    bool set(Stream stream, ggml_tensor * tensor, const void * data, size_t offset, size_t bytes);
    bool get(Stream stream, const ggml_tensor * tensor, void * data, size_t offset, size_t bytes);
    // A copy of the graph: the caller may change and free its tensors at once.
    bool compute(ggml_cgraph * graph);
    bool synchronize(Stream stream);
    bool synchronize_all() {
        return synchronize(Stream::compute) && synchronize(Stream::upload) && synchronize(Stream::download);
    }

    // Waits for everything under way, lost or not: memory must not be freed under running work.
    void drain();

    // What the calls from here on belong to, in a trace. Returns what they belonged to before.
    TraceLabel label(TraceLabel label) { return std::exchange(label_, label); }

    bool has_events() const { return has_events_; }
    ggml_backend_event_t next_event(Events use); // from a pool, reused in turn; nullptr once the device is lost
    bool record(Stream stream, ggml_backend_event_t event);
    bool wait(Stream stream, ggml_backend_event_t event); // device-side
    bool wait_host(ggml_backend_event_t event);

private:
    template <typename Call>
    bool guarded(Call && call);
    ggml_backend_t instance(Stream stream) const { return instances_[static_cast<size_t>(stream)]; }
    void load(const std::string & library, uint32_t index);
    bool make_instances();
    void free_instances();
    void free_events();
    void probe();
    uint64_t losses() const; // 0 for a device that does not count them

    static constexpr size_t kEvents = 256;

    void synchronize_instance(Stream stream); // may throw
    void renew_compute();                     // may throw
    void tell_device_times(TraceScope & scope) const;

    Ledger & ledger_;
    Trace & trace_;
    TraceLabel label_;
    Submitted submitted_; // on compute, since it was last synchronized
    void * library_ = nullptr;
    ggml_backend_dev_t device_ = nullptr;
    ggml_backend_buffer_type_t type_ = nullptr;
    ggml_backend_buffer_type_t host_type_ = nullptr;
    std::array<ggml_backend_t, kStreams> instances_{};
    struct EventPool {
        std::array<ggml_backend_event_t, kEvents> events{};
        size_t at = 0;
    };
    std::array<EventPool, 5> event_pools_;
    bool has_events_ = false;
    bool vulkan_ = false;
    bool renews_ = false; // the instance that computes, each time it has and was synchronized
    bool computed_ = false;
    std::vector<ggml_backend_event_t> recorded_; // by the instance that computes, where it is renewed
    std::array<size_t, kStreams> n_recorded_{};  // events, since the stream was last synchronized
    bool device_refused_ = false;
    std::atomic<bool> lost_{false};
    uint64_t losses_seen_ = 0; // by the instances there are
    uint64_t alignment_ = 256;
    std::string description_ = "none";
    void * sim_counters_ = nullptr; // xlm_sim_get_counters of the virtual GPU
    void * sim_last_ = nullptr;     // its xlm_sim_last_operation
};

} // namespace xlm
