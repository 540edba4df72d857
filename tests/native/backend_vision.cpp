// A toy vision tower on XLM0 over the virtual GPU against the same tower on the CPU: equal bits, while budgets
// change without a pause.
#include "backend/core.hpp"
#include "backend_cases.hpp"
#include "backend_storm.hpp"

#include <algorithm>
#include <functional>

using namespace toy;

namespace {

constexpr int kTowerLayers = 3, kPatch = 96, kPatches = 800; // a mask of 1.2 MiB: attention goes in tiles
constexpr int kPixels = 2, kAcross = 40, kDown = 20;         // of a patch of the picture, and patches of the picture
constexpr size_t kPictureBytes = sizeof(float) * 3 * kPixels * kAcross * kPixels * kDown;
constexpr uint64_t kPlenty = 32 << 20;

struct TowerLayer {
    ggml_tensor *norm, *q, *k, *v, *o, *ffn_norm, *up, *down;
};

class Tower {
public:
    Tower(bool on_xlm, uint32_t seed) : on_xlm_(on_xlm), random_(seed) {
        weights_context_.reset(ggml_init({ggml_tensor_overhead() * 64, nullptr, true}));
        patch_ = make(GGML_TYPE_F16, kPatch, kEmbd, "v.patch_embd.weight");
        for (ggml_tensor *& kernel : kernels_)
            kernel = ggml_new_tensor_4d(weights_context_.get(), GGML_TYPE_F16, kPixels, kPixels, 3, kEmbd);
        ggml_set_name(kernels_[0], "v.patch_embd.weight.1");
        ggml_set_name(kernels_[1], "v.patch_embd.weight.2");
        for (int il = 0; il < kTowerLayers; il++)
            layers_.push_back(make_layer("v.blk." + std::to_string(il) + "."));
        projector_ = make(GGML_TYPE_F16, kEmbd, kEmbd, "mm.input_projection.weight");
        uint32_t id = 0;
        if (on_xlm) CHECK_EQ(xlm_device_model_begin("tower", &id), XLM_OK);
        weights_.reset(ggml_backend_alloc_ctx_tensors_from_buft(
            weights_context_.get(), on_xlm ? static_cast<ggml_backend_buffer_type_t>(xlm_device_host_buffer_type())
                                           : ggml_backend_cpu_buffer_type()));
        ggml_backend_buffer_set_usage(weights_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        for (ggml_tensor * t = ggml_get_first_tensor(weights_context_.get()); t;
             t = ggml_get_next_tensor(weights_context_.get(), t))
            fill(t);
        if (on_xlm) CHECK_EQ(xlm_device_model_end(id), XLM_OK);
        auto device = static_cast<ggml_backend_dev_t>(xlm_device_ggml_device());
        backend_.reset(on_xlm ? ggml_backend_dev_init(device, nullptr) : ggml_backend_cpu_init());
        if (!on_xlm) ggml_backend_cpu_set_n_threads(backend_.get(), kThreads);
        allocator_.reset(
            ggml_gallocr_new(on_xlm ? ggml_backend_dev_buffer_type(device) : ggml_backend_cpu_buffer_type()));
    }

    // What the tower makes of `pixels`; `window` patches see each other. The same graph as often as there is something
    // to be done before it.
    std::vector<float> encode(const std::vector<float> & pixels, int window,
                              const std::vector<std::function<void()>> & before = {[] {}}) {
        Owned<ggml_context> context(ggml_init({ggml_tensor_overhead() * 512 + ggml_graph_overhead(), nullptr, true}));
        ggml_cgraph * graph = ggml_new_graph(context.get());
        ggml_tensor * image = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kPatch, kPatches);
        ggml_tensor * picture = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, kPixels * kAcross, kPixels * kDown, 3);
        ggml_tensor * order = ggml_new_tensor_1d(context.get(), GGML_TYPE_I32, kPatches);
        ggml_tensor * mask = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, kPatches, kPatches);
        for (ggml_tensor * input : {image, picture, order, mask})
            ggml_set_input(input);
        ggml_tensor * result = build(context.get(), graph, image, picture, order, mask);
        ggml_set_output(result);
        ggml_build_forward_expand(graph, result);
        CHECK(ggml_gallocr_alloc_graph(allocator_.get(), graph));
        std::vector<float> values(static_cast<size_t>(ggml_nelements(result)));
        for (const auto & prepare : before) {
            prepare();
            ggml_backend_tensor_set(image, pixels.data(), 0, pixels.size() * sizeof(float));
            set_picture(picture, pixels);
            set_order(order);
            set_mask(mask, window);
            CHECK_EQ(ggml_backend_graph_compute(backend_.get(), graph), GGML_STATUS_SUCCESS);
            ggml_backend_tensor_get(result, values.data(), 0, ggml_nbytes(result));
        }
        return values;
    }

