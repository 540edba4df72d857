// libxlm against the SDK's fake broker: the real protocol over a real socket.
#include <cstring>
#include <thread>

#include "client_fixture.hpp"

using namespace xlm::test;

namespace {

xlm_budget cap(std::uint64_t bytes, xlm_require require = XLM_REQUIRE_ANY) {
    xlm_budget budget = XLM_BUDGET_INIT;
    budget.cap_bytes = bytes;
    budget.require = require;
    return budget;
}

bool contains(const std::string & text, const char * part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST(connects_and_tells) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    CHECK_EQ(broker("clients"), "test");
    CHECK_EQ(xlm_client_ready_wait(game.client, 0), XLM_SUCCESS);
}

TEST(a_budget_ticket_brings_the_lease) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    const xlm_budget budget = cap(96 << 20);
    std::uint64_t ticket = 0;
    REQUIRE(xlm_client_set_budget(game.client, &budget, &ticket) == XLM_SUCCESS);
    REQUIRE(game.until(XLM_EVENT_LEASE));
    const Seen lease = game.of(XLM_EVENT_LEASE)[0];
    CHECK_EQ(lease.id, ticket);
    CHECK_EQ(lease.lease.granted_bytes, 96u << 20);
    CHECK_EQ(lease.lease.cap_bytes, 96u << 20);
    CHECK_EQ(lease.lease.release_ns, 250'000u);
    CHECK_EQ(lease.lease.deadline_met, 1u);
    xlm_lease now = XLM_LEASE_INIT;
    CHECK_EQ(xlm_client_get_lease(game.client, &now), XLM_SUCCESS);
    CHECK_EQ(now.granted_bytes, 96u << 20);
}

TEST(the_blocking_variants_wait_for_the_bytes) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_lease lease = XLM_LEASE_INIT;
    xlm_budget budget = cap(64 << 20);
    broker("miss_deadlines");
    REQUIRE(xlm_client_set_budget_wait(game.client, &budget, long_ns, &lease) == XLM_SUCCESS);
    CHECK_EQ(lease.granted_bytes, 64u << 20);
    CHECK_EQ(lease.deadline_met, 0u);
    budget = cap(XLM_NO_CAP);
    REQUIRE(xlm_client_set_budget_wait(game.client, &budget, long_ns, &lease) == XLM_SUCCESS);
    CHECK_EQ(lease.cap_bytes, XLM_NO_CAP);
    REQUIRE(xlm_client_reserve_wait(game.client, 128 << 20, XLM_NO_DEADLINE, long_ns, &lease) == XLM_SUCCESS);
    CHECK_EQ(lease.granted_bytes, 128u << 20); // of 256
    CHECK_EQ(lease.reserved_bytes, 128u << 20);
    CHECK(game.of(XLM_EVENT_LEASE).empty());
}

TEST(a_refused_budget_names_its_minimum) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    const xlm_budget budget = cap(1, XLM_REQUIRE_DEVICE);
    CHECK_EQ(xlm_client_set_budget_wait(game.client, &budget, long_ns, nullptr), XLM_ERROR_BUDGET_INFEASIBLE);
    xlm_error error = XLM_ERROR_INIT;
    xlm_last_error(&error);
    CHECK_EQ(error.result, XLM_ERROR_BUDGET_INFEASIBLE);
    CHECK_EQ(error.fault, XLM_FAULT_CALLER);
    CHECK_EQ(error.minimum_bytes, 16u << 20);
    CHECK_EQ(text_of(error.name), "budget_infeasible");
    CHECK(error.hint.len > 0);
    REQUIRE(xlm_client_set_budget(game.client, &budget, nullptr) == XLM_SUCCESS);
    REQUIRE(game.until(XLM_EVENT_LEASE));
    CHECK_EQ(game.of(XLM_EVENT_LEASE)[0].result, XLM_ERROR_BUDGET_INFEASIBLE);
    CHECK(!game.of(XLM_EVENT_LEASE)[0].has_lease);
}

