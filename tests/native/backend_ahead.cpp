// What streams is queued in slices, as far as the link is thought to have time: counted in bytes and by order. Where
// time counts, the pace is one at which no test can run long enough to matter, or one at which no copy takes any.
#include "backend/core.hpp"
#include "backend_cases.hpp"

#include <algorithm>
#include <vector>

using namespace toy;

namespace {

constexpr uint64_t kPlenty = 32 << 20;
constexpr uint64_t kSlice = xlm::Ahead::kLeastSlice;
constexpr double kForeverNs = 1e9; // for a byte
constexpr double kAtOnceNs = 1e-9; // for a byte
constexpr uint64_t kSliceNs = kSlice * 1'000'000'000;

// A ring on the device, over tensors of its own.
struct Rig {
    static constexpr int64_t kRowBytes = 4096;

    explicit Rig(size_t n_bytes) {
        set_budget(kPlenty);
        context.reset(ggml_init({n_bytes + ggml_tensor_overhead() * 16, nullptr, false}));
        owner.index = 0;
    }
    ~Rig() { ring.drop(); }

    ggml_tensor * tensor(int64_t n_bytes) {
        ggml_tensor * made = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kRowBytes / 4, n_bytes / kRowBytes);
        for (int64_t i = 0; i < ggml_nelements(made); i++)
            static_cast<uint32_t *>(made->data)[i] = random();
        return made;
    }
    xlm::Streamed weight(xlm::Weight & of, int64_t n_bytes) {
        of.tensor = tensor(n_bytes);
        of.shadow = *of.tensor;
        of.sublayer = &owner;
        return {&of, 0, 0, ggml_nbytes(of.tensor), {}};
    }
    void state(xlm::State & of, int64_t n_bytes, std::vector<xlm::ByteRange> touched) {
        of.tensor = tensor(n_bytes);
        of.shadow = *of.tensor;
        of.sublayer = &owner;
        of.device_bytes = ggml_nbytes(of.tensor);
        for (const xlm::ByteRange & range : touched)
            of.touched.add(range);
    }
    bool begin(const std::vector<xlm::Streamed> & order, uint64_t n_slices_ahead, bool held = false) {
        CHECK(ring.ensure(8 << 20, order.front().bytes, xlm::core().ledger.view()));
        return ring.begin(order, pace, n_slices_ahead * kSliceNs, held, 0);
    }
    // Of the bytes that are queued, those on the device.
    bool there(const ggml_tensor & shadow, const ggml_tensor & host, xlm::ByteRange range) {
        std::vector<char> bytes(range.size());
        CHECK(inner.synchronize(xlm::Stream::upload));
        CHECK(inner.get(xlm::Stream::download, &shadow, bytes.data(), range.begin, range.size()));
        CHECK(inner.synchronize(xlm::Stream::download));
        return std::memcmp(bytes.data(), static_cast<const char *>(host.data) + range.begin, range.size()) == 0;
    }

    std::mt19937 random{41};
    xlm::Inner & inner = xlm::core().inner;
    xlm::Stats stats;
    xlm::Ring ring{inner, stats};
    xlm::Pace pace{kForeverNs};
    Owned<ggml_context> context;
    xlm::SubLayer owner;
};

void test_weights_go_in_slices() {
    xlm::Weight first, second; // outlive the ring
    Rig rig(8 << 20);
    const std::vector<xlm::Streamed> order = {rig.weight(first, 2 << 20), rig.weight(second, 1 << 20)};
    CHECK(rig.begin(order, 3));
    CHECK_EQ(rig.stats.bytes_streamed.get(), 3 * kSlice);
    CHECK(rig.ring.acquire(&order[0], 1)); // all of what is waited for, nothing of the other one
    CHECK_EQ(rig.stats.bytes_streamed.get(), order[0].bytes);
    CHECK(rig.there(first.shadow, *first.tensor, {0, order[0].bytes}));
    CHECK(rig.ring.retire(1));
    CHECK_EQ(rig.stats.bytes_streamed.get(), order[0].bytes + 3 * kSlice);
    CHECK_EQ(rig.stats.n_pieces_streamed.get(), uint64_t{2});
    CHECK(rig.ring.acquire(&order[1], 1));
    CHECK(rig.there(second.shadow, *second.tensor, {0, order[1].bytes}));
    CHECK(rig.ring.retire(1)); // into the next step
    CHECK_EQ(rig.stats.bytes_streamed.get(), order[0].bytes + order[1].bytes + 3 * kSlice);
}

