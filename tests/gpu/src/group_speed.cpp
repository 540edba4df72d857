// Tokens per second by placement and budget, and how well copies hide behind compute.
#include "groups.hpp"

#include "rates.hpp"

#include <algorithm>

namespace kit {

namespace {

constexpr uint64_t kMiB = 1024 * 1024;
constexpr size_t kChunkBytes = 16 * kMiB; // of the copy rate that streaming is held against
constexpr double kGoalRatio = 0.95;       // XLM0 all resident against stock llama.cpp on the same device

// Medians of one step.
struct StepTimes {
    double decode_s = 0, prefill_s = 0;
    size_t prompt_tokens = 0;
};

Json to_json(const StepTimes & t) {
    return {{"decode_tokens_s", 1.0 / t.decode_s},
            {"prefill_tokens_s", static_cast<double>(t.prompt_tokens) / t.prefill_s},
            {"decode_step_ms", t.decode_s * 1e3},
            {"prefill_step_ms", t.prefill_s * 1e3},
            {"prompt_tokens", t.prompt_tokens}};
}

double timed_step(Session & session, const std::vector<llama_token> & tokens) {
    const uint64_t begin = now_ns();
    session.decode(tokens, false);
    return static_cast<double>(now_ns() - begin) / 1e9;
}

class SpeedCheck {
public:
    SpeedCheck(Context & c, const InnerDevice & device)
        : c_(c), device_(device), spec_(large_model(c.options.quick)), path_(make_model(spec_, c.options.models)) {
        shape_.threads = c.options.threads;
        shape_.n_ubatch = c.options.quick ? 64 : 512;
        shape_.n_ctx = 2 * shape_.n_ubatch;
    }

    void run() {
        guarded(c_, "tokens/s: stock on the device and XLM0 resident", [&] { device_pair(); });
        if (session_) guarded(c_, "overlap", [&] { overlap(); });
        for (int percent : {50, 25, 75, 100})
            if (session_) guarded(c_, "tokens/s at " + std::to_string(percent) + " %", [&] { at_budget(percent); });
        session_.reset();
        guarded(c_, "tokens/s: CPU only", [&] { cpu_only(); });
    }

private:
    size_t steps() const { return c_.options.quick ? 4 : 32; }

    StepTimes measure(Session & session, size_t prompt_tokens, size_t decode_steps) {
        const std::vector<llama_token> prompt = random_tokens(prompt_tokens, spec_.n_vocab, 7);
        std::vector<double> prefill, decode;
        for (int i = 0; i < 3 && (i == 0 || !c_.deadline.passed()); i++) { // the first of each is a warm-up
            session.clear();
            prefill.push_back(timed_step(session, prompt));
        }
        for (size_t i = 0; i <= decode_steps && (i < 2 || !c_.deadline.passed()); i++)
            decode.push_back(timed_step(session, {prompt[i % prompt.size()]}));
        const auto warm = [](const std::vector<double> & v) {
            return v.size() > 1 ? std::vector<double>(v.begin() + 1, v.end()) : v;
        };
        return {median(warm(decode)), median(warm(prefill)), prompt_tokens};
    }