TEST(an_answer_streams_whole_characters_and_ends_once) {
    FakeBroker broker;
    broker("answer\tAye, I can. 🔨 鍛冶屋 é");
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_session * greta = game.open();
    const std::uint64_t answer = game.say(greta);
    REQUIRE(game.until(XLM_EVENT_DONE));
    CHECK_EQ(game.spoken(), "Aye, I can. 🔨 鍛冶屋 é");
    const Seen done = game.of(XLM_EVENT_DONE)[0];
    CHECK_EQ(done.text, game.spoken());
    CHECK_EQ(done.id, answer);
    CHECK(done.session == greta);
    CHECK_EQ(done.finish_reason, XLM_FINISH_STOP);
    CHECK_EQ(done.usage.completion_tokens, 6u);
    CHECK_EQ(done.usage.ttft_ns, 1'000'000u);
    CHECK_EQ(game.of(XLM_EVENT_TOKENS)[0].token_ids.size(), 1u);
    xlm_session_info info = XLM_SESSION_INFO_INIT;
    REQUIRE(xlm_session_get_info(greta, &info) == XLM_SUCCESS);
    CHECK_EQ(info.state, XLM_SESSION_OPEN);
    CHECK_EQ(info.n_ctx, 4096u);
    CHECK_EQ(info.busy, 0u);
    CHECK(contains(text_of(info.id), "session-"));
}

TEST(options_reach_the_broker) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_session * greta = game.open();
    const xlm_str stops[] = {XLM_STR_LITERAL("END"), XLM_STR_LITERAL("\n")};
    xlm_say_options options = XLM_SAY_OPTIONS_INIT;
    options.max_tokens = 1;
    options.temperature = 0.0;
    options.seed = 7;
    options.json_schema = xlm_str_from("{\"type\": \"object\"}");
    options.stop = stops;
    options.n_stop = 2;
    options.priority = -3;
    REQUIRE(xlm_session_say(greta, xlm_str_from("Hm?"), &options, nullptr) == XLM_SUCCESS);
    REQUIRE(game.until(XLM_EVENT_DONE));
    CHECK_EQ(game.of(XLM_EVENT_DONE)[0].finish_reason, XLM_FINISH_LENGTH);
    const std::string say = broker("last\tSay");
    for (const char * part : {"text='Hm?'", "max_tokens=1", "temperature=0.0", "seed=7", "priority=-3",
                              "stop=['END', '\\n']", "top_k=40", "json_schema='{\"type\": \"object\"}'"})
        CHECK(contains(say, part));
}

TEST(say_before_the_session_is_open_is_kept) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_session * greta = game.open();
    game.say(greta);
    CHECK_EQ(xlm_session_say(greta, xlm_str_from("again"), nullptr, nullptr), XLM_ERROR_SESSION_BUSY);
    REQUIRE(game.until(XLM_EVENT_DONE));
    CHECK_EQ(game.of(XLM_EVENT_SESSION_OPENED).size(), 1u);
}

TEST(cancel_ends_the_answer_with_what_it_has) {
    FakeBroker broker;
    broker("hold\t2");
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    broker("answer\tone two three four");
    xlm_session * greta = game.open();
    const std::uint64_t answer = game.say(greta);
    REQUIRE(game.until(XLM_EVENT_TOKENS, 2));
    CHECK_EQ(xlm_session_cancel(greta, answer + 1000), XLM_SUCCESS); // another's: left alone
    REQUIRE(xlm_session_cancel(greta, 0) == XLM_SUCCESS);
    REQUIRE(game.until(XLM_EVENT_DONE));
    CHECK_EQ(game.of(XLM_EVENT_DONE)[0].finish_reason, XLM_FINISH_CANCELLED);
    CHECK_EQ(game.of(XLM_EVENT_DONE)[0].text, "one two");
    CHECK_EQ(xlm_session_cancel(greta, answer), XLM_SUCCESS); // it has ended
}

