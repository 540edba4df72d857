// Many of everything: cycles, clients, threads. What is checked is that all of it ends, and nothing crashes or leaks
// (run with both sanitizers).
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "client_fixture.hpp"

using namespace xlm::test;

namespace {

/// How often, of `all` times: under valgrind, which is slow, $XLM_STRESS_PART divides it.
std::size_t times(std::size_t all) {
    const char * part = std::getenv("XLM_STRESS_PART");
    return std::max<std::size_t>(5, all / (part ? std::strtoul(part, nullptr, 10) : 1));
}

/// Does something again and again, until this goes. It lets others run between: valgrind runs one thread at a time, and
/// one that never waits would keep them all from it.
class Background {
public:
    template <typename Work>
    explicit Background(Work work)
        : thread_([this, work] {
              while (!over_) {
                  work();
                  std::this_thread::sleep_for(std::chrono::microseconds(100));
              }
          }) {}
    ~Background() {
        over_ = true;
        thread_.join();
    }
    Background(const Background &) = delete;
    Background & operator=(const Background &) = delete;

private:
    std::atomic<bool> over_{false}; // before the thread that reads it
    std::thread thread_;
};

} // namespace

TEST(ten_thousand_starts_and_cancels) {
    FakeBroker broker;
    broker("answer\tone two three four five six");
    std::size_t ended = 0, failed = 0;
    Game game(broker.endpoint, [&](const xlm_event & event) {
        ended += event.kind == XLM_EVENT_DONE || event.kind == XLM_EVENT_FAILED;
        failed += event.kind == XLM_EVENT_FAILED;
    });
    REQUIRE(game.ready());
    std::vector<xlm_session *> sessions;
    for (int i = 0; i < 16; i++)
        sessions.push_back(game.open());
    std::mt19937 random(7);
    std::size_t started = 0;
    while (started < times(10'000)) {
        xlm_session * session = sessions[random() % sessions.size()];
        const xlm_result result = xlm_session_say(session, xlm_str_from("Go"), nullptr, nullptr);
        started += result == XLM_SUCCESS;
        if (result != XLM_SUCCESS) CHECK(result == XLM_ERROR_SESSION_BUSY || result == XLM_ERROR_OVERLOADED);
        if (random() % 4) xlm_session_cancel(sessions[random() % sessions.size()], 0);
        if (started - ended >= sessions.size()) // all are busy
            REQUIRE(xlm_client_event_wait(game.client, long_ns) == XLM_SUCCESS);
        if (random() % 3 == 0) REQUIRE(xlm_client_poll(game.client, 100'000) >= 0);
        game.seen.clear();
    }
    REQUIRE(game.until([&] { return ended == started; }));
    CHECK_EQ(failed, 0u);
}

TEST(a_hundred_clients_come_and_go) {
    FakeBroker broker;
    std::mt19937 random(3);
    std::vector<std::unique_ptr<Game>> games;
    std::size_t never_ready = 0; // one that leaves between HELLO and WELCOME may leave a lease to its time-out
    for (std::size_t i = 0; i < times(100); i++) {
        games.push_back(std::make_unique<Game>(broker.endpoint));
        if (random() % 2)
            REQUIRE(games.back()->ready());
        else
            never_ready++;
        if (games.back()->client && random() % 2) xlm_client_request_status(games.back()->client, nullptr);
        xlm_session * session = games.back()->open(); // connected or not
        xlm_session_say(session, xlm_str_from("Hi"), nullptr, nullptr);
        if (games.size() > 12) games.erase(games.begin() + random() % games.size());
    }
    games.clear();
    Game last(broker.endpoint);
    REQUIRE(last.ready());
    std::size_t n_clients;
    do { // two connections: their order is not promised
        const std::string clients = broker("clients");
        n_clients = static_cast<std::size_t>(std::count(clients.begin(), clients.end(), 't')) / 2;
    } while (n_clients > 1 + never_ready);
}

TEST(clients_are_destroyed_with_requests_under_way) {
    FakeBroker broker;
    broker("hold\t1");
    std::mt19937 random(11);
    for (std::size_t i = 0; i < times(60); i++) {
        Game game(broker.endpoint);
        if (i % 2) REQUIRE(game.ready());
        xlm_session * session = game.open();
        xlm_session_say(session, xlm_str_from("Hi"), nullptr, nullptr);
        const xlm_budget budget = XLM_BUDGET_INIT;
        if (random() % 2) xlm_client_set_budget(game.client, &budget, nullptr);
        if (random() % 2) xlm_client_request_status(game.client, nullptr);
        if (random() % 2) xlm_client_poll(game.client, 0);
        if (random() % 3 == 0) xlm_session_close(session);
    } // the client goes here
    Game last(broker.endpoint);
    REQUIRE(last.ready());
}

TEST(callbacks_close_their_own_sessions_again_and_again) {
    FakeBroker broker;
    std::size_t closed = 0;
    Game game(broker.endpoint, [&](const xlm_event & event) {
        if (event.kind != XLM_EVENT_TOKENS && event.kind != XLM_EVENT_SESSION_OPENED) return;
        if (event.kind == XLM_EVENT_SESSION_OPENED && closed % 2) return; // every other one: at its first words
        CHECK_EQ(xlm_client_destroy(event.client), XLM_ERROR_IN_CALLBACK);
        CHECK_EQ(xlm_session_close(event.session), XLM_SUCCESS);
        closed++;
    });
    REQUIRE(game.ready());
    const std::size_t wanted = times(150);
    while (closed < wanted) {
        const std::size_t before = closed;
        xlm_session_say(game.open(), xlm_str_from("Hi"), nullptr, nullptr);
        REQUIRE(game.until([&] { return closed > before; }));
        game.seen.clear();
    }
}

TEST(the_wrong_thread_is_told_so_while_the_right_one_polls) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    const Background wrong([&] {
        xlm_event event = XLM_EVENT_INIT;
        CHECK_EQ(xlm_client_poll(game.client, 0), XLM_ERROR_WRONG_THREAD);
        CHECK_EQ(xlm_client_next_event(game.client, &event), XLM_ERROR_WRONG_THREAD);
    });
    for (std::size_t i = 0; i < times(30); i++) {
        game.seen.clear();
        game.say(game.open());
        REQUIRE(game.until(XLM_EVENT_DONE));
        xlm_session_close(game.of(XLM_EVENT_DONE)[0].session);
    }
}

TEST(many_threads_ask_at_once) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    std::atomic<int> asked{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([&, t] {
            xlm_budget budget = XLM_BUDGET_INIT;
            xlm_frame_info frame = XLM_FRAME_INFO_INIT;
            for (std::size_t i = 0; i < times(300); i++) {
                budget.cap_bytes = static_cast<std::uint64_t>(t) * 1000 + i;
                frame.frame_ns = 1'000'000;
                xlm_frame(game.client, &frame);
                if (xlm_client_set_budget(game.client, &budget, nullptr) == XLM_SUCCESS) asked++;
                xlm_lease lease = XLM_LEASE_INIT;
                xlm_client_get_lease(game.client, &lease);
                if (i % 50 == 0) {
                    xlm_session_options options = XLM_SESSION_OPTIONS_INIT;
                    xlm_session * session = nullptr;
                    if (xlm_session_open(game.client, &options, &session) == XLM_SUCCESS) xlm_session_close(session);
                }
            }
        });
    while (game.of(XLM_EVENT_LEASE).empty())
        REQUIRE(game.until(XLM_EVENT_LEASE));
    for (std::thread & one : threads)
        one.join();
    REQUIRE(game.until(XLM_EVENT_LEASE, static_cast<std::size_t>(asked.load())));
}

TEST(a_broker_that_dies_again_and_again) {
    FakeBroker broker;
    broker("answer\tone two three");
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    std::vector<xlm_session *> sessions;
    for (int i = 0; i < 4; i++)
        sessions.push_back(game.open());
    for (std::size_t round = 0; round < times(5); round++) {
        for (xlm_session * session : sessions)
            xlm_session_say(session, xlm_str_from("Go"), nullptr, nullptr);
        broker(round % 2 ? "restart" : "restart\tremember");
        game.seen.clear();
        REQUIRE(game.until(XLM_EVENT_STATE, 2)); // gone, and back
        REQUIRE(game.in_state(XLM_CLIENT_READY));
    }
    game.seen.clear();
    REQUIRE(game.until([&] { // all are idle again
        for (xlm_session * session : sessions) {
            xlm_session_info info = XLM_SESSION_INFO_INIT;
            xlm_session_get_info(session, &info);
            if (info.busy || info.state != XLM_SESSION_OPEN) return false;
        }
        return true;
    }));
    for (xlm_session * session : sessions)
        game.say(session);
    REQUIRE(game.until(XLM_EVENT_DONE, sessions.size()));
}

XLM_TEST_MAIN
