// An inner device whose calls throw, as ggml-vulkan's do once its driver has lost the device: no exception leaves XLM0,
// no token is lost, and the device is lost until somebody asks for it again. Over the virtual GPU, with a throw put
// into one of its functions.
#include "backend_cases.hpp"

#include "ggml-backend-impl.h"

#include <stdexcept>
#include <utility>

using namespace toy;

namespace {

constexpr uint64_t kPlenty = 32 << 20;

enum Call { kCompute, kSet, kGet, kSynchronize, kRecord, kWait, kNewEvent, kWaitHost, kCalls };
int calls_left[kCalls]; // until one throws; 0: none does
ggml_backend_device_i device_calls;
ggml_backend_i calls;

void count(Call call) {
    if (calls_left[call] > 0 && --calls_left[call] == 0) throw std::runtime_error("vk::Device::call: ErrorDeviceLost");
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
    count(kCompute);
    return calls.graph_compute(backend, graph);
}
void set(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    count(kSet);
    calls.set_tensor_async(backend, tensor, data, offset, size);
}
void get(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    count(kGet);
    calls.get_tensor_async(backend, tensor, data, offset, size);
}
void synchronize(ggml_backend_t backend) {
    count(kSynchronize);
    calls.synchronize(backend);
}
void record(ggml_backend_t backend, ggml_backend_event_t event) {
    count(kRecord);
    calls.event_record(backend, event);
}
void wait(ggml_backend_t backend, ggml_backend_event_t event) {
    count(kWait);
    calls.event_wait(backend, event);
}
ggml_backend_event_t new_event(ggml_backend_dev_t device) {
    count(kNewEvent);
    return device_calls.event_new(device);
}
void wait_host(ggml_backend_dev_t device, ggml_backend_event_t event) {
    count(kWaitHost);
    device_calls.event_synchronize(device, event);
}

ggml_backend_t init_backend(ggml_backend_dev_t device, const char * parameters) {
    ggml_backend_t backend = device_calls.init_backend(device, parameters);
    calls = backend->iface;
    backend->iface.graph_compute = compute;
    backend->iface.set_tensor_async = set;
    backend->iface.get_tensor_async = get;
    backend->iface.synchronize = synchronize;
    backend->iface.event_record = record;
    backend->iface.event_wait = wait;
    return backend;
}

void put_throws_in() {
    void * library = dlopen(XLM_SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    const auto init = reinterpret_cast<ggml_backend_init_t>(dlsym(library, "ggml_backend_init"));
    CHECK(init != nullptr);
    ggml_backend_dev_t device = ggml_backend_reg_dev_get(init(), 0);
    device_calls = device->iface;
    device->iface.init_backend = init_backend;
    device->iface.event_new = new_event;
    device->iface.event_synchronize = wait_host;
}

// Layers by turns resident, streamed and on the CPU.
std::vector<uint8_t> mixed_placement(std::mt19937 & random) {
    std::vector<uint8_t> placement(xlm_device_sublayer_count());
    for (size_t i = 0; i < placement.size(); i++)
        placement[i] = static_cast<uint8_t>((i + random()) % 3);
    return placement;
}

// True if the call came to throw.
bool throw_at(Call call, int nth) {
    Pair pair(30, 3, false);
    std::mt19937 random(static_cast<uint32_t>(50 + nth));
    set_budget(kPlenty);
    set_placements(mixed_placement(random), 256 << 10);
    if (call != kNewEvent) CHECK(pair.step(random, 3)); // events are made once
    calls_left[call] = nth;
    for (int i = 0; i < 4; i++)
        CHECK(pair.step(random, i == 2 ? 5 : 1));
    const bool thrown = std::exchange(calls_left[call], 0) == 0;
    CHECK(pair.same_caches());
    CHECK_EQ(stats().device_lost, thrown ? 1U : 0U);
    CHECK(!thrown || stats().n_replays > 0);
    CHECK_EQ(xlm_device_recover(), XLM_OK);
    CHECK_EQ(xlm_device_reset_stats(), XLM_OK);
    CHECK(pair.step(random, 1));
    CHECK(memory().used_bytes > 0);
    check_books();
    return thrown;
}

void test_throws() {
    for (int call = 0; call < kCalls; call++) {
        int n_thrown = 0;
        for (int nth : {1, 2, 3, 5, 8, 13})
            n_thrown += throw_at(static_cast<Call>(call), nth);
        CHECK(n_thrown > 0);
    }
}

} // namespace

int main(int argc, char ** argv) {
    put_throws_in();
    constexpr Case cases[] = {{"throws", test_throws}};
    return run_cases(argc, argv, cases);
}
