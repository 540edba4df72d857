#include "session.hpp"

#include <cstdio>
#include <stdexcept>

namespace kit {

namespace {

// A scope in which buffers created by this thread belong to a model of XLM0.
class Scope {
public:
    Scope(uint32_t id, xlm_status (*end)(uint32_t)) : id_(id), end_(end) {}
    ~Scope() { end_(id_); }
    Scope(const Scope &) = delete;
    Scope & operator=(const Scope &) = delete;

private:
    uint32_t id_;
    xlm_status (*end_)(uint32_t);
};

llama_batch fill(const std::vector<llama_token> & tokens, uint32_t n_past, bool all_logits, llama_batch batch) {
    batch.n_tokens = static_cast<int32_t>(tokens.size());
    for (size_t i = 0; i < tokens.size(); i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = static_cast<llama_pos>(n_past + i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = all_logits || i + 1 == tokens.size();
    }
    return batch;
}

} // namespace

std::unique_ptr<Session> Session::on_cpu(const std::string & model, const Shape & shape) {
    return std::unique_ptr<Session>(new Session(model, shape, nullptr, nullptr));
}

std::unique_ptr<Session> Session::on_device(const std::string & model, const Shape & shape,
                                            const InnerDevice & device) {
    return std::unique_ptr<Session>(new Session(model, shape, device.get(), nullptr));
}

std::unique_ptr<Session> Session::on_xlm(const std::string & model, const Shape & shape, Xlm & xlm) {
    auto device = static_cast<ggml_backend_dev_t>(xlm_device_ggml_device());
    if (!device) throw std::runtime_error("XLM0 is not open");
    return std::unique_ptr<Session>(new Session(model, shape, device, &xlm));
}

Session::Session(const std::string & model, const Shape & shape, ggml_backend_dev_t device, Xlm * xlm) : xlm_(xlm) {
    if (xlm_) {
        const xlm_status status = xlm_device_model_begin(model.c_str(), &model_id_);
        if (status != XLM_OK) throw XlmError("xlm_device_model_begin", status);
        const Scope scope(model_id_, xlm_device_model_end);
        load(model, device);
    } else {
        load(model, device);
    }
    if (xlm_) {
        const xlm_status status = xlm_device_context_begin(model_id_);
        if (status != XLM_OK) throw XlmError("xlm_device_context_begin", status);
        const Scope scope(model_id_, xlm_device_context_end);
        make_context(shape);
    } else {
        make_context(shape);
    }
}

void Session::load(const std::string & path, ggml_backend_dev_t device) {
    ggml_backend_dev_t devices[] = {device, nullptr};
    const llama_model_tensor_buft_override overrides[] = {
        {".*", xlm_ ? static_cast<ggml_backend_buffer_type_t>(xlm_device_host_buffer_type()) : nullptr},
        {nullptr, nullptr}};
    llama_model_params params = llama_model_default_params();
    params.devices = devices;
    params.n_gpu_layers = device ? 999 : 0;
    params.use_extra_bufts = false; // repacked weights round differently
    params.load_mode = LLAMA_LOAD_MODE_NONE;
    if (xlm_) params.tensor_buft_overrides = overrides;
    model_.reset(llama_model_load_from_file(path.c_str(), params));
    if (!model_) throw std::runtime_error("llama.cpp cannot load " + path);
    n_vocab_ = static_cast<uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())));
}

void Session::make_context(const Shape & shape) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = shape.n_ctx;
    params.n_batch = params.n_ubatch = shape.n_ubatch;
    params.n_seq_max = 1;
    params.n_threads = params.n_threads_batch = static_cast<int32_t>(shape.threads);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED; // the automatic probe decides by device: not comparable
    params.no_perf = true;
    context_.reset(llama_init_from_model(model_.get(), params));
    if (!context_) throw std::runtime_error("llama.cpp cannot make a context");
}

void Session::decode(const std::vector<llama_token> & tokens, bool all_logits) {
    if (xlm_) xlm_->begin_step(static_cast<uint32_t>(tokens.size()));
    llama_batch batch = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
    const int32_t status = llama_decode(context_.get(), fill(tokens, n_past_, all_logits, batch));
    llama_batch_free(batch);
    if (status != 0) throw std::runtime_error("llama_decode returned " + std::to_string(status));
    llama_synchronize(context_.get());
    n_past_ += static_cast<uint32_t>(tokens.size());
    rows_ = all_logits ? static_cast<uint32_t>(tokens.size()) : 1;
}

void Session::append_logits(std::vector<float> & out) const {
    const float * logits = llama_get_logits(context_.get());
    if (!logits) throw std::runtime_error("llama.cpp has no logits");
    out.insert(out.end(), logits, logits + size_t(rows_) * n_vocab_);
}

void Session::clear() {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    n_past_ = 0;
}

std::vector<uint8_t> Session::state() const {
    std::vector<uint8_t> data(llama_state_seq_get_size(context_.get(), 0));
    data.resize(llama_state_seq_get_data(context_.get(), data.data(), data.size(), 0));
    return data;
}

void quiet_logs() {
    llama_log_set(
        [](ggml_log_level level, const char * text, void *) {
            if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
}

} // namespace kit