TEST(a_failed_answer_says_whose_fault) {
    FakeBroker broker;
    broker("hold\t1");
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_session * greta = game.open();
    game.say(greta);
    REQUIRE(game.until(XLM_EVENT_TOKENS));
    broker("fail_answers\tengine_failed");
    REQUIRE(game.until(XLM_EVENT_FAILED));
    CHECK_EQ(game.of(XLM_EVENT_FAILED)[0].result, XLM_ERROR_ENGINE_FAILED);
    CHECK_EQ(game.of(XLM_EVENT_FAILED)[0].text, "Greetings,");
    broker("release");
    game.say(greta); // the session goes on
    REQUIRE(game.until(XLM_EVENT_DONE));
}

TEST(notices_and_status) {
    FakeBroker broker;
    Game game(broker.endpoint, [](const xlm_event & event) {
        if (event.kind != XLM_EVENT_STATUS) return;
        REQUIRE(event.status != nullptr);
        CHECK_EQ(event.status->engine_state, XLM_ENGINE_READY);
        CHECK_EQ(event.status->device_total_bytes, 256u << 20);
        CHECK_EQ(event.status->minimum_bytes, 16u << 20);
        CHECK(event.status->resident_bytes > 0);
        CHECK_EQ(event.status->resident_bytes, event.status->device_used_bytes);
        CHECK_EQ(text_of(event.status->model_name), "fake");
        CHECK_EQ(text_of(event.status->device_kind), "none");
        CHECK_EQ(text_of(event.status->json).front(), '{');
        CHECK(contains(text_of(event.status->json), "\"settled\":true"));
    });
    REQUIRE(game.ready());
    broker("notify\tengine_restarting\tbear with me");
    broker("notify\tbudget_changed");
    broker("notify\tcompletely_new");
    REQUIRE(game.until(XLM_EVENT_NOTICE, 3));
    const auto notices = game.of(XLM_EVENT_NOTICE);
    CHECK_EQ(notices[0].notice, XLM_NOTICE_ENGINE_RESTARTING);
    CHECK_EQ(notices[0].text, "bear with me");
    CHECK_EQ(notices[0].detail, "{\"granted_bytes\":4096}");
    CHECK_EQ(notices[1].notice, XLM_NOTICE_BUDGET_CHANGED);
    CHECK(notices[1].has_lease);
    CHECK_EQ(notices[1].lease.granted_bytes, 4096u);
    CHECK_EQ(notices[2].notice, XLM_NOTICE_OTHER);
    std::uint64_t ticket = 0;
    REQUIRE(xlm_client_request_status(game.client, &ticket) == XLM_SUCCESS);
    REQUIRE(game.until(XLM_EVENT_STATUS));
    CHECK_EQ(game.of(XLM_EVENT_STATUS)[0].id, ticket);
}

TEST(a_game_speaks_in_the_breath_in_which_it_was_born) {
    FakeBroker broker;
    const xlm_budget budget = cap(32 << 20);
    for (;;) { // again where this machine was too busy to say hello within a second
        Game game(broker.endpoint);
        xlm_session * greta = game.open();
        std::uint64_t ticket = 0, answer = 0;
        const xlm_result set = xlm_client_set_budget(game.client, &budget, &ticket);
        const xlm_result said = xlm_session_say(greta, xlm_str_from("Hello?"), nullptr, &answer);
        REQUIRE(game.ready());
        if (game.was_late || set == XLM_ERROR_NOT_READY || said == XLM_ERROR_NOT_READY) continue;
        REQUIRE(set == XLM_SUCCESS && said == XLM_SUCCESS);
        REQUIRE(game.until(XLM_EVENT_LEASE));
        CHECK_EQ(game.of(XLM_EVENT_LEASE)[0].id, ticket);
        REQUIRE(game.until(XLM_EVENT_DONE));
        CHECK_EQ(game.of(XLM_EVENT_DONE)[0].id, answer);
        break;
    }
}

