// Caches that go through the ring for a step. They have to lie still from the first node that writes or reads one of
// them to the last: all of these nodes are of one segment.
#include "planner.hpp"

namespace xlm {

namespace {

bool holds(const std::vector<State *> & states, const State * state) {
    return state && std::find(states.begin(), states.end(), state) != states.end();
}

} // namespace

// Calls with each root that a node reads or writes.
template <typename Visit>
static void each_root(const GraphInfo & info, const Node & node, Visit visit) {
    for (uint32_t s = 0; s < node.n_sources; s++)
        visit(info.roots[static_cast<size_t>(info.sources[node.first_source + s])]);
    if (node.root >= 0) visit(info.roots[static_cast<size_t>(node.root)]);
}

void Planner::find_kv_streams() {
    kv_streamed_.clear();
    for (UnitNeeds & needs : needs_)
        needs.kv = {};
    const auto wanted = [](const UnitNeeds & needs) { return needs.wanted == XLM_PLACE_STREAM_KV; };
    if (std::none_of(needs_.begin(), needs_.end(), wanted)) return;
    const StateUsers users = users_of_states();
    for (size_t u = 0; u < needs_.size(); u++) {
        if (!device_units_[u] || !wanted(needs_[u])) continue;
        needs_[u].kv = kv_stream_of(u, users);
        kv_streamed_.insert(needs_[u].kv.states.begin(), needs_[u].kv.states.end());
    }
}

// The unit that uses a state; -1: more than one does, as where layers share a cache.
Planner::StateUsers Planner::users_of_states() const {
    StateUsers users;
    for (const Node & node : info_.nodes) {
        if (node.view) continue;
        each_root(info_, node, [&](const Root & root) {
            if (!root.state) return;
            int & user = users.try_emplace(root.state, node.owner).first->second;
            if (user != node.owner) user = -1;
        });
    }
    return users;
}

// Nothing where a cache must stay after its segment: another unit reads it, or it is state that a replay would read.
KvStream Planner::kv_stream_of(size_t u, const StateUsers & users) const {
    KvStream kv;
    for (State * state : needs_[u].states) {
        if (state->copy) continue;
        if (users.at(state) != static_cast<int>(u)) return {};
        kv.states.push_back(state);
        kv.bytes += state->device_bytes;
    }
    for (const StateWrite & write : info_.state_writes)
        if (!write.ids && holds(kv.states, info_.roots[static_cast<size_t>(write.root)].state)) return {};
    find_span(u, kv);
    return kv.states.empty() || !span_is_whole(kv) ? KvStream{} : kv;
}

void Planner::find_span(size_t u, KvStream & kv) const {
    for (int i = std::max(info_.units[u].first, plan_.from); i <= info_.units[u].last; i++) {
        const Node & node = info_.nodes[static_cast<size_t>(i)];
        bool touches = false;
        if (!node.view) each_root(info_, node, [&](const Root & root) { touches |= holds(kv.states, root.state); });
        if (!touches) continue;
        if (kv.first < 0) kv.first = i;
        kv.last = i;
    }
}

// A segment of the span alone: all of it on the device, and no weights that would want the ring too.
bool Planner::span_is_whole(const KvStream & kv) const {
    if (kv.first < 0) return false;
    for (int i = kv.first; i <= kv.last; i++) {
        const Node & node = info_.nodes[static_cast<size_t>(i)];
        if (node.view) continue;
        bool streamed = false;
        each_root(info_, node, [&](const Root & root) { streamed |= root.weight && streams(root.weight); });
        if (node.cpu_only || streamed) return false;
    }
    return true;
}

// The cache whose first node is i.
const KvStream * Planner::kv_at(int i) const {
    if (kv_streamed_.empty() || !on_device_[static_cast<size_t>(i)]) return nullptr;
    const KvStream & kv = needs_[static_cast<size_t>(info_.nodes[static_cast<size_t>(i)].owner)].kv;
    return kv.first == i ? &kv : nullptr;
}

} // namespace xlm
