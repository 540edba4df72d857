// The connection's decisions, without sockets, threads or clocks.
#include "client_connection_fixture.hpp"

using namespace xlm::test;

TEST(hello_is_repeated_with_back_off_until_it_is_answered) {
    Fixture f;
    f.connection.start(0);
    std::vector<Nanoseconds> waits;
    Nanoseconds now = 0;
    for (int i = 0; i < 6; i++) {
        const Nanoseconds due = f.connection.next_deadline();
        waits.push_back((due - now) / second_ns);
        f.connection.tick(due - 1);
        CHECK_EQ(f.shell.dials, i + 1);
        f.connection.tick(now = due);
    }
    CHECK(waits == (std::vector<Nanoseconds>{1, 2, 4, 8, 8, 8}));
    CHECK_EQ(f.shell.count("hello"), 7u);
    f.welcome(now);
    CHECK(f.connection.phase() == Phase::ready);
    f.connection.lost(now, gone);
    CHECK_EQ((f.connection.next_deadline() - now) / second_ns, 1); // begins anew
}

TEST(a_late_welcome_of_an_earlier_attempt_is_ignored) {
    Fixture f;
    f.connection.start(0);
    const std::uint64_t first = f.last_id();
    f.connection.tick(second_ns);
    const std::uint64_t second = f.last_id();
    f.ids = first + 1; // welcome() answers the last id
    f.welcome();
    CHECK(f.connection.phase() == Phase::connecting);
    f.ids = second + 1;
    f.welcome();
    CHECK(f.connection.phase() == Phase::ready);
}

TEST(pings_go_out_and_silence_ends_the_connection) {
    Fixture f;
    f.make_ready();
    f.connection.tick(second_ns - 1);
    CHECK_EQ(f.shell.count("ping"), 0u);
    f.connection.tick(second_ns);
    CHECK_EQ(f.shell.count("ping"), 1u);
    f.connection.tick(2 * second_ns);
    CHECK_EQ(f.shell.count("ping"), 2u);
    f.connection.tick(3 * second_ns);
    CHECK(f.connection.phase() == Phase::connecting);
    CHECK(f.shell.kinds() == std::vector<xlm_event_kind>{XLM_EVENT_STATE});
    CHECK_EQ(f.shell.events[0].failure.result, XLM_ERROR_BROKER_GONE);
}

TEST(a_process_that_was_stopped_does_not_hold_the_broker_for_gone) {
    Fixture f;
    f.make_ready();
    f.connection.tick(second_ns - 1);
    const Nanoseconds hour = 3600 * second_ns; // nothing asked meanwhile, and perhaps not read yet what has come
    f.connection.tick(hour);
    CHECK_EQ(f.shell.count("ping"), 1u); // it asks first
    f.connection.tick(hour + second_ns);
    CHECK(f.connection.phase() == Phase::ready);
    f.reply(
        2,
        [&](auto add) {
            add("t", std::string("pong"));
            add("id", f.last_id());
        },
        hour + second_ns);
    f.connection.tick(2 * hour);
    f.connection.tick(3 * hour);
    CHECK(f.connection.phase() == Phase::ready);
    f.connection.tick(4 * hour); // three times it looked, and there was nothing
    CHECK(f.connection.phase() == Phase::connecting);
}

TEST(a_game_that_stood_still_is_told_that_its_lease_has_ended) {
    Fixture f;
    f.make_ready();
    xlm_session & session = f.open_session();
    f.connection.submit(f.command(CommandKind::say, &session));
    f.connection.tick(60 * second_ns); // stopped in a debugger: it asks
    f.refused(f.last_id(), "lease_expired");
    CHECK(f.connection.phase() == Phase::connecting);
    CHECK(f.shell.kinds() == (std::vector<xlm_event_kind>{XLM_EVENT_STATE, XLM_EVENT_FAILED}));
    for (const Event & event : f.shell.events)
        CHECK_EQ(event.failure.result, XLM_ERROR_LEASE_EXPIRED);
    CHECK(f.shell.events[1].failure.hint_view().find("connects again by itself") != std::string_view::npos);
}

TEST(a_broker_that_forgot_the_lease_says_so_and_one_that_was_replaced_is_gone) {
    for (const auto & [code, result] :
         {std::pair("lease_expired", XLM_ERROR_LEASE_EXPIRED), std::pair("not_connected", XLM_ERROR_BROKER_GONE)}) {
        Fixture f;
        f.make_ready();
        f.connection.tick(second_ns);
        f.refused(f.last_id(), code); // the ping
        CHECK(f.connection.phase() == Phase::connecting);
        CHECK(f.shell.kinds() == std::vector<xlm_event_kind>{XLM_EVENT_STATE});
        CHECK_EQ(f.shell.events[0].failure.result, result);
    }
}