private:
    ggml_tensor * make(ggml_type type, int64_t ne0, int64_t ne1, const std::string & name) {
        ggml_tensor * tensor = ne1 == 1 ? ggml_new_tensor_1d(weights_context_.get(), type, ne0)
                                        : ggml_new_tensor_2d(weights_context_.get(), type, ne0, ne1);
        ggml_set_name(tensor, name.c_str());
        return tensor;
    }

    TowerLayer make_layer(const std::string & prefix) {
        return {make(GGML_TYPE_F32, kEmbd, 1, prefix + "ln1.weight"),
                make(GGML_TYPE_F16, kEmbd, kEmbd, prefix + "attn_q.weight"),
                make(GGML_TYPE_F16, kEmbd, kEmbd, prefix + "attn_k.weight"),
                make(GGML_TYPE_F16, kEmbd, kEmbd, prefix + "attn_v.weight"),
                make(GGML_TYPE_Q8_0, kEmbd, kEmbd, prefix + "attn_out.weight"),
                make(GGML_TYPE_F32, kEmbd, 1, prefix + "ln2.weight"),
                make(GGML_TYPE_F16, kEmbd, kFfn, prefix + "ffn_up.weight"),
                make(GGML_TYPE_Q8_0, kFfn, kEmbd, prefix + "ffn_down.weight")};
    }

    void fill(ggml_tensor * tensor) {
        std::normal_distribution<float> normal(tensor->ne[1] == 1 ? 1.0F : 0.0F, 0.15F);
        std::vector<float> values(static_cast<size_t>(ggml_nelements(tensor)));
        for (float & value : values)
            value = normal(random_);
        std::vector<char> bytes(ggml_nbytes(tensor));
        if (tensor->type == GGML_TYPE_F32)
            std::memcpy(bytes.data(), values.data(), bytes.size());
        else
            ggml_quantize_chunk(tensor->type, values.data(), bytes.data(), 0, ggml_nrows(tensor), tensor->ne[0],
                                nullptr);
        ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
    }

    static ggml_tensor * heads_of(ggml_context * context, ggml_tensor * x) {
        return ggml_permute(context, ggml_reshape_3d(context, x, kHeadDim, kHeads, kPatches), 0, 2, 1, 3);
    }

    static ggml_tensor * attention(ggml_context * context, const TowerLayer & layer, ggml_tensor * x,
                                   ggml_tensor * mask) {
        ggml_tensor * q = heads_of(context, ggml_mul_mat(context, layer.q, x));
        ggml_tensor * k = ggml_cast(context, heads_of(context, ggml_mul_mat(context, layer.k, x)), GGML_TYPE_F16);
        ggml_tensor * v = ggml_cast(context, heads_of(context, ggml_mul_mat(context, layer.v, x)), GGML_TYPE_F16);
        ggml_tensor * mixed = ggml_flash_attn_ext(context, q, k, v, mask, 0.2F, 0.0F, 0.0F);
        return ggml_mul_mat(context, layer.o, ggml_reshape_2d(context, mixed, kEmbd, kPatches));
    }

    // As in Qwen2-VL: two kernels over one picture.
    ggml_tensor * embed(ggml_context * context, ggml_tensor * picture) {
        ggml_tensor * made[2];
        for (size_t i = 0; i < 2; i++)
            made[i] = ggml_conv_2d(context, kernels_[i], picture, kPixels, kPixels, 0, 0, 1, 1);
        ggml_tensor * sum = ggml_reshape_2d(context, ggml_add(context, made[0], made[1]), kPatches, kEmbd);
        return ggml_cont(context, ggml_transpose(context, sum));
    }

    ggml_tensor * build(ggml_context * context, ggml_cgraph * graph, ggml_tensor * image, ggml_tensor * picture,
                        ggml_tensor * order, ggml_tensor * mask) {
        ggml_tensor * x = ggml_mul_mat(context, patch_, image);
        x = ggml_get_rows(context, ggml_add(context, x, embed(context, picture)), order);
        ggml_tensor * half = ggml_cast(context, mask, GGML_TYPE_F16);
        for (const TowerLayer & layer : layers_) {
            ggml_tensor * y = ggml_mul(context, ggml_rms_norm(context, x, 1e-5F), layer.norm);
            x = ggml_add(context, x, attention(context, layer, y, half));
            y = ggml_mul(context, ggml_rms_norm(context, x, 1e-5F), layer.ffn_norm);
            y = ggml_gelu(context, ggml_mul_mat(context, layer.up, y));
            x = ggml_add(context, x, ggml_mul_mat(context, layer.down, y));
        }
        ggml_build_forward_expand(graph, x);
        // As in Gemma 3: the transposed view stands at the end of another sub-layer's segment.
        ggml_tensor * turned = ggml_cont(context, ggml_transpose(context, projector_));
        return ggml_get_rows(context, ggml_mul_mat(context, turned, x), order);
    }

    static void set_picture(ggml_tensor * picture, const std::vector<float> & pixels) {
        std::vector<float> values(kPictureBytes / sizeof(float));
        std::copy_n(pixels.begin(), values.size(), values.begin());
        ggml_backend_tensor_set(picture, values.data(), 0, kPictureBytes);
    }

    static void set_order(ggml_tensor * order) {
        std::vector<int32_t> rows(kPatches);
        for (int i = 0; i < kPatches; i++)
            rows[static_cast<size_t>(i)] = kPatches - 1 - i;
        ggml_backend_tensor_set(order, rows.data(), 0, rows.size() * sizeof(int32_t));
    }

    static void set_mask(ggml_tensor * mask, int window) {
        std::vector<float> values(size_t{kPatches} * kPatches, -INFINITY);
        for (int q = 0; q < kPatches; q++)
            for (int k = q / window * window; k < std::min(kPatches, (q / window + 1) * window); k++)
                values[static_cast<size_t>(q) * kPatches + static_cast<size_t>(k)] = 0.0F;
        ggml_backend_tensor_set(mask, values.data(), 0, values.size() * sizeof(float));
    }

    bool on_xlm_;
    std::mt19937 random_;
    Owned<ggml_context> weights_context_;
    Owned<ggml_backend_buffer> weights_;
    ggml_tensor *patch_, *projector_, *kernels_[2];
    std::vector<TowerLayer> layers_;
    Owned<ggml_backend> backend_;
    Owned<ggml_gallocr> allocator_;
};