TEST(calls_without_a_broker_fail_at_once_and_wishes_are_kept) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_session * greta = game.open();
    game.say(greta);
    REQUIRE(game.until(XLM_EVENT_DONE));
    broker("hold\t0");
    const std::uint64_t lost_answer = game.say(greta);
    broker("kill");
    REQUIRE(game.until(XLM_EVENT_FAILED));
    CHECK_EQ(game.of(XLM_EVENT_FAILED)[0].id, lost_answer);
    CHECK_EQ(game.of(XLM_EVENT_FAILED)[0].result, XLM_ERROR_BROKER_GONE);
    CHECK_EQ(xlm_client_get_state(game.client), XLM_CLIENT_CONNECTING);

    CHECK_EQ(xlm_session_say(greta, xlm_str_from("still there?"), nullptr, nullptr), XLM_ERROR_BROKER_GONE);
    CHECK_EQ(xlm_client_request_status(game.client, nullptr), XLM_ERROR_BROKER_GONE);
    const xlm_budget budget = cap(32 << 20);
    std::uint64_t ticket = 1;
    CHECK_EQ(xlm_client_set_budget(game.client, &budget, &ticket), XLM_ERROR_BROKER_GONE);
    CHECK_EQ(ticket, 0u);
    CHECK_EQ(xlm_client_reserve_wait(game.client, 1 << 20, XLM_NO_DEADLINE, long_ns, nullptr), XLM_ERROR_BROKER_GONE);
    xlm_session * bert = game.open("You are Bert.");

    broker("requests");
    broker("release");
    broker("restart\tremember");
    REQUIRE(game.in_state(XLM_CLIENT_READY));
    REQUIRE(game.until(XLM_EVENT_SESSION_RESUMED));
    CHECK_EQ(game.of(XLM_EVENT_SESSION_RESUMED).size(), 1u);
    CHECK(game.of(XLM_EVENT_SESSION_RESUMED)[0].session == greta);
    game.say(greta);
    game.say(bert);
    REQUIRE(game.until(XLM_EVENT_DONE, 3));
    CHECK(contains(broker("last\tSetBudget"), "cap_bytes=33554432"));
    CHECK(contains(broker("last\tReserve"), "bytes=1048576"));
    CHECK_EQ(game.of(XLM_EVENT_LEASE).size(), 0u); // nobody holds a ticket for them
}

TEST(a_conversation_the_broker_forgot_begins_anew) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_session * greta = game.open();
    REQUIRE(game.until(XLM_EVENT_SESSION_OPENED));
    broker("restart");
    REQUIRE(game.until(XLM_EVENT_SESSION_RESET));
    CHECK(game.of(XLM_EVENT_SESSION_RESET)[0].session == greta);
    REQUIRE(game.in_state(XLM_CLIENT_READY));
    game.say(greta);
    REQUIRE(game.until(XLM_EVENT_DONE));
    CHECK(contains(broker("last\tOpenSession"), "system='You are Greta.'"));
}

TEST(a_session_refused_at_resumption_is_opened_without_its_past) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_session * greta = game.open();
    REQUIRE(game.until(XLM_EVENT_SESSION_OPENED));
    broker("fail\topen_session\tsession_unknown");
    broker("restart\tremember");
    REQUIRE(game.until(XLM_EVENT_SESSION_RESET));
    REQUIRE(game.in_state(XLM_CLIENT_READY));
    game.say(greta);
    REQUIRE(game.until(XLM_EVENT_DONE));
}

TEST(a_session_the_broker_refuses_is_lost) {
    FakeBroker broker;
    broker("fail\topen_session\ttoo_many_sessions");
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_session * greta = game.open();
    const xlm_result said = xlm_session_say(greta, xlm_str_from("?"), nullptr, nullptr); // it may be lost already
    CHECK(said == XLM_SUCCESS || said == XLM_ERROR_SESSION_UNKNOWN);
    REQUIRE(game.until(XLM_EVENT_SESSION_LOST));
    CHECK_EQ(game.of(XLM_EVENT_SESSION_LOST)[0].result, XLM_ERROR_TOO_MANY_SESSIONS);
    CHECK_EQ(game.of(XLM_EVENT_FAILED).size(), said == XLM_SUCCESS ? 1u : 0u);
    CHECK_EQ(xlm_session_say(greta, xlm_str_from("?"), nullptr, nullptr), XLM_ERROR_SESSION_UNKNOWN);
    CHECK_EQ(xlm_session_close(greta), XLM_SUCCESS);
}