TEST(what_is_asked_at_once_waits_for_the_first_connection) {
    Fixture f;
    f.connection.start(0);
    const std::uint64_t hello = f.last_id();
    CHECK(f.shell.takes);
    xlm_session & session = f.slot();
    f.connection.submit(f.command(CommandKind::open_session, &session));
    Command & budget = f.command(CommandKind::set_budget);
    budget.bytes = 77;
    f.connection.submit(budget);
    f.connection.submit(f.command(CommandKind::get_status));
    Command & said = f.command(CommandKind::say, &session);
    session.answer = said.id;
    f.connection.submit(said);
    CHECK(f.shell.events.empty());
    CHECK(f.shell.recycled.size() == 1); // the one that opened the session
    f.welcome(0, hello);
    CHECK(f.shell.kinds() == std::vector<xlm_event_kind>{XLM_EVENT_STATE});
    CHECK_EQ(f.shell.count("set_budget"), 1u);
    CHECK_EQ(f.shell.count("get_status"), 1u);
    CHECK_EQ(f.shell.count("say"), 0u); // until its session is open
    f.opened(f.last_id(), false);
    CHECK_EQ(f.shell.count("say"), 1u);
    CHECK_EQ(f.connection.pending_count(), 3u);
}

TEST(who_waits_for_a_broker_in_vain_is_told_and_the_wish_is_kept) {
    Fixture f;
    f.connection.start(0);
    xlm_session & session = f.slot();
    f.connection.submit(f.command(CommandKind::open_session, &session));
    Command & budget = f.command(CommandKind::set_budget);
    budget.bytes = 77;
    f.connection.submit(budget);
    Command & said = f.command(CommandKind::say, &session);
    session.answer = said.id;
    f.connection.submit(said);
    f.connection.tick(second_ns - 1);
    CHECK(f.shell.events.empty());
    f.connection.tick(second_ns);
    CHECK(!f.shell.takes);
    CHECK(f.shell.kinds() == (std::vector<xlm_event_kind>{XLM_EVENT_STATE, XLM_EVENT_LEASE, XLM_EVENT_FAILED}));
    for (const Event & event : f.shell.events)
        CHECK_EQ(event.failure.result, XLM_ERROR_NOT_READY);
    CHECK_EQ(f.shell.events[0].state, XLM_CLIENT_CONNECTING);
    CHECK_EQ(session.answer.load(), 0u);
    CHECK_EQ(f.shell.recycled.size(), 3u);
    f.connection.submit(f.command(CommandKind::get_status)); // from here on at once
    CHECK_EQ(f.shell.events.back().failure.result, XLM_ERROR_NOT_READY);
    f.connection.tick(3 * second_ns); // another attempt: nothing is told again
    CHECK_EQ(f.shell.events.size(), 4u);
    f.welcome(3 * second_ns);
    CHECK(f.shell.sent.back().find("open_session") != std::string::npos);
    CHECK(f.shell.sent[f.shell.sent.size() - 2].find("\"cap_bytes\":77") != std::string::npos);
}

TEST(what_waits_for_the_first_connection_can_be_taken_back) {
    Fixture f;
    f.connection.start(0);
    xlm_session & greta = f.slot();
    xlm_session & bert = f.slot();
    for (xlm_session * session : {&greta, &bert}) {
        f.connection.submit(f.command(CommandKind::open_session, session));
        Command & said = f.command(CommandKind::say, session);
        session->answer = said.id;
        f.connection.submit(said);
    }
    Command & cancel = f.command(CommandKind::cancel, &greta);
    cancel.answer = greta.answer;
    f.connection.submit(cancel);
    REQUIRE(f.shell.kinds() == std::vector<xlm_event_kind>{XLM_EVENT_DONE});
    CHECK_EQ(f.shell.events[0].finish_reason, XLM_FINISH_CANCELLED);
    f.connection.submit(f.command(CommandKind::close_session, &bert));
    CHECK_EQ(f.shell.recycled.size(), 6u); // all
    f.connection.close();
    CHECK_EQ(f.shell.count("say"), 0u);
}