void place_each(const std::vector<uint8_t> & placement, uint64_t ring_bytes) {
    const xlm_tier_schedule tier{sizeof(xlm_tier_schedule), UINT32_MAX, placement.data(), 0, 0};
    xlm_schedule schedule{};
    schedule.struct_size = sizeof schedule;
    schedule.n_tiers = schedule.n_vision_tiers = 1;
    schedule.tiers = schedule.vision_tiers = &tier;
    schedule.n_sublayers = static_cast<uint32_t>(placement.size());
    schedule.ring_bytes = schedule.vision_ring_bytes = ring_bytes;
    CHECK_EQ(xlm_device_set_schedule(&schedule), XLM_OK);
}

void place_tower(uint8_t place, uint64_t ring_bytes) {
    place_each(std::vector<uint8_t>(xlm_device_sublayer_count(), place), ring_bytes);
}

// Layers on the device, what is outside of them on the CPU.
void place_layers_only() {
    std::vector<uint8_t> placement;
    for (uint32_t i = 0; i < xlm_device_sublayer_count(); i++) {
        xlm_sublayer_info info{};
        info.struct_size = sizeof info;
        CHECK_EQ(xlm_device_sublayer(i, &info), XLM_OK);
        placement.push_back(info.kind == XLM_KIND_PROJECTOR ? XLM_PLACE_CPU : XLM_PLACE_RESIDENT);
    }
    place_each(placement, 64 << 10);
}