TEST(an_expired_lease_is_taken_anew) {
    FakeBroker broker("50");
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    const std::size_t before = game.of(XLM_EVENT_STATE).size();
    broker("expire");
    REQUIRE(game.until(XLM_EVENT_STATE, before + 1)); // not the state itself: it may be ready again by the next look
    CHECK_EQ(game.of(XLM_EVENT_STATE)[before].result, XLM_ERROR_LEASE_EXPIRED);
    REQUIRE(game.in_state(XLM_CLIENT_READY));
}

TEST(a_frozen_broker_is_noticed_by_its_silence) {
    FakeBroker broker("50");
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    broker("freeze");
    REQUIRE(game.in_state(XLM_CLIENT_CONNECTING));
    const xlm_result why = game.of(XLM_EVENT_STATE).back().result;
    CHECK(why == XLM_ERROR_BROKER_GONE || why == XLM_ERROR_LEASE_EXPIRED); // the latter where this one stood still
    broker("thaw");
    REQUIRE(game.in_state(XLM_CLIENT_READY));
}

TEST(another_protocol_version_is_final) {
    FakeBroker broker(long_ms, "9");
    Game game(broker.endpoint);
    REQUIRE(game.in_state(XLM_CLIENT_FAILED));
    CHECK_EQ(game.of(XLM_EVENT_STATE).back().result, XLM_ERROR_PROTOCOL_VERSION);
    CHECK_EQ(xlm_client_request_status(game.client, nullptr), XLM_ERROR_PROTOCOL_VERSION);
    CHECK_EQ(xlm_client_ready_wait(game.client, long_ns), XLM_ERROR_PROTOCOL_VERSION);
    xlm_session * greta = game.open();
    REQUIRE(game.until(XLM_EVENT_SESSION_LOST));
    CHECK_EQ(game.of(XLM_EVENT_SESSION_LOST)[0].result, XLM_ERROR_PROTOCOL_VERSION);
    CHECK_EQ(xlm_session_close(greta), XLM_SUCCESS);
}

TEST(a_broker_that_is_full_is_tried_again) {
    FakeBroker broker;
    broker("fail\thello\ttoo_many_clients");
    Game game(broker.endpoint);
    REQUIRE(game.ready());
}

TEST(broken_frames_change_nothing) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    for (const char * hex : {"c1", "80", "93010203", "81a174a46e6f7065", "ddffffffff", "81a174a5746f6b656e"})
        broker(std::string("raw\t") + hex);
    broker("raw\t81a174a6746f6b656e73"); // tokens, without seq
    broker("notify\tdegraded\tstill here");
    REQUIRE(game.until(XLM_EVENT_NOTICE));
    CHECK_EQ(game.seen.size(), 2u); // READY and the notice
}

TEST(events_can_be_pulled) {
    FakeBroker broker;
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    options.name = xlm_str_from("puller");
    options.endpoint = xlm_str_from(broker.endpoint.c_str());
    xlm_client * client = nullptr;
    REQUIRE(xlm_client_create(&options, &client) == XLM_SUCCESS);
    xlm_session_options character = XLM_SESSION_OPTIONS_INIT;
    xlm_session * greta = nullptr;
    REQUIRE(xlm_session_open(client, &character, &greta) == XLM_SUCCESS); // before there is a connection
    xlm_event event = XLM_EVENT_INIT;
    std::string spoken, whole;
    while (whole.empty()) {
        REQUIRE(xlm_client_event_wait(client, long_ns) == XLM_SUCCESS);
        while (xlm_client_next_event(client, &event) == 1) {
            if (event.kind == XLM_EVENT_SESSION_OPENED)
                CHECK_EQ(xlm_session_say(greta, xlm_str_from("Hi"), nullptr, nullptr), XLM_SUCCESS);
            if (event.kind == XLM_EVENT_TOKENS) spoken += text_of(event.text);
            if (event.kind == XLM_EVENT_DONE) whole = text_of(event.text);
        }
    }
    CHECK_EQ(spoken, whole);
    CHECK_EQ(xlm_client_destroy(client), XLM_SUCCESS);
}

