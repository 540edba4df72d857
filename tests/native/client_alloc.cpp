// No call of the game thread allocates once warmed up.
#include "client_counting.hpp"
#include "client_fixture.hpp"

using namespace xlm::test;

namespace {

/// Allocations of the game thread in `body`.
template <typename Body>
std::uint64_t counted(Body && body) {
    const std::uint64_t before = n_allocations;
    body();
    return n_allocations - before;
}

struct Counts {
    std::uint64_t tokens = 0, done = 0;
};

void count_events(void * self, const xlm_event * event) {
    auto & counts = *static_cast<Counts *>(self);
    counts.tokens += event->kind == XLM_EVENT_TOKENS;
    counts.done += event->kind == XLM_EVENT_DONE;
}

} // namespace

TEST(the_counter_counts) {
    void * volatile kept = nullptr; // or the compiler leaves the pair out
    CHECK_EQ(counted([&] { kept = ::operator new(1); }), 1u);
    ::operator delete(kept);
    CHECK_EQ(counted([&] { kept = calloc(1, 1); }), 1u);
    free(kept);
}

TEST(frames_of_a_game_allocate_nothing) {
    FakeBroker broker;
    std::string answer = "a";
    for (int i = 0; i < 60; i++)
        answer += " word";
    broker("answer\t" + answer);
    Counts counts;
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    options.name = xlm_str_from("frames");
    options.endpoint = xlm_str_from(broker.endpoint.c_str());
    options.on_event = count_events;
    options.user_data = &counts;
    xlm_client * client = nullptr;
    REQUIRE(xlm_client_create(&options, &client) == XLM_SUCCESS);
    REQUIRE(xlm_client_ready_wait(client, long_ns) == XLM_SUCCESS);
    xlm_session_options character = XLM_SESSION_OPTIONS_INIT;
    xlm_session * greta = nullptr;
    REQUIRE(xlm_session_open(client, &character, &greta) == XLM_SUCCESS);
    xlm_budget budget = XLM_BUDGET_INIT;
    xlm_frame_info frame = XLM_FRAME_INFO_INIT;
    frame.frame_ns = 1'000'000;
    const xlm_str words = XLM_STR_LITERAL("What have you heard of late?");
    std::string pixels(256 * 1024, 'p'); // a picture that is lent, another one each time
    xlm_image picture = XLM_IMAGE_INIT;
    picture.data = pixels.data();
    picture.size_bytes = pixels.size();
    picture.release = [](void * n_released, const void *) { ++*static_cast<std::uint64_t *>(n_released); };
    std::uint64_t n_released = 0;
    picture.release_user_data = &n_released;
    xlm_say_options how = XLM_SAY_OPTIONS_INIT;
    how.images = &picture;
    how.n_images = 1;
    std::uint64_t allocations = 0;
    for (std::uint64_t turn = 1; turn <= 20; turn++) {
        pixels[0] = static_cast<char>(turn);
        const std::uint64_t of_this_turn = counted([&] {
            xlm_lease lease = XLM_LEASE_INIT;
            xlm_event event = XLM_EVENT_INIT;
            budget.cap_bytes = turn << 20;
            xlm_client_poll(client, 0); // mostly idle
            xlm_client_set_budget(client, &budget, nullptr);
            xlm_client_reserve(client, turn, XLM_NO_DEADLINE, nullptr);
            xlm_client_request_status(client, nullptr);
            xlm_client_get_lease(client, &lease);
            xlm_session_say(greta, words, &how, nullptr);
            xlm_session_say(greta, words, &how, nullptr); // busy: an error is no allocation either
            while (counts.done < turn) {
                xlm_frame(client, &frame);
                xlm_client_poll(client, 100'000);
                if (xlm_client_next_event(client, &event) == 1) count_events(&counts, &event);
                xlm_client_event_wait(client, 1'000'000);
            }
        });
        if (turn > 2) allocations += of_this_turn; // the first ones warm up
    }
    CHECK(counts.tokens > 1000);
    CHECK_EQ(allocations, 0u);
    CHECK_EQ(n_released, 20u);
    CHECK_EQ(xlm_client_destroy(client), XLM_SUCCESS);
}

XLM_TEST_MAIN