std::vector<float> some_pixels(std::mt19937 & random) {
    std::normal_distribution<float> normal(0.0F, 1.0F);
    std::vector<float> pixels(size_t{kPatch} * kPatches);
    for (float & pixel : pixels)
        pixel = normal(random);
    return pixels;
}

struct Towers {
    Tower plain{false, 1}, device{true, 1};
    std::vector<float> pixels, expected;

    Towers(uint32_t seed, int window) : window_(window) {
        std::mt19937 random(seed);
        pixels = some_pixels(random);
        expected = plain.encode(pixels, window);
    }
    bool same() { return same_bits(device.encode(pixels, window_), expected); }

private:
    int window_;
};

void test_every_placement_and_budget() {
    Towers towers(1, 40);
    for (uint8_t place : {XLM_PLACE_CPU, XLM_PLACE_STREAM, XLM_PLACE_RESIDENT}) {
        place_tower(place, 64 << 10);
        for (uint64_t budget : {kPlenty, uint64_t{4 << 20}, uint64_t{2 << 20}, uint64_t{1 << 20}, uint64_t{0}}) {
            set_budget(budget);
            CHECK(towers.same());
            CHECK(memory().used_bytes <= budget);
        }
    }
    CHECK(stats().n_attention_tiles > 0);
    CHECK(stats().n_patch_tiles > 0);
    CHECK_EQ(memory().over_budget_events, uint64_t{0});
}

// Two kernels read the picture, some rows at a time: it is sent once, unless the ring has no room for both of them.
void test_picture_is_sent_once() {
    Towers towers(6, 40);
    const uint64_t image_bytes = sizeof(float) * kPatch * kPatches;
    for (const uint64_t ring_bytes : {64 << 10, 5 << 10}) {
        for (const uint8_t place : {XLM_PLACE_RESIDENT, XLM_PLACE_STREAM}) {
            set_budget(0); // drops the ring
            set_budget(kPlenty);
            place_tower(place, ring_bytes);
            const uint64_t before = stats().bytes_activations_up;
            CHECK(towers.same());
            const uint64_t sent = stats().bytes_activations_up - before;
            const bool apart = place == XLM_PLACE_STREAM && ring_bytes == 5 << 10;
            CHECK(sent >= image_bytes + kPictureBytes);
            CHECK_EQ(sent >= image_bytes + 2 * kPictureBytes, apart);
        }
    }
}

// A view of a weight whose copy was dropped, in a segment that runs on the device: nothing may touch that copy.
void test_view_of_a_dropped_weight() {
    Towers towers(5, 40);
    set_budget(kPlenty);
    for (int i = 0; i < 5; i++) {
        place_tower(XLM_PLACE_RESIDENT, 64 << 10);
        CHECK(towers.same());
        set_budget(0);
        set_budget(kPlenty);
        place_layers_only();
        const uint64_t before = stats().n_segments_device;
        CHECK(towers.same());
        CHECK(stats().n_segments_device > before);
    }
}

// Every image comes to its end, with the same bits, whatever comes between its sub-layers.
void test_storm_of_budgets() {
    for (const uint64_t ring_bytes : {64 << 10, 5 << 10}) {
        for (const int window : {40, kPatches}) {
            Towers towers(2, window);
            const Storm storm;
            for (int i = 0; i < 8; i++) {
                place_tower(i % 2 ? XLM_PLACE_RESIDENT : XLM_PLACE_STREAM, ring_bytes);
                CHECK(towers.same());
            }
        }
    }
}

