// Exact mode: one worker thread per stream runs its commands in order; ggml-cpu computes.
#include "buffer.hpp"
#include "cost_model.hpp"
#include "priority.hpp"
#include "snapshot.hpp"

#include "ggml-cpu.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <thread>

namespace xlm::sim {

namespace {

// A worker does not sleep for less: it would oversleep by more. The link engine
// stays busy until the copy's end, so the next copy starts no earlier.
constexpr ns_t shortest_sleep_ns = 20'000;

struct CpuBackendDeleter {
    void operator()(ggml_backend_t backend) const { ggml_backend_free(backend); }
};
using CpuBackend = std::unique_ptr<ggml_backend, CpuBackendDeleter>;

int thread_count(const xlm_sim_config & config) {
    if (config.n_threads > 0) return static_cast<int>(config.n_threads);
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

class ExactStream final : public Stream {
public:
    ExactStream(SimDevice & device, CpuBackend cpu)
        : device_(device), cpu_(std::move(cpu)), n_threads_(thread_count(device.config())), worker_([this] { run(); }) {
    }

    ~ExactStream() override {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            stop_ = true;
        }
        changed_.notify_all();
        worker_.join();
    }

    ggml_status compute(const ggml_cgraph & graph) override;
    void upload(ggml_tensor & tensor, const void * data, size_t offset, size_t bytes) override;
    void download(const ggml_tensor & tensor, void * data, size_t offset, size_t bytes) override;
    void copy(const ggml_tensor & src, ggml_tensor & dst) override;
    SignalPtr record() override;
    void wait(const SignalPtr & signal) override;
    void synchronize() override;
    void set_n_threads(int n_threads) override { n_threads_ = std::max(1, n_threads); }

private:
    using Command = std::function<void()>;

    void run();
    void run_guarded(const Command & command);
    void push(Command command);
    void push_copy(Direction direction, const ggml_tensor & device_side, void * to, const void * from, size_t bytes);
    void compute_now(GraphSnapshot & snapshot);
    bool refused();

    SimDevice & device_;
    CpuBackend cpu_;
    std::atomic<int> n_threads_;
    std::atomic<int> failed_{GGML_STATUS_SUCCESS}; // what a worker found; reported at the next submission

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<Command> queue_;
    bool busy_ = false;
    bool stop_ = false;
    bool stepped_back_ = false; // the worker's own
    std::thread worker_;        // last: it uses all of the above
};

void ExactStream::run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
        if (queue_.empty()) return;
        Command command = std::move(queue_.front());
        queue_.pop_front();
        busy_ = true;
        lock.unlock();
        run_guarded(command);
        command = nullptr; // lets go of the buffers before the stream looks idle
        lock.lock();
        busy_ = false;
        if (queue_.empty()) changed_.notify_all();
    }
}

// What goes wrong on a worker cannot be returned to anyone here.
void ExactStream::run_guarded(const Command & command) {
    try {
        command();
    } catch (...) {
        failed_ = GGML_STATUS_FAILED;
    }
}

void ExactStream::push(Command command) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        queue_.push_back(std::move(command));
    }
    changed_.notify_all();
}

void ExactStream::synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

bool ExactStream::refused() {
    if (!device_.loss.lost()) return false;
    device_.counters.dropped();
    return true;
}

ggml_status ExactStream::compute(const ggml_cgraph & graph) try {
    const auto failed = static_cast<ggml_status>(failed_.exchange(GGML_STATUS_SUCCESS));
    if (failed != GGML_STATUS_SUCCESS) return failed;
    auto snapshot = std::make_shared<GraphSnapshot>(graph);
    auto uses = std::make_shared<BufferUses>();
    for (const ggml_tensor & tensor : snapshot->tensors())
        uses->add(device_buffer_of(tensor));
    push([this, snapshot, uses] { compute_now(*snapshot); });
    device_.counters.graph(count_ops(graph));
    return GGML_STATUS_SUCCESS;
} catch (const std::bad_alloc &) {
    device_.counters.graph_failed();
    return GGML_STATUS_ALLOC_FAILED;
}

void ExactStream::compute_now(GraphSnapshot & snapshot) {
    if (!stepped_back_) step_back(); // before the OpenMP threads start, which inherit it
    stepped_back_ = true;
    const std::lock_guard<std::mutex> one_at_a_time(device_.compute_mutex);
    const ns_t begin_ns = now_ns();
    ggml_backend_cpu_set_n_threads(cpu_.get(), n_threads_);
    const ggml_status status = ggml_backend_graph_compute(cpu_.get(), &snapshot.graph());
    device_.counters.compute(now_ns() - begin_ns);
    if (status == GGML_STATUS_SUCCESS) return;
    device_.counters.graph_failed();
    failed_ = status;
}

void ExactStream::push_copy(Direction direction, const ggml_tensor & device_side, void * to, const void * from,
                            size_t bytes) try {
    auto uses = std::make_shared<BufferUses>();
    uses->add(device_buffer_of(device_side));
    push([this, direction, uses, to, from, bytes] {
        const ns_t end_ns = device_.submit_copy(direction, 0, bytes);
        std::memcpy(to, from, bytes);
        if (end_ns - now_ns() > shortest_sleep_ns) sleep_until_ns(end_ns);
    });
} catch (const std::bad_alloc &) {
    failed_ = GGML_STATUS_ALLOC_FAILED;
}

void ExactStream::upload(ggml_tensor & tensor, const void * data, size_t offset, size_t bytes) {
    if (refused()) return;
    push_copy(Direction::to_device, tensor, static_cast<char *>(tensor.data) + offset, data, bytes);
}

void ExactStream::download(const ggml_tensor & tensor, void * data, size_t offset, size_t bytes) {
    if (refused()) return;
    push_copy(Direction::to_host, tensor, data, static_cast<const char *>(tensor.data) + offset, bytes);
}

void ExactStream::copy(const ggml_tensor & src, ggml_tensor & dst) try {
    if (refused()) return;
    auto uses = std::make_shared<BufferUses>();
    uses->add(device_buffer_of(src));
    uses->add(device_buffer_of(dst));
    push([uses, to = dst.data, from = src.data, bytes = ggml_nbytes(&src)] { std::memmove(to, from, bytes); });
} catch (const std::bad_alloc &) {
    failed_ = GGML_STATUS_ALLOC_FAILED;
}

SignalPtr ExactStream::record() {
    auto signal = std::make_shared<Signal>();
    push([signal] { signal->set(); });
    return signal;
}

void ExactStream::wait(const SignalPtr & signal) {
    push([signal] { signal->wait(); });
}

} // namespace

std::unique_ptr<Stream> make_exact_stream(SimDevice & device) {
    CpuBackend cpu(ggml_backend_cpu_init());
    if (!cpu) return nullptr;
    return std::make_unique<ExactStream>(device, std::move(cpu));
}

} // namespace xlm::sim
