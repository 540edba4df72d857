#include "groups.hpp"

#include <random>

namespace kit {

std::vector<ModelSpec> small_models(bool quick) {
    ModelSpec base;
    if (quick) {
        base.n_embd = 256;
        base.n_head = 4;
        base.n_head_kv = 2;
        base.n_ff = 512;
        base.n_layer = 3;
        base.n_vocab = 1024;
    }
    std::vector<ModelSpec> models;
    for (ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_F16, GGML_TYPE_Q4_K}) {
        models.push_back(base);
        models.back().type = type;
        models.back().name = std::string("dense-") + ggml_type_name(type) + (quick ? "-quick" : "");
    }
    models.push_back(base);
    models.back().name = std::string("experts-q4_0") + (quick ? "-quick" : "");
    models.back().n_ff = 256;
    models.back().n_expert = quick ? 8 : 16;
    models.back().n_expert_used = quick ? 2 : 4;
    return models;
}

ModelSpec large_model(bool quick) {
    if (quick) return small_models(true).front();
    ModelSpec spec; // the layers of an 8-billion-parameter model, half as many
    spec.name = "dense-q4_0-large";
    spec.n_embd = 4096;
    spec.n_head = 32;
    spec.n_head_kv = 8;
    spec.n_ff = 14336;
    spec.n_layer = 16;
    spec.n_vocab = 32000;
    return spec;
}

void make_models(Context & c) {
    for (const ModelSpec & spec : small_models(c.options.quick))
        make_model(spec, c.options.models);
    make_model(large_model(c.options.quick), c.options.models);
}

std::vector<llama_token> random_tokens(size_t n, uint32_t n_vocab, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<llama_token> tokens(n);
    for (llama_token & token : tokens)
        token = static_cast<llama_token>(random() % n_vocab);
    return tokens;
}

Script make_script(uint32_t n_vocab, size_t n_prompt, size_t n_continuation) {
    return {random_tokens(n_prompt, n_vocab, 1), random_tokens(n_continuation, n_vocab, 2)};
}

std::vector<float> run_script(Session & session, const Script & script) {
    std::vector<float> logits;
    session.clear();
    session.decode(script.prompt, true);
    session.append_logits(logits);
    for (llama_token token : script.continuation) {
        session.decode({token}, true);
        session.append_logits(logits);
    }
    return logits;
}

void guarded(Context & c, const std::string & name, const std::function<void()> & check) {
    if (c.deadline.passed()) {
        c.report.not_run(name, "no time left");
        return;
    }
    try {
        check();
    } catch (const std::exception & error) {
        c.report.add(name, Verdict::error, {{"why", error.what()}});
    }
}

} // namespace kit
