// The layout of the scratch, and the pointers that are swapped while a segment is submitted.
#include "planner.hpp"

namespace xlm {

// What a segment needs is uploaded before its first node runs, so its place is taken from there on.
bool Planner::lay_out() {
    if (!plan_.uses_device) return true;
    std::vector<ScratchItem> items = scratch_items(info_, on_device_);
    for (const Segment & segment : plan_.segments)
        for (int r : segment.needs)
            items[static_cast<size_t>(r)].first = std::min(items[static_cast<size_t>(r)].first, segment.first);
    append_expert_items(items, [&](size_t g) { return group_at(info_.experts[g].first) >= 0; });
    if (info_.vision)
        fit_to_spans(info_, segment_spans(), plan_.tile_patches, items);
    else
        plan_.pack = pack_inputs(info_, on_device_, items);
    const ScratchLayout layout = layout_of(items);
    if (info_.vision) exact_scratch_bytes_[plan_.tile_patches] = layout.peak_bytes;
    if (!cache_.place_scratch(layout.peak_bytes)) {
        plan_.uses_device = false;
        plan_.stream_order.clear();
        return false;
    }
    plan_.again.scratch_bytes = layout.peak_bytes;
    make_shadows(items, layout);
    place_slot_ids(layout);
    if (info_.vision) place_tiles(layout);
    return true;
}

std::vector<PatchSpan> Planner::segment_spans() const {
    std::vector<PatchSpan> spans;
    for (const Segment & segment : plan_.segments)
        spans.push_back({segment.first, segment.last, segment.by_rows || !segment.on_device ? -1 : segment.run});
    return spans;
}

// Segments that are computed some patches at a time.
void Planner::place_tiles(const ScratchLayout & layout) {
    for (size_t s = 0; s < plan_.segments.size(); s++) {
        Segment & segment = plan_.segments[s];
        if (segment.run < 0 || segment.by_rows || !segment.on_device) continue;
        const PatchRun & run = info_.runs[static_cast<size_t>(segment.run)];
        const PatchTiles tiles(run, plan_.tile_patches);
        if (tiles.n_tiles > 1 || run.embeds) segment.tile_units = tiles.units;
        segment.embeds = run.embeds;
        segment.tile_offset = layout.offsets[info_.roots.size() + info_.experts.size() + s];
    }
}

void Planner::make_shadows(const std::vector<ScratchItem> & items, const ScratchLayout & layout) {
    plan_.shadows.resize(info_.roots.size());
    for (size_t r = 0; r < info_.roots.size(); r++)
        if (items[r].first >= 0) make_shadow(r, layout.offsets[r]);
    for (const InputPack::Member & member : plan_.pack.members)
        make_shadow(static_cast<size_t>(member.root),
                    layout.offsets[static_cast<size_t>(plan_.pack.carrier)] + member.offset);
}

void Planner::make_shadow(size_t r, uint64_t offset) {
    ggml_tensor & shadow = plan_.shadows[r] = *info_.roots[r].tensor;
    shadow.buffer = cache_.scratch().get();
    shadow.data = cache_.scratch().base() + offset;
    shadow.extra = nullptr;
}

void Planner::place_slot_ids(const ScratchLayout & layout) {
    for (size_t g = 0; g < info_.experts.size(); g++) {
        const ExpertGroup & group = info_.experts[g];
        ExpertPlace & place = plan_.experts[g];
        place.offset = layout.offsets[info_.roots.size() + g];
        place.slot_ids = *group.ids;
        ggml_tensor & ids = place.slot_ids;
        ids.op = GGML_OP_NONE;
        ids.view_src = nullptr;
        ids.view_offs = 0;
        std::fill(std::begin(ids.src), std::end(ids.src), nullptr);
        ids.nb[1] = ids.nb[0] * group.n_used;
        ids.nb[2] = ids.nb[3] = ids.nb[1] * group.n_tokens;
        ids.buffer = cache_.scratch().get();
        ids.data = cache_.scratch().base() + place.offset + expert_scratch(group).slot_ids;
    }
}

void Planner::patch(Segment & segment) {
    patched_.clear();
    for (int i = segment.first; i <= segment.last; i++) {
        ggml_tensor * node = graph_.nodes[i];
        // A view computes nothing: it is patched for who reads it, if that happens in this segment. What it views may
        // have no place on the device now.
        if (info_.nodes[static_cast<size_t>(i)].view) continue;
        patch_self(segment, node);
        const ExpertMatmul * matmul = expert_matmul(segment, i);
        for (ggml_tensor *& slot : node->src)
            if (slot && !(matmul && patch_expert_source(segment, *matmul, slot))) patch_source(segment, slot);
    }
}

const ExpertMatmul * Planner::expert_matmul(const Segment & segment, int i) const {
    if (segment.experts < 0) return nullptr;
    for (const ExpertMatmul & matmul : info_.experts[static_cast<size_t>(segment.experts)].matmuls)
        if (matmul.node == i) return &matmul;
    return nullptr;
}

// The matrix becomes that of the slots, the ids those of slots: one tensor for all, as fused kernels expect.
// Without slots the node itself is never submitted.
bool Planner::patch_expert_source(Segment & segment, const ExpertMatmul & matmul, ggml_tensor *& slot) {
    const ExpertGroup & group = info_.experts[static_cast<size_t>(segment.experts)];
    ExpertState & state = *group.sublayer->experts;
    const bool matrix = slot == matmul.weight->tensor;
    if (!matrix && slot != group.ids) return false;
    if (matrix && !state.slots) return true;
    ggml_tensor * slot_ids = &plan_.experts[static_cast<size_t>(segment.experts)].slot_ids;
    segment.sources.push_back({&slot, matrix ? &state.compact[matmul.index] : slot_ids});
    return true;
}

void Planner::patch_source(Segment & segment, ggml_tensor *& slot) {
    const Root & root = root_of(slot);
    ggml_tensor * shadow = root.weight ? &root.weight->shadow : root.state ? &root.state->shadow : nullptr;
    if (shadow && !slot->view_src)
        segment.sources.push_back({&slot, shadow});
    else if (root.weight)
        segment.sources.push_back({&slot, view_of_weight(segment, slot, shadow)});
    else
        patch_self(segment, slot);
}

// A view of a weight may be shared by graphs too (made when the model was loaded).
ggml_tensor * Planner::view_of_weight(Segment & segment, const ggml_tensor * view, ggml_tensor * shadow) {
    plan_.view_shadows.push_back(*view);
    ggml_tensor * copy = &plan_.view_shadows.back();
    segment.data.push_back({copy, shadow, view->view_offs, true});
    return copy;
}

void Planner::patch_self(Segment & segment, ggml_tensor * tensor) {
    const Root & root = root_of(tensor);
    if (root.state && tensor->view_src && patched_.insert(tensor).second)
        segment.data.push_back({tensor, &root.state->shadow, tensor->view_offs, true});
    if (root.cls != RootClass::activation) return;
    const size_t r = static_cast<size_t>(&root - info_.roots.data());
    if (!placed(static_cast<int>(r)) || !patched_.insert(tensor).second) return;
    // Some devices find a view by what it views. Made in another segment, that still lies on the host here.
    const bool made_here = root.producer >= segment.first && root.producer <= segment.last;
    const bool view_of_base = tensor->view_src && !made_here;
    segment.data.push_back({tensor, &plan_.shadows[r], tensor->view_src ? tensor->view_offs : 0, view_of_base});
}

const Root & Planner::root_of(const ggml_tensor * tensor) {
    if (root_index_.empty())
        for (size_t r = 0; r < info_.roots.size(); r++)
            root_index_[info_.roots[r].tensor] = r;
    return info_.roots[root_index_.at(tensor->view_src ? tensor->view_src : tensor)];
}

} // namespace xlm
