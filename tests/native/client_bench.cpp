// What libxlm costs a game's frame, as JSON: idle poll, poll with one token, set_budget. Medians and 99th percentiles
// of single calls, clock included (its cost is given too), and the allocations of the game thread.
#include <algorithm>
#include <chrono>

#ifndef XLM_NO_COUNTING
#include "client_counting.hpp"
#else
namespace xlm::test {
inline std::uint64_t n_allocations = 0;
}
#endif
#include "client_fixture.hpp"

using namespace xlm::test;

namespace {

using Clock = std::chrono::steady_clock;

struct Figure {
    const char * name;
    double goal_ns;
    std::vector<double> ns;
    std::uint64_t allocations = 0;

    template <typename Call>
    void add(Call && call) {
        const std::uint64_t before = n_allocations;
        const auto start = Clock::now();
        call();
        const auto end = Clock::now();
        allocations += n_allocations - before;
        ns.push_back(std::chrono::duration<double, std::nano>(end - start).count());
    }
    double quantile(double q) const {
        std::vector<double> sorted = ns;
        std::sort(sorted.begin(), sorted.end());
        return sorted[std::min(sorted.size() - 1, static_cast<std::size_t>(q * static_cast<double>(sorted.size())))];
    }
    bool print(bool last) const {
        const bool met = quantile(0.5) <= goal_ns && allocations == 0;
        std::printf("  \"%s\": {\"p50_ns\": %.0f, \"p99_ns\": %.0f, \"goal_ns\": %.0f, \"calls\": %zu, "
                    "\"allocations\": %llu, \"met\": %s}%s\n",
                    name, quantile(0.5), quantile(0.99), goal_ns, ns.size(),
                    static_cast<unsigned long long>(allocations), met ? "true" : "false", last ? "" : ",");
        return met;
    }
};

/// Sleeps until there is something to poll for; the poll itself is what is measured.
void wait_for_event(xlm_client * client) {
    if (xlm_client_event_wait(client, long_ns) != XLM_SUCCESS) throw RequirementFailed();
}

void measure_tokens(Figure & figure, xlm_client * client, xlm_session * session, int & done) {
    const xlm_str words = XLM_STR_LITERAL("Go on.");
    const int before = done;
    if (xlm_session_say(session, words, nullptr, nullptr) != XLM_SUCCESS) throw RequirementFailed();
    while (done == before) {
        wait_for_event(client);
        figure.add([&] { xlm_client_poll(client, 0); }); // 0: one event
    }
}

/// Raw 1440p, one picture after the other; the call alone, not the upload.
void measure_images(Figure & figure, xlm_client * client, xlm_session * session, int & done, bool is_lent) {
    static std::vector<unsigned> pixels(2560 * 1440, 0x336699);
    xlm_image image = XLM_IMAGE_INIT;
    image.format = XLM_IMAGE_BGRX8;
    image.data = pixels.data();
    image.size_bytes = pixels.size() * sizeof pixels[0];
    image.width = 2560;
    image.height = 1440;
    image.lent = is_lent;
    xlm_say_options how = XLM_SAY_OPTIONS_INIT;
    how.images = &image;
    how.n_images = 1;
    const xlm_str words = XLM_STR_LITERAL("What do you see?");
    Figure warm_up{"", 0, {}};
    for (int i = 0; i < 22; i++) {
        pixels[0]++;
        const int before = done;
        (i < 2 ? warm_up : figure).add([&] { xlm_session_say(session, words, &how, nullptr); });
        while (done == before) {
            wait_for_event(client);
            xlm_client_poll(client, UINT64_MAX);
        }
    }
}

} // namespace

int main() {
    FakeBroker broker;
    std::string answer = "a";
    for (int i = 0; i < 200; i++)
        answer += " word";
    broker("answer\t" + answer);
    int done = 0;
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    options.name = xlm_str_from("bench");
    options.endpoint = xlm_str_from(broker.endpoint.c_str());
    options.user_data = &done;
    options.on_event = [](void * counter, const xlm_event * event) {
        *static_cast<int *>(counter) += event->kind == XLM_EVENT_DONE;
    };
    xlm_client * client = nullptr;
    xlm_session * session = nullptr;
    const xlm_session_options character = XLM_SESSION_OPTIONS_INIT;
    if (xlm_client_create(&options, &client) != XLM_SUCCESS || xlm_client_ready_wait(client, long_ns) != XLM_SUCCESS ||
        xlm_session_open(client, &character, &session) != XLM_SUCCESS)
        return 2;

    Figure clock{"clock", 1e9, {}}, idle{"idle_poll", 1e3, {}}, token{"poll_one_token", 1e4, {}},
        budget{"set_budget", 2e4, {}}, frame{"frame", 1e3, {}}, warm_up{"", 0, {}};
    measure_tokens(warm_up, client, session, done);
    while (token.ns.size() < 2'000)
        measure_tokens(token, client, session, done);
    xlm_budget wanted = XLM_BUDGET_INIT;
    for (int i = 0; i < 1'000; i++) {
        wanted.cap_bytes = static_cast<std::uint64_t>(i) << 20;
        budget.add([&] { xlm_client_set_budget(client, &wanted, nullptr); });
        wait_for_event(client); // its lease, so that the next one does not meet a full queue
        xlm_client_poll(client, UINT64_MAX);
    }
    xlm_frame_info info = XLM_FRAME_INFO_INIT;
    info.frame_ns = 16'000'000;
    for (int i = 0; i < 20'000; i++) {
        clock.add([] {});
        idle.add([&] { xlm_client_poll(client, 100'000); });
        frame.add([&] { xlm_frame(client, &info); });
    }
    Figure copied{"say_image_copied", 1e9, {}}, lent{"say_image_lent", 2e4, {}};
    measure_images(copied, client, session, done, false);
    measure_images(lent, client, session, done, true);
    xlm_client_destroy(client);

    std::printf("{\n");
    clock.print(false);
    bool met = idle.print(false);
    met &= token.print(false);
    met &= budget.print(false);
    met &= frame.print(false);
    copied.print(false);
    met &= lent.print(true);
    std::printf("}\n");
    return met ? 0 : 1;
}
