// Placement must not change results: the same script under many schedules.
//
// What is required
//  - CPU placement of XLM0 = plain CPU, bit for bit.
//  - Every schedule that keeps all work on the device = the resident one, bit for bit.
//  - Device against CPU: within ggml's own bound for a whole graph (compare.hpp). With experts a near tie of the
//    router may send a token elsewhere after any change of rounding: there 90 % of the rows must be in the bound.
//  - On the virtual GPU, whose numbers are the CPU's, everything is equal bit for bit.
#include "groups.hpp"

namespace kit {

namespace {

constexpr double kExpertsShare = 0.9;
constexpr uint64_t kBudget = 700ull << 20;

struct References {
    std::vector<float> cpu, stock, resident;
};

class ModelCheck {
public:
    ModelCheck(Context & c, const InnerDevice & device, Xlm & xlm, const ModelSpec & spec)
        : c_(c), device_(device), xlm_(xlm), spec_(spec), path_(make_model(spec, c.options.models)),
          script_(make_script(spec.n_vocab, 48, c.options.quick ? 6 : 16)) {
        shape_.threads = c.options.threads;
    }

    void run() {
        reference_.cpu = run_script(*Session::on_cpu(path_, shape_), script_);
        guarded(c_, label("stock device"), [&] { stock(); });
        session_ = Session::on_xlm(path_, shape_, xlm_);
        guarded(c_, label("cpu"), [&] { on_cpu(); });
        guarded(c_, label("resident"), [&] { resident(); });
        if (reference_.resident.empty()) return;
        guarded(c_, label("streamed"), [&] { same_as_resident(xlm_.all(XLM_PLACE_STREAM)); });
        for (uint64_t seed = 1; seed <= 3; seed++) {
            guarded(c_, label("mixed"), [&] { same_as_resident(xlm_.mixed(seed, false)); });
            guarded(c_, label("mixed with CPU"), [&] { near_cpu(xlm_.mixed(seed, true)); });
        }
    }

private:
    std::string label(const std::string & what) const { return spec_.name + ": " + what; }
    Difference against(const std::vector<float> & test, const std::vector<float> & reference) const {
        return compare(test, reference, spec_.n_vocab);
    }
    bool in_bound(const Difference & d) const {
        if (device_.is_virtual()) return d.bits_equal;
        return d.finite && (spec_.n_expert ? d.share_in_bound >= kExpertsShare : d.worst_nmse <= kGraphBound);
    }

    // Logits under a plan, and what the device did meanwhile.
    std::vector<float> under(const Plan & plan, Json & detail) {
        xlm_.apply(plan);
        xlm_.settle_all();
        xlm_.reset_stats();
        std::vector<float> logits = run_script(*session_, script_);
        const xlm_stats stats = xlm_.stats();
        detail["sublayers_fallen_back_to_cpu"] = stats.n_fallback_cpu;
        detail["segments_on_device"] = stats.n_segments_device;
        detail["bytes_streamed"] = stats.bytes_streamed;
        return logits;
    }

    void stock() {
        reference_.stock = run_script(*Session::on_device(path_, shape_, device_), script_);
        const Difference d = against(reference_.stock, reference_.cpu);
        c_.report.require(label("stock device within the bound of the CPU"), in_bound(d), to_json(d));
    }

    void on_cpu() {
        Json detail;
        const Difference d = against(under(xlm_.all(XLM_PLACE_CPU), detail), reference_.cpu);
        detail.update(to_json(d));
        c_.report.require(label("all on the CPU = plain CPU, bit for bit"), d.bits_equal, detail);
    }

    void resident() {
        Json detail;
        std::vector<float> logits = under(xlm_.all(XLM_PLACE_RESIDENT), detail);
        const bool on_device = detail["segments_on_device"] > 0 && detail["sublayers_fallen_back_to_cpu"] == 0;
        const Difference d = against(logits, reference_.cpu);
        detail.update(to_json(d));
        c_.report.require(label("resident, within the bound of the CPU"), on_device && in_bound(d), detail);
        if (!reference_.stock.empty()) compare_with_stock(logits);
        if (on_device) reference_.resident = std::move(logits);
    }

    // Equal bits are expected, but another choice of kernels for a sub-graph is no loss.
    void compare_with_stock(const std::vector<float> & logits) {
        const Difference d = against(logits, reference_.stock);
        c_.report.add(label("resident = stock device"),
                      d.bits_equal  ? Verdict::pass
                      : in_bound(d) ? Verdict::note
                                    : Verdict::fail,
                      to_json(d));
    }

    void same_as_resident(const Plan & plan) {
        Json detail;
        const Difference d = against(under(plan, detail), reference_.resident);
        detail.update(to_json(d));
        const bool streamed = detail["bytes_streamed"] > 0 && detail["sublayers_fallen_back_to_cpu"] == 0;
        c_.report.require(label(plan.name + " = resident, bit for bit"), d.bits_equal && streamed, detail);
    }

    void near_cpu(const Plan & plan) {
        Json detail;
        const Difference d = against(under(plan, detail), reference_.cpu);
        detail.update(to_json(d));
        c_.report.require(label(plan.name + ", within the bound of the CPU"), in_bound(d), detail);
    }

    Context & c_;
    const InnerDevice & device_;
    Xlm & xlm_;
    ModelSpec spec_;
    std::string path_;
    Script script_;
    Shape shape_;
    References reference_;
    std::unique_ptr<Session> session_;
};

} // namespace

void check_lossless(Context & c) {
    const InnerDevice device(c.options);
    Xlm xlm(c.options, kBudget);
    for (const ModelSpec & spec : small_models(c.options.quick))
        guarded(c, spec.name, [&] { ModelCheck(c, device, xlm, spec).run(); });
}

} // namespace kit