// Of the bytes that a graph touches, those of one tensor behind those of the other.
void test_caches_go_in_slices() {
    xlm::State keys, values;
    Rig rig(8 << 20);
    const xlm::ByteRange of_keys{0, 2 * kSlice + 77}, of_values{kSlice / 2, 5 * kSlice};
    rig.state(keys, 1 << 20, {of_keys});
    rig.state(values, 1 << 20, {of_values});
    const std::vector<xlm::Streamed> order = {{nullptr, 0, 0, 2 << 20, {&keys, &values}}};
    CHECK(rig.begin(order, 4));
    CHECK_EQ(rig.stats.bytes_kv_streamed.get(), 4 * kSlice);
    CHECK(rig.ring.acquire(order.data(), 1));
    CHECK_EQ(rig.stats.bytes_kv_streamed.get(), of_keys.size() + of_values.size());
    CHECK(rig.there(keys.shadow, *keys.tensor, of_keys));
    CHECK(rig.there(values.shadow, *values.tensor, of_values));
    CHECK(rig.ring.retire(1)); // never into the next step
    CHECK_EQ(rig.stats.bytes_kv_streamed.get(), of_keys.size() + of_values.size());
}

void test_what_is_held_back_goes_as_far_as_granted() {
    xlm::State keys;
    Rig rig(8 << 20);
    rig.state(keys, 2 << 20, {{0, 2 << 20}});
    const std::vector<xlm::Streamed> order = {{nullptr, 0, 0, 2 << 20, {&keys}}};
    CHECK(rig.begin(order, 6, true));
    CHECK_EQ(rig.stats.bytes_kv_streamed.get(), uint64_t{0});
    CHECK(rig.ring.grant(2 * kSliceNs, false));
    CHECK_EQ(rig.stats.bytes_kv_streamed.get(), 2 * kSlice);
    CHECK(rig.ring.grant(kSliceNs, false));
    CHECK_EQ(rig.stats.bytes_kv_streamed.get(), 3 * kSlice);
    rig.ring.hold(true);
    CHECK(rig.ring.retire(0));
    CHECK_EQ(rig.stats.bytes_kv_streamed.get(), 3 * kSlice);
    rig.ring.hold(false);
    CHECK(rig.ring.retire(0));
    CHECK_EQ(rig.stats.bytes_kv_streamed.get(), 6 * kSlice); // no more than a reclaim may wait for
}

// Learned, so that no copy of the step itself can teach another one at once.
void set_pace(double ns_per_byte) {
    xlm::core().upload_pace = xlm::Pace();
    const uint64_t n_bytes = ns_per_byte < 1 ? 1'000'000'000 : 1;
    xlm::core().upload_pace.learn(n_bytes, std::max<uint64_t>(1, static_cast<uint64_t>(ns_per_byte)));
}

// -- steps of the toy model ---------------------------------------------------------------

std::vector<uint8_t> placement(uint8_t others, uint8_t experts) {
    std::vector<uint8_t> result(xlm_device_sublayer_count(), others);
    for (uint32_t i = 0; i < result.size(); i++) {
        xlm_sublayer_info info{};
        info.struct_size = sizeof info;
        CHECK_EQ(xlm_device_sublayer(i, &info), XLM_OK);
        if (info.kind == XLM_KIND_EXPERTS) result[i] = experts;
    }
    return result;
}

// Of a layer that has experts before it.
bool is_later_attention(int32_t index) {
    xlm_sublayer_info info{};
    info.struct_size = sizeof info;
    CHECK_EQ(xlm_device_sublayer(static_cast<uint32_t>(index), &info), XLM_OK);
    return info.kind == XLM_KIND_ATTENTION && info.layer > 0;
}

