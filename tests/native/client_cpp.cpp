// bindings/cpp over the library: handles that close themselves, whatever order they end in.
#include <xlm/xlm.hpp>

#include "client_fixture.hpp"

using namespace xlm::test;
using namespace std::chrono_literals;

namespace {

bool poll_until(xlm::Client & client, const std::function<bool()> & condition) {
    while (!condition()) {
        if (!client.event_wait(60s)) return false;
        if (client.poll_all() < 0) return false;
    }
    return true;
}

} // namespace

TEST(a_conversation) {
    FakeBroker broker;
    auto client = xlm::Client::create({"cpp", broker.endpoint});
    REQUIRE(client);
    REQUIRE(client->ready_wait(60s));
    const auto lease = client->set_budget_wait(std::uint64_t(64) << 20, 60s, 16ms);
    REQUIRE(const_cast<xlm::Expected<xlm_lease> &>(lease));
    std::string spoken;
    bool done = false;
    auto greta = client->open_session({"You are Greta."}, [&](const xlm::Event & event) {
        if (event.kind() == XLM_EVENT_TOKENS) spoken += event.text();
        done |= event.kind() == XLM_EVENT_DONE;
    });
    REQUIRE(greta);
    xlm::SayOptions options;
    options.temperature = 0.0;
    REQUIRE(greta->say("Hello", options));
    const auto busy = greta->say("Again");
    CHECK(!busy);
    CHECK_EQ(busy.error().name, "session_busy");
    REQUIRE(poll_until(*client, [&] { return done; }));
    CHECK_EQ(spoken, "Greetings, traveller.");
    CHECK(!greta->id().empty());
    CHECK_EQ(client->lease().granted_bytes, 64u << 20);
}

TEST(a_handler_may_destroy_its_own_session) {
    FakeBroker broker;
    auto client = xlm::Client::create({"cpp", broker.endpoint});
    REQUIRE(client);
    REQUIRE(client->ready_wait(60s));
    std::optional<xlm::Session> greta;
    const std::string kept_by_the_handler = "still here after the session has gone";
    std::string seen;
    auto opened = client->open_session({}, [&, kept_by_the_handler](const xlm::Event & event) {
        if (event.kind() != XLM_EVENT_TOKENS) return;
        greta.reset();
        seen = kept_by_the_handler;
    });
    REQUIRE(opened);
    greta = *std::move(opened);
    REQUIRE(greta->say("Hello"));
    REQUIRE(poll_until(*client, [&] { return !seen.empty(); }));
    CHECK(!greta.has_value());
}

TEST(sessions_may_outlive_their_client) {
    FakeBroker broker;
    xlm::Session greta;
    {
        auto client = xlm::Client::create({"cpp", broker.endpoint});
        REQUIRE(client);
        auto opened = client->open_session({"x"}, [](const xlm::Event &) {});
        REQUIRE(opened);
        greta = *std::move(opened);
        CHECK(greta);
        xlm::Client moved = *std::move(client);
        CHECK(greta);
    }
    CHECK(!greta);
    CHECK_EQ(greta.say("anyone?").error().result, XLM_ERROR_INVALID_HANDLE);
    CHECK_EQ(greta.close().code(), XLM_SUCCESS);
}

TEST(errors_keep_their_words) {
    const auto client = xlm::Client::create({"cpp", "tcp://example.org:1"});
    CHECK(!client);
    CHECK_EQ(client.error().name, "endpoint_not_local");
    CHECK_EQ(client.error().fault, XLM_FAULT_CALLER);
    CHECK(!client.error().hint.empty());
    xlm::Session none;
    CHECK(!none);
    CHECK(!none.cancel());
}

XLM_TEST_MAIN