void test_request_at_every_border() {
    Towers towers(4, 60);
    const Pester pester;
    const uint64_t before = stats().n_attention_tiles;
    for (const uint8_t place : {XLM_PLACE_RESIDENT, XLM_PLACE_STREAM}) {
        place_tower(place, 5 << 10);
        for (int i = 0; i < 3; i++)
            CHECK(towers.same());
    }
    CHECK(stats().n_attention_tiles > before);
}

// What of a patch embedding or of attention in tiles was computed before a reclaim is not computed again.
void test_parts_are_kept() {
    Towers towers(4, 60);
    set_budget(kPlenty);
    place_tower(XLM_PLACE_RESIDENT, 64 << 10);
    CHECK(towers.same());
    const auto parts_of_an_image = [&] {
        const xlm_stats before = stats();
        CHECK(towers.same());
        const xlm_stats after = stats();
        return std::make_pair(after.n_patch_tiles - before.n_patch_tiles,
                              after.n_attention_tiles - before.n_attention_tiles);
    };
    const auto alone = parts_of_an_image();
    CHECK(alone.first > 1);
    CHECK(alone.second > 1);
    const uint64_t interrupted = stats().bytes_activations_down;
    CHECK(towers.same());
    const uint64_t brought_home = stats().bytes_activations_down - interrupted;
    const Pester pester;
    bool kept = false;
    for (int i = 0; i < 50 && !(kept && i >= 5); i++) {
        const uint64_t before = stats().bytes_activations_down;
        CHECK(parts_of_an_image() == alone);
        kept |= stats().bytes_activations_down - before > brought_home;
    }
    CHECK(kept); // some of them gave way
}

// A budget that comes back in the middle of an image is used for the rest of it, and by the next one from the start.
void test_return_of_the_budget() {
    Towers towers(6, 40);
    place_tower(XLM_PLACE_RESIDENT, 64 << 10);
    for (bool returned = false; !returned;) {
        set_budget(0);
        const uint64_t on_cpu = stats().n_segments_cpu, on_device = stats().n_segments_device;
        std::thread game([&] {
            while (stats().n_segments_cpu == on_cpu)
                std::this_thread::yield();
            set_budget(kPlenty);
        });
        CHECK(towers.same());
        game.join();
        returned = stats().n_segments_device > on_device; // else the image was over before the thread ran
    }
    const uint64_t on_cpu = stats().n_segments_cpu, fallbacks = stats().n_fallback_cpu;
    CHECK(towers.same());
    CHECK_EQ(stats().n_fallback_cpu, fallbacks);
    CHECK(stats().n_segments_cpu - on_cpu <= 2); // the mask is made there
}

void set_pace(uint64_t n_bytes, uint64_t ns) {
    xlm::core().upload_pace = xlm::Pace();
    xlm::core().upload_pace.learn(n_bytes, ns);
}