// Uploads for attention with other work given to the device between them and the attention.
int count_ahead(const std::vector<xlm_trace_event> & events) {
    int n = 0;
    for (size_t i = 0; i < events.size(); i++) {
        const int32_t owner = events[i].sublayer;
        if (events[i].kind != XLM_TRACE_UPLOAD || !is_later_attention(owner)) continue;
        const auto given = std::find_if(events.begin() + static_cast<std::ptrdiff_t>(i), events.end(),
                                        [](const auto & event) { return event.kind == XLM_TRACE_DEVICE; });
        n += given != events.end() && given->sublayer != owner;
    }
    return n;
}

// In steps by one graph, whose plan is taken again.
int count_ahead_of_steps(toy::Pair & pair, std::mt19937 & random, int n_steps) {
    constexpr uint32_t kEvents = 1 << 14;
    const std::vector<int32_t> tokens = some_tokens(random, 1);
    CHECK_EQ(xlm_device_trace(kEvents), XLM_OK);
    CHECK(same_bits(pair.plain.steps(tokens, n_steps), pair.device.steps(tokens, n_steps)));
    uint64_t lost = 0;
    const int n = count_ahead(read_trace(kEvents, lost));
    CHECK_EQ(lost, uint64_t{0});
    CHECK_EQ(xlm_device_trace(0), XLM_OK);
    return n;
}

// Experts are near all the way: nothing goes ahead but in the lulls, as they were in the steps before.
void test_lulls_beside_experts_are_used() {
    Moe form;
    form.n_experts = 12;
    form.n_used = 3;
    toy::Pair pair(5, 3, false, form);
    std::mt19937 random(6);
    set_budget(kPlenty);
    const xlm_expert_policy uploaded{sizeof(xlm_expert_policy), 0, 1000, 0, 0, 0, 0, 0};
    const std::vector<xlm_expert_policy> policies(xlm_device_sublayer_count(), uploaded);
    set_placements(placement(XLM_PLACE_STREAM_KV, XLM_PLACE_STREAM), 1 << 20, 0, policies.data());
    CHECK(pair.step(random, 1)); // the small tensors come
    set_pace(kForeverNs);
    CHECK_EQ(count_ahead_of_steps(pair, random, 16), 0);
    set_pace(kAtOnceNs);
    CHECK(count_ahead_of_steps(pair, random, 64) > 0);
    CHECK(pair.same_caches());
    CHECK_EQ(stats().n_fallback_cpu, uint64_t{0});
}

// The step before left pieces to queue: one for the CPU alone queues none, and does not meet a device that is lost.
void test_a_step_for_the_cpu_alone_leaves_the_ring() {
    toy::Pair pair(7, 3, false);
    std::mt19937 random(8);
    set_budget(kPlenty);
    set_two_tiers(1, placement(XLM_PLACE_CPU, XLM_PLACE_CPU), placement(XLM_PLACE_STREAM, XLM_PLACE_STREAM), 256 << 10);
    for (int i = 0; i < 2; i++) {
        set_pace(kForeverNs);
        CHECK(pair.step(random, 4));
    }
    const xlm_stats before = stats();
    CHECK(before.bytes_streamed > 0);
    set_pace(kAtOnceNs);
    CHECK(pair.step(random, 1));
    CHECK_EQ(stats().bytes_streamed, before.bytes_streamed);
    CHECK_EQ(stats().n_segments_device, before.n_segments_device);
    CHECK_EQ(Sim::get().lose_device(0), XLM_OK);
    CHECK(pair.step(random, 1));
    CHECK_EQ(stats().n_replays, before.n_replays);
    CHECK(pair.same_caches());
    CHECK_EQ(Sim::get().restore_device(), XLM_OK);
    CHECK_EQ(xlm_device_recover(), XLM_OK);
}

constexpr Case kCases[] = {
    {"weights", test_weights_go_in_slices},
    {"caches", test_caches_go_in_slices},
    {"held", test_what_is_held_back_goes_as_far_as_granted},
    {"lulls", test_lulls_beside_experts_are_used},
    {"cpu_alone", test_a_step_for_the_cpu_alone_leaves_the_ring},
};

} // namespace

int main(int argc, char ** argv) {
    return run_cases(argc, argv, kCases);
}
