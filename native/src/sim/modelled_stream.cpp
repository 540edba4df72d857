// Modelled mode: every engine is a virtual timeline; no threads, no numerics.
#include "buffer.hpp"
#include "cost_model.hpp"
#include "modelled_data.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace xlm::sim {

namespace {

class ModelledStream final : public Stream {
public:
    explicit ModelledStream(SimDevice & device) : device_(device) {}

    ggml_status compute(const ggml_cgraph & graph) override {
        synthesise_ids(graph, step_++);
        device_.counters.graph(count_ops(graph));
        advance(device_.submit_compute(end(), graph_ns(device_.config(), graph)));
        mark_use(graph);
        return GGML_STATUS_SUCCESS;
    }

    void upload(ggml_tensor & tensor, const void * data, size_t offset, size_t bytes) override {
        if (refused()) return;
        if (data_is_real(tensor, bytes)) std::memcpy(static_cast<char *>(tensor.data) + offset, data, bytes);
        advance(device_.submit_copy(Direction::to_device, end(), bytes));
        mark_use(tensor);
    }

    void download(const ggml_tensor & tensor, void * data, size_t offset, size_t bytes) override {
        if (refused()) return;
        read_modelled(tensor, data, offset, bytes);
        advance(device_.submit_copy(Direction::to_host, end(), bytes));
        mark_use(tensor);
    }

    void copy(const ggml_tensor & src, ggml_tensor & dst) override {
        if (refused()) return;
        const size_t bytes = ggml_nbytes(&src);
        if (data_is_real(src, bytes)) std::memmove(dst.data, src.data, bytes);
        advance(device_.submit_compute(end(), device_copy_ns(device_.config(), bytes)));
        mark_use(src);
        mark_use(dst);
    }

    SignalPtr record() override { return Signal::at(end()); }

    void wait(const SignalPtr & signal) override { advance(signal->time_ns()); }

    void synchronize() override { host_wait_until_ns(end()); }

    void set_n_threads(int) override {} // nothing computes

private:
    bool refused() {
        if (!device_.loss.lost()) return false;
        device_.counters.dropped();
        return true;
    }

    ns_t end() const {
        const std::lock_guard<std::mutex> lock(mutex_);
        return end_ns_;
    }

    void advance(ns_t end_ns) {
        const std::lock_guard<std::mutex> lock(mutex_);
        end_ns_ = std::max(end_ns_, end_ns);
    }

    void mark_use(const ggml_tensor & tensor) {
        if (DeviceBuffer * buffer = device_buffer_of(tensor)) buffer->use_until(end());
    }

    // Neighbours mostly share a buffer, and this runs on the caller's thread for each node.
    void mark_use(const ggml_cgraph & graph) {
        const DeviceBuffer * last = nullptr;
        const ns_t end_ns = end();
        const auto mark = [&](const ggml_tensor * tensor) {
            DeviceBuffer * buffer = tensor ? device_buffer_of(*tensor) : nullptr;
            if (buffer && buffer != last) buffer->use_until(end_ns);
            last = buffer ? buffer : last;
        };
        for (int i = 0; i < graph.n_nodes; i++) {
            mark(graph.nodes[i]);
            for (const ggml_tensor * src : graph.nodes[i]->src)
                mark(src);
        }
    }

    SimDevice & device_;
    mutable std::mutex mutex_;
    ns_t end_ns_ = 0; // when all work accepted so far is done
    uint64_t step_ = 0;
};

} // namespace

std::unique_ptr<Stream> make_modelled_stream(SimDevice & device) {
    return std::make_unique<ModelledStream>(device);
}

} // namespace xlm::sim