// The image before left pieces to queue, as its link had no time for any that nobody waited for: one for the CPU alone,
// in the same phase, queues none of them.
void test_the_cpu_alone_leaves_the_ring() {
    Towers towers(8, 40);
    set_budget(kPlenty);
    place_tower(XLM_PLACE_STREAM, 64 << 10);
    for (int i = 0; i < 2; i++) {
        set_pace(1, 1'000'000'000);
        CHECK(towers.same());
    }
    const uint64_t streamed = stats().bytes_streamed;
    CHECK(streamed > 0);
    place_tower(XLM_PLACE_CPU, 64 << 10);
    CHECK(memory().ring_bytes > 0);
    set_pace(1'000'000'000, 1);
    CHECK(towers.same());
    CHECK_EQ(stats().bytes_streamed, streamed);
}

void settle_all() {
    for (uint32_t more = 1; more != 0;)
        CHECK_EQ(xlm_device_settle(UINT64_MAX, &more), XLM_OK);
}

uint64_t uploaded_bytes() {
    return stats().bytes_resident_uploaded;
}

// The copies of a tower that is announced are there when its graph comes; nothing is known of the first image's.
void test_announced() {
    Towers towers(7, 40);
    set_budget(kPlenty);
    place_tower(XLM_PLACE_RESIDENT, 64 << 10);
    CHECK_EQ(xlm_device_begin_vision(), XLM_OK);
    settle_all();
    CHECK_EQ(memory().used_bytes, uint64_t{0});
    CHECK(towers.same());
    CHECK_EQ(xlm_device_end_vision(), XLM_OK);
    const uint64_t peak = memory().peak_used_bytes;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(memory().used_bytes, uint64_t{0});
        CHECK_EQ(xlm_device_begin_vision(), XLM_OK);
        const uint64_t before = uploaded_bytes();
        settle_all();
        const uint64_t ahead = uploaded_bytes();
        CHECK(ahead > before);
        CHECK(towers.same());
        CHECK_EQ(uploaded_bytes(), ahead);
        CHECK_EQ(xlm_device_end_vision(), XLM_OK);
    }
    CHECK_EQ(memory().peak_used_bytes, peak);
}

// Where everything is resident its plan is taken again, wherever the scratch lies by then; under another budget or
// schedule a new one is made.
void test_planned_once() {
    Towers towers(9, 40);
    set_budget(kPlenty);
    place_tower(XLM_PLACE_RESIDENT, 64 << 10);
    uint64_t plans = 0;
    const auto anew = [&](bool wanted) {
        CHECK_EQ(stats().n_plans > plans, wanted);
        plans = stats().n_plans;
        CHECK_EQ(xlm_device_end_vision(), XLM_OK);
    };
    const auto first = [] {};
    const auto announced = [&] { // copies come first, so the scratch lies behind them
        anew(plans == 0);
        CHECK_EQ(xlm_device_begin_vision(), XLM_OK);
        settle_all();
    };
    const auto poor = [&] { anew(false), set_budget(1 << 20); };
    const auto rich = [&] { anew(true), set_budget(kPlenty); };
    const auto again = [&] { anew(true); };
    const auto streamed = [&] { anew(false), place_tower(XLM_PLACE_STREAM, 64 << 10); };
    const auto resident = [&] { anew(true), place_tower(XLM_PLACE_RESIDENT, 64 << 10); };
    const std::vector<std::function<void()>> all = {first, announced, announced, poor,     rich,
                                                    again, announced, streamed,  resident, again};
    CHECK(same_bits(towers.device.encode(towers.pixels, 40, all), towers.expected));
    CHECK_EQ(memory().over_budget_events, uint64_t{0});
}

// What was announced may be taken away, or never come.
void test_announced_in_vain() {
    Towers towers(8, 40);
    place_tower(XLM_PLACE_RESIDENT, 64 << 10);
    for (const uint64_t budget : {uint64_t{0}, uint64_t{1 << 20}, kPlenty}) {
        set_budget(kPlenty);
        CHECK(towers.same()); // the last image decides what is announced
        CHECK_EQ(xlm_device_end_vision(), XLM_OK);
        CHECK_EQ(xlm_device_begin_vision(), XLM_OK);
        settle_all();
        CHECK(memory().resident_bytes > 0);
        set_budget(budget);
        CHECK(memory().used_bytes <= budget);
        if (budget != kPlenty) CHECK(towers.same());
        CHECK_EQ(xlm_device_end_vision(), XLM_OK);
        CHECK_EQ(memory().used_bytes, uint64_t{0});
    }
    CHECK_EQ(memory().over_budget_events, uint64_t{0});
}

} // namespace

int main(int argc, char ** argv) {
    constexpr Case cases[] = {
        {"budgets", test_every_placement_and_budget},
        {"picture", test_picture_is_sent_once},
        {"views", test_view_of_a_dropped_weight},
        {"storm", test_storm_of_budgets},
        {"pestered", test_request_at_every_border},
        {"kept", test_parts_are_kept},
        {"return", test_return_of_the_budget},
        {"announced", test_announced},
        {"planned_once", test_planned_once},
        {"in_vain", test_announced_in_vain},
        {"cpu_alone", test_the_cpu_alone_leaves_the_ring},
    };
    return run_cases(argc, argv, cases);
}
