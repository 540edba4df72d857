// What steps leave behind, the KV cache above all: which bytes a graph reads and writes, on their way to the
// device and home.
#include "executor.hpp"

#include <algorithm>

namespace xlm {

namespace {

constexpr size_t kWritesAtOnce = 24; // K and V of twelve layers

int64_t row_index(const ggml_tensor * ids, int64_t i) {
    const char * at = static_cast<const char *>(ids->data) + static_cast<size_t>(i) * ids->nb[0];
    if (ids->type == GGML_TYPE_I32) return *reinterpret_cast<const int32_t *>(at);
    return *reinterpret_cast<const int64_t *>(at);
}

// Which bytes of its root a node writes. One row a token in the common case.
void written_ranges(const ggml_tensor * node, const ggml_tensor * ids, RangeSet & ranges) {
    const size_t base = node->view_src ? node->view_offs : 0;
    const bool plain = ids && ggml_nelements(ids) == ids->ne[0] && node->src[0]->ne[2] * node->src[0]->ne[3] == 1;
    if (!plain) return ranges.add({base, base + ggml_nbytes(node)});
    const size_t row_bytes = ggml_row_size(node->type, node->ne[0]);
    for (int64_t i = 0; i < ids->ne[0]; i++) {
        const size_t begin = base + static_cast<size_t>(row_index(ids, i)) * node->nb[1];
        ranges.add({begin, begin + row_bytes});
    }
}

bool in_ring(const Segment & segment, const State & state) {
    return std::any_of(segment.pieces.begin(), segment.pieces.end(), [&](const Streamed & piece) {
        return std::find(piece.states.begin(), piece.states.end(), &state) != piece.states.end();
    });
}

} // namespace

// Row indices are read before the graph runs: their memory is used for other things later.
void Executor::read_state_rows(const ggml_cgraph & graph, const GraphInfo & info) {
    state_ranges_.assign(info.state_writes.size(), {});
    for (size_t w = 0; w < info.state_writes.size(); w++) {
        const StateWrite & write = info.state_writes[w];
        // Layers share their indices: most writes cover the rows of the one before.
        written_ranges(graph.nodes[write.node], write.ids, state_ranges_[w]);
    }
    for (const Root & root : info.roots)
        if (root.state) root.state->touched = root.reads;
    for (size_t w = 0; w < info.state_writes.size(); w++)
        info.roots[static_cast<size_t>(info.state_writes[w].root)].state->touched.add(state_ranges_[w]);
}

// Only what the graph touches: the rest of a KV cache may be far larger, and is read by nobody.
WorkAhead::Fed Executor::upload_state(State & state, Gate * gate) {
    RangeSet wanted;
    {
        const std::lock_guard<std::mutex> lock(state.dirty_mutex);
        wanted = state.dirty.take(state.touched);
    }
    for (const ByteRange & range : wanted.ranges()) {
        const WorkAhead::Fed fed = ahead_.upload(state.shadow, state.tensor->data, range.begin, range.end, gate);
        if (fed != WorkAhead::Fed::done) {
            for (const ByteRange & again : wanted.ranges())
                state.mark_dirty(again);
            return fed;
        }
        core_.stats.bytes_kv_up += range.size();
    }
    return WorkAhead::Fed::done;
}

bool Executor::download_rows(State & state, const RangeSet & rows, Stream stream) {
    for (const ByteRange & range : rows.ranges()) {
        char * data = static_cast<char *>(state.tensor->data) + range.begin;
        if (!core_.inner.get(stream, &state.shadow, data, range.begin, range.size())) return false;
        core_.stats.bytes_kv_written_back += range.size();
    }
    return true;
}

State & Executor::state_of(const GraphInfo & info, int write) {
    return *info.roots[static_cast<size_t>(info.state_writes[static_cast<size_t>(write)].root)].state;
}

// KV rows go home while the next sub-layers compute, those of some sub-layers together: each transfer wakes
// somebody. Where the host is about to read a router's ids they wait, and go behind those (send_rows_home).
// State that a replay would read must stay as it was until the graph is through; caches in the ring are not
// such (plan_kv.cpp), and cannot wait.
bool Executor::write_back(const GraphInfo & info, Plan & plan, const Segment & segment, bool ids_near) {
    bool waits = false;
    for (int w : segment.state_writes) {
        State & state = state_of(info, w);
        if (!in_ring(segment, state)) {
            state.unflushed.add(state_ranges_[static_cast<size_t>(w)]);
            unflushed_writes_.push_back(w);
            continue;
        }
        if (!waits && ahead_.newest() && !core_.inner.wait(Stream::download, ahead_.newest())) return false;
        waits = true;
        if (!download_rows(state, state_ranges_[static_cast<size_t>(w)], Stream::download)) return false;
    }
    const size_t at_once = segment.sends_home ? 1 : kWritesAtOnce;
    if (!info.replayable || ids_near || unflushed_writes_.size() < at_once || !ahead_.newest()) return true;
    return core_.inner.wait(Stream::download, ahead_.newest()) && flush_writes(info, Stream::download) &&
           (!segment.sends_home || send_results(info, plan, segment));
}

// The download stream waits for them already. Where they go on the host is theirs from the node on that makes them.
bool Executor::send_results(const GraphInfo & info, Plan & plan, const Segment & segment) {
    for (int r : segment.writes)
        if (info.roots[static_cast<size_t>(r)].escapes && !fetch_root(info, plan, r, Stream::download)) return false;
    return true;
}

// The device was idle since they were written.
bool Executor::send_rows_home(const GraphInfo & info) {
    return !info.replayable || flush_writes(info, Stream::download);
}

// Each write by itself: their union may cover bytes between them that the device does not have.
bool Executor::flush_writes(const GraphInfo & info, Stream stream) {
    host_state_changed_ |= !unflushed_writes_.empty();
    for (int w : unflushed_writes_)
        if (!download_rows(state_of(info, w), state_ranges_[static_cast<size_t>(w)], stream)) return false;
    for (int w : unflushed_writes_)
        state_of(info, w).unflushed.clear();
    unflushed_writes_.clear();
    return true;
}

} // namespace xlm
