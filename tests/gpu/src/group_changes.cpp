// Budget changes from another thread while tokens are generated.
//
// A sub-layer whose copy was dropped in mid-step runs on the CPU for that step. A real card rounds otherwise than the
// CPU, and KV rows computed from then on carry it: bits cannot be equal. Required there: every row within the bound,
// and the same best token wherever the lead is larger than the bound allows an error to be. On the virtual GPU, whose
// rounding is the CPU's, the bits must be equal. Afterwards, with everything resident again, they must be equal
// anywhere.
#include "groups.hpp"

#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

namespace kit {

namespace {

constexpr uint64_t kWaitNs = 60'000'000'000;

// Changes the budget once for every step it is told of, at a random moment of that step.
class Disturber {
public:
    Disturber(Xlm & xlm, uint64_t full_bytes) : xlm_(xlm), full_bytes_(full_bytes), thread_([this] { loop(); }) {}
    ~Disturber() { stop(); }

    void step_begins(uint64_t usual_ns) {
        const std::lock_guard<std::mutex> lock(mutex_);
        usual_ns_ = usual_ns;
        pending_++;
        wake_.notify_one();
    }
    void stop() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            stopping_ = true;
            wake_.notify_one();
        }
        if (thread_.joinable()) thread_.join();
    }
    uint64_t changes = 0, over_grant = 0; // read after stop()
    std::string failure;

private:
    void loop() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (true) {
            wake_.wait(lock, [this] { return pending_ > 0 || stopping_; });
            if (pending_ == 0) return;
            pending_--;
            const auto pause = std::chrono::nanoseconds(usual_ns_ ? random_() % usual_ns_ : 0);
            lock.unlock();
            std::this_thread::sleep_for(pause);
            change();
            lock.lock();
        }
    }

    void change() {
        // One in five to nothing, one in five to everything.
        const uint64_t draw = random_() % 5;
        const uint64_t bytes = draw == 0 ? 0 : draw == 1 ? full_bytes_ : random_() % full_bytes_;
        try {
            const xlm_release release = xlm_.set_budget(bytes, kWaitNs);
            over_grant += release.used_bytes > bytes;
            changes++;
        } catch (const std::exception & error) {
            failure = error.what();
        }
    }

    Xlm & xlm_;
    uint64_t full_bytes_;
    std::mt19937_64 random_{99};
    std::mutex mutex_;
    std::condition_variable wake_;
    uint64_t pending_ = 0, usual_ns_ = 0;
    bool stopping_ = false;
    std::thread thread_; // last: it uses all of the above
};

class ChangesCheck {
public:
    ChangesCheck(Context & c, const InnerDevice & device)
        : c_(c), device_(device), xlm_(c.options, 700ull << 20), spec_(small_models(c.options.quick).front()) {
        Shape shape;
        shape.threads = c.options.threads;
        session_ = Session::on_xlm(make_model(spec_, c.options.models), shape, xlm_);
        script_ = make_script(spec_.n_vocab, 32, c.options.quick ? 60 : 200);
    }

    void run() {
        Plan plan = xlm_.all(XLM_PLACE_RESIDENT);
        xlm_.apply(plan);
        xlm_.settle_all();
        const uint64_t begin = now_ns();
        fixed_ = run_script(*session_, script_);
        usual_ns_ = (now_ns() - begin) / (script_.continuation.size() + 1);
        xlm_.refine(plan);
        xlm_.apply(plan); // with the reserve that the steps really need
        const uint64_t full_bytes = xlm_.resident_bytes() + plan.reserve_bytes;
        disturbed(full_bytes);
        afterwards();
    }

private:
    void disturbed(uint64_t full_bytes) {
        Disturber disturber(xlm_, full_bytes + full_bytes / 8);
        std::vector<float> logits;
        session_->clear();
        disturber.step_begins(usual_ns_);
        session_->decode(script_.prompt, true);
        session_->append_logits(logits);
        for (llama_token token : script_.continuation) {
            disturber.step_begins(usual_ns_);
            session_->decode({token}, true);
            session_->append_logits(logits);
            uint32_t more = 0;
            xlm_device_settle(64u << 20, &more);
        }
        disturber.stop();
        judge(disturber, logits);
    }

    void judge(const Disturber & disturber, const std::vector<float> & logits) {
        const Difference d = compare(logits, fixed_, spec_.n_vocab);
        Json detail = to_json(d);
        const xlm_stats stats = xlm_.stats();
        detail["changes"] = disturber.changes;
        detail["evictions"] = stats.n_evictions;
        detail["sublayers_run_on_cpu_meanwhile"] = stats.n_fallback_cpu;
        if (!disturber.failure.empty()) detail["set_budget_failed"] = disturber.failure;
        const bool near = d.finite && d.worst_nmse <= kGraphBound && d.decided_different == 0;
        const bool done = disturber.failure.empty() && disturber.changes == script_.continuation.size() + 1;
        c_.report.require("tokens under budget changes = those of the fixed schedule",
                          done && stats.n_evictions > 0 && (device_.is_virtual() ? d.bits_equal : near), detail);
        const xlm_memory memory = xlm_.memory();
        c_.report.require("never over the grant once a release was reported",
                          disturber.over_grant == 0 && memory.over_budget_events == 0,
                          {{"over_grant", disturber.over_grant}, {"over_budget_events", memory.over_budget_events}});
    }

    void afterwards() {
        xlm_.set_budget(700ull << 20, 0);
        xlm_.settle_all();
        const Difference d = compare(run_script(*session_, script_), fixed_, spec_.n_vocab);
        c_.report.require("all resident again: same bits as before the changes", d.bits_equal, to_json(d));
    }

    Context & c_;
    const InnerDevice & device_;
    Xlm xlm_;
    ModelSpec spec_;
    std::unique_ptr<Session> session_;
    Script script_;
    std::vector<float> fixed_;
    uint64_t usual_ns_ = 0;
};

} // namespace

void check_changes(Context & c) {
    const InnerDevice device(c.options);
    ChangesCheck(c, device).run();
}

} // namespace kit