    // Stock and XLM0 take turns, so that a clock that drifts hits both.
    void device_pair() {
        xlm_ = std::make_unique<Xlm>(c_.options, device_.memory().free_bytes / 10 * 8);
        auto stock = Session::on_device(path_, shape_, device_);
        session_ = Session::on_xlm(path_, shape_, *xlm_);
        xlm_->apply(xlm_->all(XLM_PLACE_RESIDENT));
        xlm_->settle_all();
        std::vector<double> decode_ratio, prefill_ratio;
        StepTimes of_stock;
        for (int round = 0; round < 3; round++) {
            of_stock = measure(*stock, shape_.n_ubatch, steps());
            resident_ = measure(*session_, shape_.n_ubatch, steps());
            decode_ratio.push_back(of_stock.decode_s / resident_.decode_s);
            prefill_ratio.push_back(of_stock.prefill_s / resident_.prefill_s);
        }
        c_.report.note("tokens/s: stock, all on the device", to_json(of_stock));
        c_.report.note("tokens/s: XLM0, all resident", to_json(resident_));
        const double decode = median(decode_ratio), prefill = median(prefill_ratio);
        const bool measured = !c_.options.quick && !device_.is_virtual();
        c_.report.add("XLM0 resident / stock on the device",
                      !measured              ? Verdict::note
                      : decode >= kGoalRatio ? Verdict::pass
                                             : Verdict::fail,
                      {{"decode_ratio", decode}, {"prefill_ratio", prefill}, {"goal_decode_ratio", kGoalRatio}});
    }

    // A perfect overlap takes max(compute, copy); compute is the resident step, copy the bytes at the raw pinned rate.
    void overlap() {
        xlm_->apply(xlm_->all(XLM_PLACE_STREAM));
        xlm_->settle_all();
        const double rate = upload_rate();
        const StepTimes streamed = measure(*session_, shape_.n_ubatch, std::min<size_t>(steps(), 8));
        xlm_->reset_stats();
        timed_step(*session_, {1});
        const double bytes = static_cast<double>(xlm_->stats().bytes_streamed);
        const auto efficiency = [&](double step_s, double compute_s) {
            return std::max(compute_s, bytes / rate) / step_s;
        };
        Json detail = to_json(streamed);
        detail["bytes_streamed_per_step"] = bytes;
        detail["raw_upload_gb_s"] = rate / 1e9;
        detail["reached_gb_s_decode"] = bytes / streamed.decode_s / 1e9;
        detail["decode_efficiency"] = efficiency(streamed.decode_s, resident_.decode_s);
        detail["prefill_efficiency"] = efficiency(streamed.prefill_s, resident_.prefill_s);
        c_.report.note("overlap: everything streamed", detail);
    }

    double upload_rate() const {
        const bool pinned = ggml_backend_dev_host_buffer_type(device_.get()) != nullptr;
        return CopyPair(device_, c_.options.quick ? kMiB : kChunkBytes, pinned).upload(8);
    }

    void at_budget(int percent) {
        const uint64_t whole = xlm_->resident_bytes() + xlm_->all(XLM_PLACE_STREAM).reserve_bytes;
        const uint64_t budget = whole / 100 * static_cast<uint64_t>(percent);
        for (xlm_placement rest : {XLM_PLACE_CPU, XLM_PLACE_STREAM}) {
            xlm_->apply(xlm_->greedy(budget, rest, XLM_PLACE_STREAM));
            xlm_->set_budget(budget, 10'000'000'000);
            xlm_->settle_all();
            Json detail = to_json(measure(*session_, shape_.n_ubatch, std::min<size_t>(steps(), 12)));
            detail["budget_bytes"] = budget;
            detail["used_bytes"] = xlm_->memory().used_bytes;
            c_.report.note("tokens/s: XLM0 at " + std::to_string(percent) + " % of its needs, rest " +
                               (rest == XLM_PLACE_CPU ? "on the CPU in decode" : "streamed in decode"),
                           detail);
        }
    }

    void cpu_only() {
        auto session = Session::on_cpu(path_, shape_);
        c_.report.note("tokens/s: CPU only", to_json(measure(*session, 64, std::min<size_t>(steps(), 8))));
    }

    Context & c_;
    const InnerDevice & device_;
    ModelSpec spec_;
    std::string path_;
    Shape shape_;
    std::unique_ptr<Xlm> xlm_;
    std::unique_ptr<Session> session_; // after xlm_: freed first
    StepTimes resident_;
};

} // namespace

void check_speed(Context & c) {
    const InnerDevice device(c.options);
    SpeedCheck(c, device).run();
}

} // namespace kit