TEST(a_callback_may_close_its_own_session) {
    FakeBroker broker;
    broker("answer\ta b c d e f g h");
    std::size_t after = 0;
    xlm_session * greta = nullptr;
    Game game(broker.endpoint, [&](const xlm_event & event) {
        if (event.kind == XLM_EVENT_TOKENS) {
            after++;
            CHECK_EQ(xlm_session_close(event.session), XLM_SUCCESS);
            CHECK_EQ(xlm_session_close(event.session), XLM_ERROR_INVALID_HANDLE);
        }
    });
    REQUIRE(game.ready());
    greta = game.open();
    game.say(greta);
    REQUIRE(game.until(XLM_EVENT_TOKENS));
    broker("notify\tdegraded"); // whatever the session still had would come before this
    REQUIRE(game.until(XLM_EVENT_NOTICE));
    CHECK_EQ(after, 1u);
    CHECK(game.of(XLM_EVENT_DONE).empty());
}

TEST(calls_that_callbacks_may_not_make) {
    FakeBroker broker;
    Game game(broker.endpoint, [&](const xlm_event & event) {
        const xlm_budget budget = cap(1);
        CHECK_EQ(xlm_client_poll(event.client, 0), XLM_ERROR_IN_CALLBACK);
        CHECK_EQ(xlm_client_destroy(event.client), XLM_ERROR_IN_CALLBACK);
        CHECK_EQ(xlm_client_event_wait(event.client, 0), XLM_ERROR_IN_CALLBACK);
        CHECK_EQ(xlm_client_ready_wait(event.client, 0), XLM_ERROR_IN_CALLBACK);
        CHECK_EQ(xlm_client_attach_thread(event.client), XLM_ERROR_IN_CALLBACK);
        CHECK_EQ(xlm_client_set_budget_wait(event.client, &budget, long_ns, nullptr), XLM_ERROR_IN_CALLBACK);
    });
    REQUIRE(game.ready());
}

TEST(a_callback_that_throws_ends_there) {
    FakeBroker broker;
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    options.name = xlm_str_from("thrower");
    options.endpoint = xlm_str_from(broker.endpoint.c_str());
    options.on_event = [](void *, const xlm_event *) { throw std::string("oops"); };
    xlm_client * client = nullptr;
    REQUIRE(xlm_client_create(&options, &client) == XLM_SUCCESS);
    REQUIRE(xlm_client_event_wait(client, long_ns) == XLM_SUCCESS);
    CHECK_EQ(xlm_client_poll(client, UINT64_MAX), XLM_ERROR_CALLBACK_THREW);
    CHECK_EQ(xlm_client_poll(client, UINT64_MAX), 0); // that event is gone
    CHECK_EQ(xlm_client_destroy(client), XLM_SUCCESS);
}

TEST(polling_from_another_thread_is_refused_until_it_is_attached) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    std::thread([&] {
        xlm_event event = XLM_EVENT_INIT;
        CHECK_EQ(xlm_client_poll(game.client, 0), XLM_ERROR_WRONG_THREAD);
        CHECK_EQ(xlm_client_next_event(game.client, &event), XLM_ERROR_WRONG_THREAD);
        CHECK_EQ(xlm_client_event_wait(game.client, 0), XLM_ERROR_WRONG_THREAD);
        CHECK_EQ(xlm_client_attach_thread(game.client), XLM_SUCCESS);
        CHECK_EQ(xlm_client_poll(game.client, 0), 0);
    }).join();
    CHECK_EQ(xlm_client_poll(game.client, 0), XLM_ERROR_WRONG_THREAD);
}

