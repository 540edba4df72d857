// The groups of checks; each runs in a process of its own (main.cpp).
#pragma once

#include "compare.hpp"
#include "session.hpp"

#include "model_file.hpp"

#include <functional>
#include <vector>

namespace kit {

struct Context {
    const Options & options;
    Report & report;
    const Deadline & deadline;
};

void make_models(Context & c);       // checks nothing: writes the files that the others load
void check_environment(Context & c); // device, capabilities, memory a context costs
void check_lossless(Context & c);    // resident, streamed and mixed schedules against CPU and stock
void check_changes(Context & c);     // budget changes in mid-generation
void check_kv(Context & c);          // KV written through
void check_reclaim(Context & c);     // latency, counters
void check_bandwidth(Context & c);   // upload and download, pinned and pageable
void check_speed(Context & c);       // tokens per second, overlap

// Small models, one for each kind of matrix that matters, and one with experts.
std::vector<ModelSpec> small_models(bool quick);
// What latencies and rates are measured on: about 2 GB; small when quick.
ModelSpec large_model(bool quick);
std::vector<llama_token> random_tokens(size_t n, uint32_t n_vocab, uint64_t seed);

// A prompt in one step, then single tokens; the same tokens whatever the logits say, so that rows can be compared.
struct Script {
    std::vector<llama_token> prompt, continuation;
};
Script make_script(uint32_t n_vocab, size_t n_prompt, size_t n_continuation);
// Logits of every prompt position and of every continuation step. Forgets what the session had.
std::vector<float> run_script(Session & session, const Script & script);

// Runs one check; an exception becomes verdict `error` and the next check goes on.
void guarded(Context & c, const std::string & name, const std::function<void()> & check);

} // namespace kit
