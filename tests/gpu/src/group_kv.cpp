// KV is written through: host memory holds every row, so dropping the device copies loses nothing.
#include "groups.hpp"

namespace kit {

namespace {

constexpr uint64_t kBudget = 700ull << 20;
constexpr uint64_t kWaitNs = 60'000'000'000;

class KvCheck {
public:
    explicit KvCheck(Context & c) : c_(c), xlm_(c.options, kBudget), spec_(small_models(c.options.quick).front()) {
        Shape shape;
        shape.threads = c.options.threads;
        session_ = Session::on_xlm(make_model(spec_, c.options.models), shape, xlm_);
        script_ = make_script(spec_.n_vocab, 48, 12);
    }

    void run() {
        xlm_.apply(xlm_.all(XLM_PLACE_RESIDENT));
        undisturbed_ = continuation(false);
        const std::vector<float> dropped = continuation(true);
        const Difference d = compare(dropped, undisturbed_, spec_.n_vocab);
        c_.report.require("all device memory dropped and regrown between two steps: the next steps keep their bits",
                          d.bits_equal, to_json(d));
    }

private:
    std::vector<float> continuation(bool drop) {
        xlm_.settle_all();
        session_->clear();
        session_->decode(script_.prompt, false);
        if (drop) drop_and_regrow();
        std::vector<float> logits;
        for (llama_token token : script_.continuation) {
            session_->decode({token}, false);
            session_->append_logits(logits);
        }
        return logits;
    }

    void drop_and_regrow() {
        const std::vector<uint8_t> before = session_->state();
        const xlm_release release = xlm_.set_budget(0, kWaitNs);
        const bool same = session_->state() == before;
        c_.report.require("KV in host memory is complete before and after a drop", same && !before.empty(),
                          {{"state_bytes", before.size()}, {"released_bytes", release.released_bytes}});
        c_.report.require("a budget of zero leaves zero bytes", release.completed == 1 && release.used_bytes == 0,
                          {{"used_bytes", release.used_bytes}});
        xlm_.set_budget(kBudget, 0);
        xlm_.settle_all();
    }

    Context & c_;
    Xlm xlm_;
    ModelSpec spec_;
    std::unique_ptr<Session> session_;
    Script script_;
    std::vector<float> undisturbed_;
};

} // namespace

void check_kv(Context & c) {
    const InnerDevice device(c.options); // configures the virtual GPU
    KvCheck(c).run();
}

} // namespace kit
