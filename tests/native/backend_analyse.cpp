// What is read out of a graph: sub-layers, borders, escapes, lifetimes. No device, no data.
#include "backend_check.hpp"

#include "backend/analyse.hpp"
#include "backend/graph_print.hpp"
#include "backend/input_pack.hpp"

#include "ggml-impl.h"
#include "ggml.h"

#include <algorithm>
#include <map>
#include <memory>

using namespace xlm;

namespace {

struct FreeContext {
    void operator()(ggml_context * context) const { ggml_free(context); }
};

// Two layers' worth of x -> norm -> scale -> matrix, with a table lookup in front.
struct Chain : Resolver {
    std::unique_ptr<ggml_context, FreeContext> context{ggml_init({size_t{1} << 20, nullptr, true})};
    std::map<const ggml_tensor *, Weight> weights;
    SubLayer table, small, attention, ffn;
    ggml_tensor *ids, *x, *norm_a, *scaled_a, *mul_a, *residual, *norm_b, *scaled_b, *mul_b;
    ggml_cgraph * graph = nullptr;
    RootClass classify(const ggml_tensor * root, Weight *& weight, State *&) override {
        const auto it = weights.find(root);
        if (it == weights.end()) return RootClass::activation;
        weight = &it->second;
        return RootClass::weight;
    }
    bool device_supports(const ggml_tensor *) override { return true; }
    uint64_t device_bytes(const ggml_tensor * root) override { return ggml_nbytes(root); }

    ggml_tensor * weight(SubLayer & sublayer, int64_t ne1) {
        ggml_tensor * tensor = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 8, ne1);
        weights[tensor].tensor = tensor;
        weights[tensor].sublayer = &sublayer;
        return tensor;
    }

    Chain() {
        ggml_context * c = context.get();
        table.kind = XLM_KIND_LOOKUP;
        small.kind = XLM_KIND_SMALL;
        attention.kind = XLM_KIND_ATTENTION;
        ffn.kind = XLM_KIND_FFN;
        ids = ggml_new_tensor_1d(c, GGML_TYPE_I32, 3);
        x = ggml_get_rows(c, weight(table, 16), ids);
        norm_a = ggml_rms_norm(c, x, 1e-5F);
        scaled_a = ggml_mul(c, norm_a, weight(small, 1));
        mul_a = ggml_mul_mat(c, weight(attention, 8), scaled_a);
        residual = ggml_add(c, mul_a, x);
        norm_b = ggml_rms_norm(c, residual, 1e-5F);
        scaled_b = ggml_mul(c, norm_b, weight(small, 1));
        mul_b = ggml_mul_mat(c, weight(ffn, 8), scaled_b);
        graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, mul_b);
    }

    int node(const ggml_tensor * tensor) const {
        for (int i = 0; i < ggml_graph_n_nodes(graph); i++)
            if (ggml_graph_node(graph, i) == tensor) return i;
        return -1;
    }
};

const Root & root_of(const GraphInfo & info, const ggml_tensor * tensor) {
    for (const Root & root : info.roots)
        if (root.tensor == tensor) return root;
    std::fprintf(stderr, "no such root\n");
    std::exit(1);
}

void test_borders_stand_behind_the_norm() {
    Chain chain;
    const GraphInfo info = analyse_graph(*chain.graph, chain);
    CHECK_EQ(info.units.size(), size_t{2});
    CHECK(info.units[0].sublayer == &chain.attention && info.units[1].sublayer == &chain.ffn);
    CHECK_EQ(info.units[0].last, chain.node(chain.scaled_b));
    CHECK_EQ(info.units[1].first, chain.node(chain.mul_b));
    CHECK_EQ(info.units[1].last, chain.node(chain.mul_b));
    CHECK_EQ(info.n_tokens, 3U);
    CHECK(info.replayable);
}

void test_tables_stay_on_the_host() {
    Chain chain;
    const GraphInfo info = analyse_graph(*chain.graph, chain);
    CHECK(info.nodes[static_cast<size_t>(chain.node(chain.x))].cpu_only);
    CHECK(!info.nodes[static_cast<size_t>(chain.node(chain.mul_a))].cpu_only);
    CHECK(!root_of(info, chain.ids).escapes);
    CHECK_EQ(info.inputs.size(), size_t{1});
}

