#include "registry.hpp"

#include "errors.hpp"

#include <algorithm>
#include <tuple>

namespace xlm {

namespace {

// Of a large matrix that is streamed: a millisecond or less on the link, and enough rows to keep a kernel busy.
constexpr uint64_t kPartBytes = 8 << 20;

// Which model buffers of this thread belong to; 0 outside of any scope.
thread_local uint32_t scope_model = 0;

bool is_weights(const HostBuffer & buffer) {
    return buffer.handle && ggml_backend_buffer_get_usage(buffer.handle) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
}

// Small group first, then layers in order, then what belongs to none.
auto sort_key(const SubLayer & sublayer) {
    const int group = sublayer.kind == XLM_KIND_SMALL ? 0 : sublayer.layer >= 0 ? 1 : 2;
    return std::make_tuple(sublayer.model_id, group, std::cref(sublayer.tower), sublayer.layer,
                           static_cast<int>(sublayer.kind));
}

} // namespace

Model & Registry::model_of(uint32_t id) {
    std::unique_ptr<Model> & model = models_[id];
    if (!model) {
        model = std::make_unique<Model>();
        model->id = id;
    }
    return *model;
}

uint32_t Registry::begin_model(const char * name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Model & model = model_of(next_model_++);
    model.name = name ? name : "";
    scope_model = model.id;
    return model.id;
}

void Registry::begin_context(uint32_t model_id) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!models_.count(model_id)) throw ApiError(XLM_ERR_INVALID_ARGUMENT, "no model " + std::to_string(model_id));
    scope_model = model_id;
}

void Registry::end_scope(uint32_t model_id) {
    if (scope_model != model_id)
        throw ApiError(XLM_ERR_STATE, "model " + std::to_string(model_id) + " is not the one this thread began");
    scope_model = 0;
    const std::lock_guard<std::mutex> lock(mutex_);
    resolve_locked();
    for (HostBuffer * buffer : buffers_) {
        if (buffer->model_id != model_id || buffer->weights_type || is_weights(*buffer)) continue;
        for (const ggml_tensor * tensor : buffer->tensors)
            if (!states_.count(tensor) && !weights_.count(tensor)) make_state(*buffer, tensor);
    }
    drop_model_if_empty(model_id); // a load that failed
}

void Registry::add_buffer(HostBuffer * buffer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    buffer->model_id = scope_model;
    buffers_.push_back(buffer);
    model_of(buffer->model_id).n_buffers++;
}

void Registry::add_tensor(HostBuffer * buffer, const ggml_tensor * tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    buffer->tensors.push_back(tensor);
    unresolved_[tensor] = buffer;
}

void Registry::resolve_locked() {
    const size_t first = order_.size();
    for (HostBuffer * buffer : buffers_)
        resolve_buffer(*buffer);
    if (order_.size() > first) order_new(first);
}

void Registry::resolve_buffer(HostBuffer & buffer) {
    if (!is_weights(buffer)) return;
    Model & model = model_of(buffer.model_id);
    for (const ggml_tensor * tensor : buffer.tensors)
        if (unresolved_.erase(tensor)) add_weight(model, buffer, tensor);
}

void Registry::add_weight(Model & model, HostBuffer & buffer, const ggml_tensor * tensor) {
    if (states_.erase(tensor)) generation_++; // its buffer became a weights buffer only now
    TensorClass cls = classify_weight(tensor->name);
    if (is_token_embedding(tensor->name))
        cls.tower = "token_embd"; // apart from other look-ups: it may turn out to be the output
    SubLayer & sublayer = sublayer_for(model, cls);
    auto weight = std::make_unique<Weight>();
    weight->tensor = tensor;
    weight->home = &buffer;
    weight->sublayer = &sublayer;
    weight->shadow = *tensor;
    weight->shadow.extra = nullptr;
    weight->device_bytes = inner_.alloc_bytes(tensor);
    weight->offset = sublayer.device_bytes;
    sublayer.device_bytes += weight->device_bytes;
    sublayer.host_bytes += ggml_nbytes(tensor);
    // A plain matrix goes through the ring in parts where it has to; not one that rows are looked up in as well.
    const bool parts = tensor->ne[1] > 1 && tensor->ne[2] * tensor->ne[3] == 1 && !is_token_embedding(tensor->name);
    const uint64_t piece_bytes = parts ? std::min(weight->device_bytes, kPartBytes) : weight->device_bytes;
    sublayer.largest_piece_bytes = std::max(sublayer.largest_piece_bytes, piece_bytes);
    weights_[tensor] = weight.get();
    sublayer.weights.push_back(std::move(weight));
}