TEST(a_client_that_ends_before_it_was_connected_leaves_nobody_waiting) {
    Fixture f;
    f.connection.start(0);
    Command & budget = f.command(CommandKind::set_budget);
    const auto waiter = budget.waiter = std::make_shared<Waiter>();
    f.connection.submit(budget);
    f.connection.close();
    Failure why;
    xlm_lease lease = XLM_LEASE_INIT;
    REQUIRE(waiter->wait(std::chrono::seconds(0), why, lease));
    CHECK_EQ(why.result, XLM_ERROR_NOT_READY);
    CHECK_EQ(f.shell.recycled.size(), 1u);
}

TEST(a_heartbeat_of_zero_is_no_busy_loop) {
    Timing timing;
    timing.welcome(0, 0.0, 0.0);
    CHECK(timing.heartbeat >= 10 * ms);
    CHECK(timing.ttl >= 2 * timing.heartbeat);
}

TEST(everything_under_way_fails_when_the_peer_is_lost_in_order) {
    Fixture f;
    f.make_ready();
    xlm_session & session = f.open_session();
    f.connection.submit(f.command(CommandKind::say, &session));
    f.connection.submit(f.command(CommandKind::set_budget));
    f.connection.submit(f.command(CommandKind::get_status));
    f.connection.lost(0, gone);
    CHECK(f.shell.kinds() ==
          (std::vector<xlm_event_kind>{XLM_EVENT_STATE, XLM_EVENT_FAILED, XLM_EVENT_LEASE, XLM_EVENT_STATUS}));
    for (const Event & event : f.shell.events)
        CHECK_EQ(event.failure.result, XLM_ERROR_BROKER_GONE);
    CHECK_EQ(f.connection.pending_count(), 0u);
    CHECK_EQ(f.shell.recycled.size(), 4u);
    CHECK_EQ(session.answer.load(), 0u);
}

TEST(wishes_and_sessions_are_restored_before_it_is_ready) {
    Fixture f;
    f.make_ready();
    xlm_session & session = f.open_session();
    Command & budget = f.command(CommandKind::set_budget);
    budget.bytes = 77;
    f.connection.submit(budget);
    Command & reserve = f.command(CommandKind::reserve);
    reserve.bytes = 5;
    f.connection.submit(reserve);
    f.connection.lost(0, gone);
    f.shell.sent.clear();
    f.connection.tick(10 * second_ns);
    f.welcome(10 * second_ns);
    CHECK(f.connection.phase() == Phase::restoring);
    CHECK(f.shell.sent[1].find("\"cap_bytes\":77") != std::string::npos);
    CHECK(f.shell.sent[2].find("\"bytes\":5") != std::string::npos);
    CHECK(f.shell.sent[3].find("\"resume\":\"s-1\"") != std::string::npos);
    CHECK_EQ(session.state.load(), std::uint32_t(XLM_SESSION_OPENING));
    f.opened(f.last_id(), true);
    CHECK(f.connection.phase() == Phase::ready);
    CHECK_EQ(session.state.load(), std::uint32_t(XLM_SESSION_OPEN));
}

TEST(a_game_hears_that_it_is_ready_before_it_hears_of_its_sessions) {
    Fixture f;
    f.make_ready();
    xlm_session & first = f.open_session();
    xlm_session & second = f.open_session();
    f.connection.lost(0, gone);
    f.connection.tick(10 * second_ns);
    f.welcome(10 * second_ns);
    const std::uint64_t last = f.last_id();
    f.shell.events.clear();
    f.opened(last - 1, true);
    CHECK(f.shell.events.empty());
    f.opened(last, false);
    REQUIRE(f.shell.events.size() == 3);
    CHECK_EQ(f.shell.events[0].kind, xlm_event_kind(XLM_EVENT_STATE));
    CHECK_EQ(f.shell.events[0].state, xlm_client_state(XLM_CLIENT_READY));
    CHECK_EQ(f.shell.events[1].kind, xlm_event_kind(XLM_EVENT_SESSION_RESUMED));
    CHECK(f.shell.events[1].session == &first);
    CHECK_EQ(f.shell.events[2].kind, xlm_event_kind(XLM_EVENT_SESSION_RESET));
    CHECK(f.shell.events[2].session == &second);
}