void test_escapes_are_sinks_and_outputs() {
    Chain chain;
    CHECK(!root_of(analyse_graph(*chain.graph, chain), chain.residual).escapes);
    ggml_set_output(chain.residual);
    const GraphInfo info = analyse_graph(*chain.graph, chain);
    CHECK(root_of(info, chain.residual).escapes);
    CHECK(root_of(info, chain.mul_b).escapes); // nobody reads it here
    CHECK(!root_of(info, chain.mul_a).escapes);
}

// A piece of a larger graph: what the rest of it reads must survive.
void test_pieces_keep_what_others_read() {
    Chain chain;
    ggml_cgraph piece = *chain.graph;
    piece.n_nodes = chain.node(chain.residual) + 1;
    const GraphInfo info = analyse_graph(piece, chain);
    CHECK(root_of(info, chain.residual).escapes);
    CHECK(!root_of(info, chain.scaled_a).escapes);
}

std::vector<uint8_t> all_but_the_look_up(const Chain & chain, const GraphInfo & info) {
    std::vector<uint8_t> on_device(info.nodes.size(), 1);
    on_device[static_cast<size_t>(chain.node(chain.x))] = 0;
    return on_device;
}

void test_lifetimes_leave_room_for_fused_kernels() {
    Chain chain;
    const GraphInfo info = analyse_graph(*chain.graph, chain);
    const std::vector<uint8_t> all = all_but_the_look_up(chain, info);
    const std::vector<ScratchItem> items = scratch_items(info, all);
    for (size_t r = 0; r < items.size(); r++) {
        const Root & root = info.roots[r];
        if (root.cls == RootClass::weight || root.tensor == chain.ids) CHECK_EQ(items[r].first, -1);
        // ADD + RMS_NORM + MUL run as one: what the first reads must outlive what the last writes.
        if (root.tensor == chain.mul_a) CHECK(items[r].last >= chain.node(chain.scaled_b));
        if (root.tensor == chain.x) CHECK_EQ(items[r].first, chain.node(chain.norm_a));
    }
}

// Of a cache only the cells that are read count, however large it is.
struct Cached : Chain {
    State cache;
    ggml_tensor *cells, *stored, *rows;

    Cached() {
        ggml_context * c = context.get();
        cells = ggml_new_tensor_2d(c, GGML_TYPE_F32, 8, 64);
        cache.tensor = cells;
        rows = ggml_new_tensor_1d(c, GGML_TYPE_I64, 3);
        stored = ggml_set_rows(c, cells, mul_b, rows);
        ggml_tensor * seen = ggml_view_2d(c, cells, 8, 16, cells->nb[1], 4 * cells->nb[1]);
        graph = ggml_new_graph(c);
        ggml_build_forward_expand(graph, stored);
        ggml_build_forward_expand(graph, ggml_mul_mat(c, seen, mul_b));
    }
    RootClass classify(const ggml_tensor * root, Weight *& weight, State *& state) override {
        if (root != cells) return Chain::classify(root, weight, state);
        state = &cache;
        return RootClass::state;
    }
};

void test_reads_of_a_state() {
    Cached chain;
    const GraphInfo info = analyse_graph(*chain.graph, chain);
    const std::vector<ByteRange> & reads = root_of(info, chain.cells).reads.ranges();
    const size_t row = chain.cells->nb[1];
    CHECK_EQ(reads.size(), size_t{1});
    CHECK(reads[0] == (ByteRange{4 * row, 20 * row}));
    CHECK_EQ(info.state_writes.size(), size_t{1});
    CHECK(info.state_writes[0].ids == chain.rows);
}

size_t index_of(const GraphInfo & info, const ggml_tensor * tensor) {
    return static_cast<size_t>(&root_of(info, tensor) - info.roots.data());
}