TEST(a_game_that_does_not_poll_loses_nothing) {
    FakeBroker broker;
    std::string long_answer;
    for (int i = 0; i < 85; i++)
        long_answer += "word" + std::to_string(i) + " ";
    long_answer += "end";
    broker("answer\t" + long_answer);
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    std::vector<xlm_session *> sessions;
    for (int i = 0; i < 8; i++)
        game.say(sessions.emplace_back(game.open())); // 688 pieces into 512 places; ZeroMQ would drop those over 1,000
    xlm_lease lease = XLM_LEASE_INIT;                 // an answer that is not an event: by now all is under way or here
    const xlm_budget budget = cap(1 << 20);
    REQUIRE(xlm_client_set_budget_wait(game.client, &budget, long_ns, &lease) == XLM_SUCCESS);
    REQUIRE(game.until(XLM_EVENT_DONE, 8));
    for (xlm_session * session : sessions) {
        std::string spoken;
        for (const Seen & piece : game.of(XLM_EVENT_TOKENS))
            if (piece.session == session) spoken += piece.text;
        CHECK_EQ(spoken, long_answer);
    }
}

TEST(destroy_with_everything_under_way) {
    FakeBroker broker;
    broker("hold\t1");
    {
        Game game(broker.endpoint);
        REQUIRE(game.ready());
        for (int i = 0; i < 5; i++)
            game.say(game.open());
        const xlm_budget budget = cap(5 << 20);
        xlm_client_set_budget(game.client, &budget, nullptr);
        xlm_client_request_status(game.client, nullptr);
    }
    Game next(broker.endpoint); // the first one said goodbye
    REQUIRE(next.ready());
    while (broker("clients") != "test") { // two connections: their order is not promised
    }
}

TEST(destroy_frees_who_waits_for_a_budget) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    broker("freeze");
    const xlm_budget budget = cap(5 << 20);
    CHECK_EQ(xlm_client_set_budget_wait(game.client, &budget, 1'000'000, nullptr), XLM_ERROR_TIMEOUT);
    broker("thaw");
}

TEST(frames_are_reported_as_a_sum) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_frame_info frame = XLM_FRAME_INFO_INIT;
    frame.target_ns = 16'000'000;
    frame.frame_ns = 150'000'000; // over the interval of reports by itself: one goes out at once
    CHECK_EQ(xlm_frame(game.client, &frame), XLM_SUCCESS);
    game.say(game.open());
    REQUIRE(game.until(XLM_EVENT_DONE)); // no error comes of a report
    CHECK(game.of(XLM_EVENT_FAILED).empty());
    const std::string report = broker("last\tFrame");
    for (const char * part : {"frames=1", "mean_ms=150.0", "max_ms=150.0", "target_ms=16.0", "over_target=1"})
        CHECK(contains(report, part));
}

TEST(slots_of_closed_sessions_are_used_again) {
    FakeBroker broker;
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    options.max_sessions = 2;
    Game game(broker.endpoint, {}, options);
    REQUIRE(game.ready());
    for (std::size_t round = 1; round <= 20; round++) {
        xlm_session *a = game.open(), *b = game.open(), *none = nullptr;
        xlm_session_options character = XLM_SESSION_OPTIONS_INIT;
        CHECK_EQ(xlm_session_open(game.client, &character, &none), XLM_ERROR_TOO_MANY_SESSIONS);
        CHECK(none == nullptr);
        game.say(a);
        REQUIRE(game.until(XLM_EVENT_DONE, round));
        REQUIRE(xlm_session_close(a) == XLM_SUCCESS);
        REQUIRE(xlm_session_close(b) == XLM_SUCCESS);
        broker("notify\tdegraded");
        REQUIRE(game.until(XLM_EVENT_NOTICE, round));
    }
}

XLM_TEST_MAIN