SubLayer & Registry::sublayer_for(Model & model, const TensorClass & cls) {
    const bool layered = cls.kind != XLM_KIND_SMALL;
    for (auto & sublayer : model.sublayers) {
        if (sublayer->closed || sublayer->kind != cls.kind) continue;
        if (!layered || (sublayer->layer == cls.layer && sublayer->tower == cls.tower)) return *sublayer;
    }
    auto sublayer = std::make_unique<SubLayer>();
    sublayer->model_id = model.id;
    sublayer->kind = cls.kind;
    if (layered) {
        sublayer->layer = cls.layer;
        sublayer->tower = cls.tower;
    }
    order_.push_back(sublayer.get());
    model.sublayers.push_back(std::move(sublayer));
    return *model.sublayers.back();
}

// New sub-layers go behind the old ones, so that known indices stay.
void Registry::order_new(size_t first) {
    for (size_t i = first; i < order_.size(); i++) {
        SubLayer & sublayer = *order_[i];
        if (sublayer.kind != XLM_KIND_LOOKUP) continue;
        const Model & model = model_of(sublayer.model_id);
        const auto has = [&](bool (*test)(std::string_view)) {
            for (auto & other : model.sublayers)
                for (auto & weight : other->weights)
                    if (test(weight->tensor->name)) return true;
            return false;
        };
        if (has(is_output_matrix) || !is_token_embedding(sublayer.weights.front()->tensor->name)) continue;
        sublayer.kind = XLM_KIND_OUTPUT;
        sublayer.tied = true;
        sublayer.seen_multiplied = false; // an embedding model has no output at all: a graph will tell
    }
    std::sort(order_.begin() + static_cast<std::ptrdiff_t>(first), order_.end(),
              [](const SubLayer * a, const SubLayer * b) { return sort_key(*a) < sort_key(*b); });
    reindex();
}

void Registry::reindex() {
    for (size_t i = 0; i < order_.size(); i++) {
        order_[i]->index = static_cast<uint32_t>(i);
        if (!order_[i]->closed) order_[i]->experts = make_expert_state(*order_[i]);
        order_[i]->closed = true;
    }
    for (auto & [id, model] : models_) {
        SubLayer * small = nullptr;
        for (auto & sublayer : model->sublayers)
            if (sublayer->kind == XLM_KIND_SMALL && !small) small = sublayer.get();
        bool vision = false;
        for (auto & sublayer : model->sublayers)
            vision |= sublayer->kind == XLM_KIND_PROJECTOR;
        for (auto & sublayer : model->sublayers) {
            sublayer->small_group = small;
            sublayer->vision = vision;
        }
    }
}

SubLayer * Registry::mixer_of(uint32_t model_id, int32_t layer) {
    auto it = models_.find(model_id);
    if (model_id == 0) // a context made outside of any scope: clear only where one model is loaded
        for (auto other = models_.begin(); other != models_.end(); ++other)
            if (other->first != 0) it = models_.size() <= 2 ? other : models_.end();
    if (layer < 0 || it == models_.end()) return nullptr;
    for (auto & sublayer : it->second->sublayers)
        if (sublayer->kind == XLM_KIND_ATTENTION && sublayer->layer == layer && sublayer->tower.empty())
            return sublayer.get();
    return nullptr;
}

