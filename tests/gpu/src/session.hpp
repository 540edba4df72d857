// One model and one context of llama.cpp on the CPU, on the raw device (stock), or on XLM0.
#pragma once

#include "inner_device.hpp"
#include "xlm.hpp"

#include "llama.h"

#include <memory>
#include <string>
#include <vector>

namespace kit {

struct Shape {
    uint32_t n_ctx = 512;
    uint32_t n_ubatch = 64;
    uint32_t threads = 1;
};

class Session {
public:
    // Each throws std::runtime_error when the model does not load or the context does not fit.
    static std::unique_ptr<Session> on_cpu(const std::string & model, const Shape & shape);
    static std::unique_ptr<Session> on_device(const std::string & model, const Shape & shape,
                                              const InnerDevice & device);
    static std::unique_ptr<Session> on_xlm(const std::string & model, const Shape & shape, Xlm & xlm);

    // One step of at most n_ubatch tokens that continue the sequence. `all_logits`: rows for every token, else the
    // last. Throws std::runtime_error when llama_decode fails.
    void decode(const std::vector<llama_token> & tokens, bool all_logits);
    // Appends the logits of the last step's rows to `out`.
    void append_logits(std::vector<float> & out) const;
    void clear();                       // forgets the sequence
    std::vector<uint8_t> state() const; // KV of the sequence as llama.cpp serializes it

    uint32_t n_vocab() const { return n_vocab_; }
    uint32_t n_past() const { return n_past_; }
    uint32_t room() const { return llama_n_ctx(context_.get()) - n_past_; }

private:
    Session(const std::string & model, const Shape & shape, ggml_backend_dev_t device, Xlm * xlm);
    void load(const std::string & path, ggml_backend_dev_t device);
    void make_context(const Shape & shape);

    Xlm * xlm_ = nullptr;
    uint32_t model_id_ = 0;
    std::unique_ptr<llama_model, void (*)(llama_model *)> model_{nullptr, llama_model_free};
    std::unique_ptr<llama_context, void (*)(llama_context *)> context_{nullptr, llama_free};
    uint32_t n_vocab_ = 0;
    uint32_t n_past_ = 0;
    uint32_t rows_ = 0; // logits rows of the last step
};

// Only warnings and errors of ggml and llama.cpp reach stderr.
void quiet_logs();

} // namespace kit