TEST(a_session_that_began_anew_unheard_is_not_told_as_resumed) {
    Fixture f;
    f.make_ready();
    f.open_session();
    f.open_session();
    f.connection.lost(0, gone);
    f.connection.tick(10 * second_ns);
    f.welcome(10 * second_ns);
    const std::uint64_t last = f.last_id();
    f.shell.events.clear();
    f.opened(last - 1, false); // and the connection breaks before the other one is back
    f.connection.lost(10 * second_ns, Failure(XLM_ERROR_BROKER_GONE, "gone again"));
    f.connection.tick(30 * second_ns);
    f.welcome(30 * second_ns);
    const std::uint64_t again = f.last_id();
    f.shell.events.clear();
    f.opened(again - 1, true);
    f.refused(again, "too_many_sessions");
    REQUIRE(f.shell.events.size() == 3);
    CHECK_EQ(f.shell.events[0].kind, xlm_event_kind(XLM_EVENT_STATE));
    CHECK_EQ(f.shell.events[1].kind, xlm_event_kind(XLM_EVENT_SESSION_RESET));
    CHECK_EQ(f.shell.events[2].kind, xlm_event_kind(XLM_EVENT_SESSION_LOST));
    CHECK_EQ(f.shell.events[2].failure.result, XLM_ERROR_TOO_MANY_SESSIONS);
}

TEST(a_refused_wish_is_not_asked_for_again) {
    Fixture f;
    f.make_ready();
    Command & good = f.command(CommandKind::set_budget);
    good.bytes = 100;
    f.connection.submit(good);
    Command & bad = f.command(CommandKind::set_budget);
    bad.bytes = 1;
    f.connection.submit(bad);
    f.refused(bad.id, "budget_infeasible");
    f.connection.lost(0, gone);
    f.shell.sent.clear();
    f.connection.tick(10 * second_ns);
    f.welcome(10 * second_ns);
    CHECK_EQ(f.shell.count("set_budget"), 1u);
    CHECK(f.shell.sent[1].find("\"cap_bytes\":100") != std::string::npos);
}

TEST(a_lifted_cap_is_not_asked_for_again) {
    Fixture f;
    f.make_ready();
    Command & cap = f.command(CommandKind::set_budget);
    cap.bytes = 100;
    f.connection.submit(cap);
    Command & none = f.command(CommandKind::set_budget);
    none.bytes = XLM_NO_CAP;
    f.connection.submit(none);
    f.connection.lost(0, gone);
    f.shell.sent.clear();
    f.connection.tick(10 * second_ns);
    f.welcome(10 * second_ns);
    CHECK_EQ(f.shell.count("set_budget"), 0u);
}

TEST(a_wish_refused_at_restoration_is_a_notice) {
    Fixture f;
    Command & cap = f.command(CommandKind::set_budget);
    cap.bytes = 100;
    cap.wish_only = true;
    f.connection.start(0);
    f.connection.tick(second_ns); // nobody answers
    f.connection.submit(cap);
    f.welcome(second_ns);
    const std::uint64_t restored = f.last_id();
    f.shell.events.clear();
    f.refused(restored, "budget_infeasible");
    REQUIRE(f.shell.events.size() == 1);
    CHECK_EQ(f.shell.events[0].kind, xlm_event_kind(XLM_EVENT_NOTICE));
    CHECK_EQ(f.shell.events[0].notice, xlm_notice_kind(XLM_NOTICE_RESTORE_FAILED));
    CHECK_EQ(f.shell.events[0].failure.result, XLM_ERROR_BUDGET_INFEASIBLE);
}

TEST(frame_reports_stop_where_the_broker_knows_none) {
    Fixture f;
    f.make_ready();
    f.connection.report({});
    CHECK_EQ(f.shell.count("frame"), 1u);
    f.refused(f.last_id(), "unknown_type");
    f.connection.report({});
    CHECK_EQ(f.shell.count("frame"), 1u);
    CHECK(f.shell.events.empty());
}

TEST(every_wire_code_arrives_as_its_result) {
    Fixture f;
    f.make_ready();
    for (xlm_result result = -1; result > -1000; result--) {
        const CodeInfo * code = find_code(result);
        if (code == nullptr || result > XLM_ERROR_BAD_REQUEST) continue;
        if (result == XLM_ERROR_LEASE_EXPIRED || result == XLM_ERROR_NOT_CONNECTED) continue; // they end the connection
        Command & status = f.command(CommandKind::get_status);
        f.connection.submit(status);
        f.refused(status.id, std::string(code->name).c_str());
        CHECK_EQ(f.shell.events.back().failure.result, result);
    }
    CHECK(f.shell.events.size() > 40);
}

TEST(closing_says_goodbye) {
    Fixture f;
    f.make_ready();
    f.connection.close();
    CHECK_EQ(f.shell.count("goodbye"), 1u);
    CHECK_EQ(f.connection.next_deadline(), never);
}

XLM_TEST_MAIN