State * Registry::make_state(HostBuffer & buffer, const ggml_tensor * tensor) {
    unresolved_.erase(tensor);
    auto state = std::make_unique<State>();
    state->tensor = tensor;
    state->home = &buffer;
    state->shadow = *tensor;
    state->shadow.extra = nullptr;
    state->device_bytes = inner_.alloc_bytes(tensor);
    state->dirty.add({0, ggml_nbytes(tensor)});
    state->sublayer = mixer_of(buffer.model_id, state_layer(tensor->name));
    if (state->sublayer) state->sublayer->states.push_back(state.get());
    State * result = state.get();
    states_[tensor] = std::move(state);
    return result;
}

Weight * Registry::find_weight(const ggml_tensor * root) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = weights_.find(root);
    if (it != weights_.end()) return it->second;
    const auto pending = unresolved_.find(root);
    if (pending == unresolved_.end() || !is_weights(*pending->second)) return nullptr;
    resolve_locked();
    return weights_[root];
}

State * Registry::known_state(const ggml_tensor * root) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = states_.find(root);
    return it == states_.end() ? nullptr : it->second.get();
}

State * Registry::find_state(const ggml_tensor * root) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = states_.find(root);
    if (it != states_.end()) return it->second.get();
    const auto pending = unresolved_.find(root);
    // A buffer of the weights type that is not marked yet is being loaded, not a state.
    if (pending == unresolved_.end() || pending->second->weights_type || is_weights(*pending->second)) return nullptr;
    return make_state(*pending->second, root);
}

void Registry::host_wrote(HostBuffer * buffer, const ggml_tensor * tensor, size_t offset, size_t bytes) {
    const ggml_tensor * root = tensor->view_src ? tensor->view_src : tensor;
    const size_t at =
        static_cast<size_t>(static_cast<const char *>(tensor->data) - static_cast<const char *>(root->data));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_weights(*buffer)) {
        if (weights_.count(root)) weights_changed_ = true;
        return;
    }
    const auto it = states_.find(root);
    if (it != states_.end()) it->second->mark_dirty({at + offset, at + offset + bytes});
}

void Registry::host_cleared(HostBuffer * buffer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (is_weights(*buffer)) weights_changed_ = true;
    for (const ggml_tensor * tensor : buffer->tensors) {
        const auto it = states_.find(tensor);
        if (it != states_.end()) it->second->mark_dirty({0, ggml_nbytes(tensor)});
    }
}

void Registry::forget(const ggml_tensor * tensor) {
    unresolved_.erase(tensor);
    if (const auto state = states_.find(tensor); state != states_.end()) {
        if (SubLayer * sublayer = state->second->sublayer) {
            auto & list = sublayer->states;
            list.erase(std::remove(list.begin(), list.end(), state->second.get()), list.end());
        }
        states_.erase(state);
    }
    if (const auto weight = weights_.find(tensor); weight != weights_.end()) {
        SubLayer & sublayer = *weight->second->sublayer;
        sublayer.copy.reset(); // the copy holds offsets of all its weights
        sublayer.uploaded = false;
        sublayer.begun_bytes = 0;
        sublayer.arrives = nullptr;
        sublayer.packed.clear();
        if (sublayer.experts) sublayer.experts->forget_slots();
        auto & list = sublayer.weights;
        list.erase(std::remove_if(list.begin(), list.end(), [&](auto & w) { return w->tensor == tensor; }), list.end());
        weights_.erase(weight);
    }
}

void Registry::remove_buffer(HostBuffer * buffer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = std::find(buffers_.begin(), buffers_.end(), buffer);
    if (at == buffers_.end()) return; // it could not be added
    buffers_.erase(at);
    if (!buffer->tensors.empty()) generation_++;
    for (const ggml_tensor * tensor : buffer->tensors)
        forget(tensor);
    model_of(buffer->model_id).n_buffers--;
    // Sub-layers without weights vanish with the model only: indices are stable until it ends.
    drop_model_if_empty(buffer->model_id);
}