// What the host has whole before the device begins goes up together, whoever made it.
void test_small_inputs_are_packed() {
    Cached chain;
    const GraphInfo info = analyse_graph(*chain.graph, chain);
    const std::vector<uint8_t> all = all_but_the_look_up(chain, info);
    const std::vector<ScratchItem> apart = scratch_items(info, all);
    std::vector<ScratchItem> items = apart;
    const size_t rows = index_of(info, chain.rows), x = index_of(info, chain.x);
    const InputPack pack = pack_inputs(info, all, items);
    CHECK_EQ(pack.members.size(), size_t{2});
    CHECK(pack.holds(static_cast<int>(rows)) && pack.holds(static_cast<int>(x)));
    CHECK_EQ(pack.carrier, static_cast<int>(rows)); // the smallest
    CHECK_EQ(pack.members[1].offset, uint64_t{256});
    CHECK_EQ(items[rows].bytes, uint64_t{512});
    CHECK_EQ(items[rows].first, std::min(apart[rows].first, apart[x].first));
    CHECK_EQ(items[rows].last, std::max(apart[rows].last, apart[x].last));
    CHECK_EQ(items[x].first, -1);
    CHECK(items[index_of(info, chain.residual)].first >= 0);
}

void test_large_inputs_go_alone() {
    Cached chain;
    const GraphInfo info = analyse_graph(*chain.graph, chain);
    const std::vector<uint8_t> all = all_but_the_look_up(chain, info);
    std::vector<ScratchItem> items = scratch_items(info, all);
    items[index_of(info, chain.x)].bytes = 64 << 10;
    CHECK(pack_inputs(info, all, items).members.empty());
    CHECK(items[index_of(info, chain.x)].first >= 0 && items[index_of(info, chain.rows)].first >= 0);
}

// From the middle of a step on, what was computed before is on the host.
void test_a_later_start_packs_what_is_there_by_then() {
    Cached chain;
    const GraphInfo info = analyse_graph(*chain.graph, chain);
    std::vector<uint8_t> rest(info.nodes.size(), 0);
    for (size_t i = static_cast<size_t>(chain.node(chain.norm_b)); i < rest.size(); i++)
        rest[i] = 1;
    std::vector<ScratchItem> items = scratch_items(info, rest);
    const InputPack pack = pack_inputs(info, rest, items);
    CHECK(pack.holds(static_cast<int>(index_of(info, chain.residual))));
    CHECK(!pack.holds(static_cast<int>(index_of(info, chain.x))));     // read before
    CHECK(!pack.holds(static_cast<int>(index_of(info, chain.mul_b)))); // made on the device
}

// Built anew in the same place it is known again; whatever reading it looks at makes it another one.
void test_a_graph_is_known_again() {
    Cached chain;
    const GraphPrint print(*chain.graph);
    CHECK(print.matches(*chain.graph));
    const auto other_with = [&](auto && change) {
        const ggml_tensor add = *chain.residual, ids = *chain.ids, cells = *chain.cells;
        change();
        const bool other = !print.matches(*chain.graph);
        *chain.residual = add, *chain.ids = ids, *chain.cells = cells;
        CHECK(print.matches(*chain.graph));
        return other;
    };
    CHECK(other_with([&] { chain.residual->op = GGML_OP_SUB; }));
    CHECK(other_with([&] { chain.residual->op_params[3] = 1; }));
    CHECK(other_with([&] { chain.residual->src[1] = chain.mul_a; }));
    CHECK(other_with([&] { ggml_set_output(chain.residual); }));
    CHECK(other_with([&] { chain.ids->ne[0] = 2; }));
    CHECK(other_with([&] { chain.ids->data = &chain; }));
    CHECK(other_with([&] { chain.cells->nb[1] *= 2; }));
    ggml_cgraph shorter = *chain.graph;
    shorter.n_nodes--;
    CHECK(!print.matches(shorter));
    ggml_build_forward_expand(chain.graph, ggml_scale(chain.context.get(), chain.residual, 2));
    ggml_cgraph read_elsewhere = *chain.graph;
    read_elsewhere.n_nodes--;
    CHECK(!print.matches(read_elsewhere));
    const Cached twin;
    CHECK(!print.matches(*twin.graph)); // elsewhere
}

} // namespace

int main() {
    test_borders_stand_behind_the_norm();
    test_tables_stay_on_the_host();
    test_escapes_are_sinks_and_outputs();
    test_pieces_keep_what_others_read();
    test_lifetimes_leave_room_for_fused_kernels();
    test_reads_of_a_state();
    test_small_inputs_are_packed();
    test_large_inputs_go_alone();
    test_a_later_start_packs_what_is_there_by_then();
    test_a_graph_is_known_again();
    std::puts("ok");
}
