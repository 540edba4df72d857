// What a connection does with answers and with sessions that come and go, without sockets, threads or clocks.
#include "client_connection_fixture.hpp"

using namespace xlm::test;

TEST(pieces_twice_are_dropped_and_a_gap_fails_the_answer) {
    Fixture f;
    f.make_ready();
    xlm_session & session = f.open_session();
    Command & say = f.command(CommandKind::say, &session);
    f.connection.submit(say);
    f.tokens(say.id, 0, "a");
    f.tokens(say.id, 0, "a");
    f.tokens(say.id, 1, "b");
    CHECK_EQ(f.shell.events.size(), 2u);
    f.tokens(say.id, 3, "d");
    REQUIRE(f.shell.events.size() == 3);
    CHECK_EQ(f.shell.events[2].failure.result, XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(std::string(f.shell.events[2].text), "ab");
    CHECK_EQ(f.shell.count("cancel"), 1u);
    f.tokens(say.id, 4, "e");
    CHECK_EQ(f.shell.events.size(), 3u);
}

TEST(what_was_said_to_a_session_that_is_refused_fails) {
    Fixture f;
    f.make_ready();
    xlm_session & session = f.slot();
    const std::uint64_t opening = f.begin_opening(session);
    f.connection.submit(f.command(CommandKind::say, &session));
    CHECK_EQ(f.shell.count("say"), 0u); // held
    f.refused(opening, "too_many_sessions");
    CHECK(f.shell.kinds() == (std::vector<xlm_event_kind>{XLM_EVENT_FAILED, XLM_EVENT_SESSION_LOST}));
    CHECK_EQ(session.state.load(), std::uint32_t(XLM_SESSION_LOST));
    f.connection.submit(f.command(CommandKind::say, &session));
    CHECK_EQ(f.shell.events.back().failure.result, XLM_ERROR_SESSION_UNKNOWN);
    CHECK_EQ(f.shell.recycled.size(), 3u);
}

TEST(a_held_say_can_be_cancelled) {
    Fixture f;
    f.make_ready();
    xlm_session & session = f.slot();
    const std::uint64_t opening = f.begin_opening(session);
    Command & say = f.command(CommandKind::say, &session);
    f.connection.submit(say);
    Command & cancel = f.command(CommandKind::cancel, &session);
    cancel.answer = say.id;
    f.connection.submit(cancel);
    CHECK(f.shell.kinds() == std::vector<xlm_event_kind>{XLM_EVENT_DONE});
    CHECK_EQ(f.shell.events[0].finish_reason, xlm_finish_reason(XLM_FINISH_CANCELLED));
    f.opened(opening, false);
    CHECK_EQ(f.shell.count("say"), 0u);
}

TEST(a_session_closed_while_it_opens_is_closed_at_the_broker_too) {
    Fixture f;
    f.make_ready();
    xlm_session & session = f.slot();
    const std::uint64_t opening = f.begin_opening(session);
    f.connection.submit(f.command(CommandKind::close_session, &session));
    CHECK(f.shell.kinds() == std::vector<xlm_event_kind>{event_session_gone});
    f.begin_opening(session); // the slot's next life
    f.opened(opening, false, "stray");
    CHECK_EQ(f.shell.count("close_session"), 1u);
    CHECK_EQ(session.state.load(), std::uint32_t(XLM_SESSION_OPENING));
}

TEST(a_session_closed_without_a_connection_is_closed_after_it) {
    Fixture f;
    f.make_ready();
    xlm_session & session = f.open_session();
    f.connection.lost(0, gone);
    f.connection.submit(f.command(CommandKind::close_session, &session));
    f.shell.sent.clear();
    f.connection.tick(10 * second_ns);
    f.welcome(10 * second_ns);
    CHECK_EQ(f.shell.count("close_session"), 1u);
    CHECK_EQ(f.shell.count("open_session"), 0u);
}

TEST(an_unknown_code_keeps_its_name) {
    Fixture f;
    f.make_ready();
    Command & status = f.command(CommandKind::get_status);
    f.connection.submit(status);
    f.refused(status.id, "brand_new");
    REQUIRE(f.shell.events.size() == 1);
    CHECK_EQ(f.shell.events[0].failure.result, XLM_ERROR_UNKNOWN_CODE);
    CHECK_EQ(f.shell.events[0].failure.message_view(), "brand_new: because");
}

XLM_TEST_MAIN