void Registry::drop_model_if_empty(uint32_t model_id) {
    const auto it = models_.find(model_id);
    if (it == models_.end() || it->second->n_buffers > 0 || scope_model == model_id) return;
    const auto of_model = [&](const SubLayer * sublayer) { return sublayer->model_id == model_id; };
    order_.erase(std::remove_if(order_.begin(), order_.end(), of_model), order_.end());
    for (auto & [tensor, state] : states_)
        if (state->sublayer && of_model(state->sublayer)) state->sublayer = nullptr;
    models_.erase(it);
    generation_++;
    reindex();
}

uint32_t Registry::count() {
    const std::lock_guard<std::mutex> lock(mutex_);
    resolve_locked();
    return static_cast<uint32_t>(order_.size());
}

bool Registry::describe(uint32_t index, xlm_sublayer_info & info) {
    const std::lock_guard<std::mutex> lock(mutex_);
    resolve_locked();
    if (index >= order_.size()) return false;
    const SubLayer & sublayer = *order_[index];
    info.index = index;
    info.model_id = sublayer.model_id;
    info.layer = sublayer.layer;
    info.kind = sublayer.kind;
    info.n_tensors = static_cast<uint32_t>(sublayer.weights.size());
    info.device_bytes = sublayer.device_bytes;
    info.host_bytes = sublayer.host_bytes;
    info.largest_piece_bytes = sublayer.largest_piece_bytes;
    info.kv_device_bytes = 0;
    for (const State * state : sublayer.states)
        info.kv_device_bytes += state->device_bytes;
    if (!sublayer.experts || sublayer.weights.empty()) return true;
    info.n_experts = sublayer.experts->n_experts;
    info.expert_bytes = expert_bytes(sublayer);
    info.expert_overhead_bytes = slots_bytes(inner_, sublayer, 1) - info.expert_bytes;
    info.largest_expert_bytes = largest_expert_bytes(sublayer);
    return true;
}

bool Registry::describe_experts(uint32_t index, xlm_expert_info & info, float * share, uint32_t n_share) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (index >= order_.size()) return false;
    info.index = index;
    for (uint32_t e = 0; share && e < n_share; e++)
        share[e] = 0;
    if (!order_[index]->experts) return true;
    ExpertState & state = *order_[index]->experts;
    const std::lock_guard<std::mutex> reading(state.mutex);
    const ExpertReport & report = state.report;
    info.mode = report.mode;
    info.n_experts = state.n_experts;
    info.n_slots_wanted = report.n_slots_wanted;
    info.n_used = report.n_used, info.n_slots = report.n_slots, info.n_slots_filled = report.n_filled;
    info.slot_bytes = report.slot_bytes;
    info.n_steps = report.n_steps, info.n_tokens = report.n_tokens;
    info.n_hits = report.n_hits, info.n_misses = report.n_misses;
    info.n_cpu = report.n_cpu, info.n_passes = report.n_passes;
    info.bytes_uploaded = report.bytes_uploaded, info.bytes_saved = report.bytes_saved;
    for (uint32_t e = 0; share && e < std::min(n_share, state.n_experts); e++)
        share[e] = static_cast<float>(state.scores.share(e));
    return true;
}

void Registry::reset_expert_counters() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SubLayer * sublayer : order_) {
        if (!sublayer->experts) continue;
        const std::lock_guard<std::mutex> writing(sublayer->experts->mutex);
        ExpertReport & report = sublayer->experts->report;
        report.n_steps = report.n_tokens = report.n_hits = report.n_misses = report.n_cpu = report.n_passes = 0;
        report.bytes_uploaded = report.bytes_saved = 0;
    }
}

std::vector<SubLayer *> Registry::sublayers() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return order_;
}

std::vector<State *> Registry::states() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<State *> result;
    for (auto & [tensor, state] : states_)
        result.push_back(state.get());
    return result;
}

} // namespace xlm
