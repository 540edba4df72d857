// What needs no broker: arguments, handles, structs of other versions, allocators, logs, fork.
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "client_fixture.hpp"

using namespace xlm::test;

namespace {

const char * const nobody = "ipc:///tmp/xlm-test-nobody-is-here.sock";

xlm_client_options options_for(const char * endpoint = nobody) {
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    options.name = xlm_str_from("test");
    options.endpoint = xlm_str_from(endpoint);
    return options;
}

xlm_result create_and_destroy(const xlm_client_options & options) {
    xlm_client * client = nullptr;
    const xlm_result result = xlm_client_create(&options, &client);
    CHECK_EQ(client != nullptr, result == XLM_SUCCESS);
    CHECK_EQ(xlm_client_destroy(client), XLM_SUCCESS);
    return result;
}

/// Counts what it lends, and fails when it is told to.
struct Ledger {
    std::mutex mutex;
    std::map<void *, std::size_t> lent;
    long until_failure = -1;

    static void * allocate(void * self, std::size_t bytes, std::size_t alignment) {
        auto & ledger = *static_cast<Ledger *>(self);
        const std::lock_guard lock(ledger.mutex);
        if (ledger.until_failure >= 0 && ledger.until_failure-- == 0) {
            ledger.until_failure = 0;
            return nullptr;
        }
        void * memory = ::operator new(bytes, std::align_val_t(alignment));
        ledger.lent[memory] = bytes;
        return memory;
    }
    static void release(void * self, void * memory, std::size_t bytes, std::size_t alignment) {
        auto & ledger = *static_cast<Ledger *>(self);
        const std::lock_guard lock(ledger.mutex);
        CHECK_EQ(ledger.lent.at(memory), bytes);
        ledger.lent.erase(memory);
        ::operator delete(memory, std::align_val_t(alignment));
    }
    xlm_allocator hooks() {
        xlm_allocator hooks = XLM_ALLOCATOR_INIT;
        hooks.user_data = this;
        hooks.allocate = allocate;
        hooks.release = release;
        return hooks;
    }
};

struct WithClient {
    xlm_client * client = nullptr;
    WithClient() {
        const xlm_client_options options = options_for();
        if (xlm_client_create(&options, &client) != XLM_SUCCESS) throw RequirementFailed();
    }
    ~WithClient() { xlm_client_destroy(client); }

    /// Until it is told so, requests wait for a connection.
    void until_nobody_answers() {
        xlm_event event = XLM_EVENT_INIT;
        do {
            if (xlm_client_event_wait(client, long_ns) != XLM_SUCCESS) throw RequirementFailed();
        } while (xlm_client_next_event(client, &event) != 1 || event.kind != XLM_EVENT_STATE);
        CHECK_EQ(event.error->result, XLM_ERROR_NOT_READY);
    }
};

xlm_session * open_on(xlm_client * client) {
    const xlm_session_options options = XLM_SESSION_OPTIONS_INIT;
    xlm_session * session = nullptr;
    if (xlm_session_open(client, &options, &session) != XLM_SUCCESS) throw RequirementFailed();
    return session;
}

} // namespace

TEST(the_library_is_the_headers) {
    CHECK_EQ(xlm_version(), std::uint32_t(XLM_VERSION));
}

TEST(creation_checks_its_arguments) {
    xlm_client * client = nullptr;
    const xlm_client_options good = options_for();
    CHECK_EQ(xlm_client_create(nullptr, &client), XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_client_create(&good, nullptr), XLM_ERROR_INVALID_ARGUMENT);
    xlm_client_options bad = options_for();
    bad.struct_size = 0;
    CHECK_EQ(create_and_destroy(bad), XLM_ERROR_INVALID_ARGUMENT);
    bad = options_for();
    bad.name = xlm_str_from("");
    CHECK_EQ(create_and_destroy(bad), XLM_ERROR_INVALID_ARGUMENT);
    bad.name = xlm_str_from("\xFF");
    CHECK_EQ(create_and_destroy(bad), XLM_ERROR_INVALID_UTF8);
    const std::string long_name(257, 'x');
    bad.name = xlm_str_from(long_name.c_str());
    CHECK_EQ(create_and_destroy(bad), XLM_ERROR_INVALID_ARGUMENT);
    bad = options_for();
    bad.max_sessions = 0;
    CHECK_EQ(create_and_destroy(bad), XLM_ERROR_INVALID_ARGUMENT);
    bad.max_sessions = 5000;
    CHECK_EQ(create_and_destroy(bad), XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(create_and_destroy(options_for("nonsense")), XLM_ERROR_ENDPOINT_INVALID);
    CHECK_EQ(create_and_destroy(options_for("tcp://10.0.0.1:5")), XLM_ERROR_ENDPOINT_NOT_LOCAL);
    CHECK_EQ(create_and_destroy(options_for()), XLM_SUCCESS);
}

TEST(null_is_survived_everywhere) {
    const xlm_budget budget = XLM_BUDGET_INIT;
    const xlm_frame_info frame = XLM_FRAME_INFO_INIT;
    xlm_event event = XLM_EVENT_INIT;
    xlm_lease lease = XLM_LEASE_INIT;
    xlm_session_info info = XLM_SESSION_INFO_INIT;
    xlm_session * session = nullptr;
    CHECK_EQ(xlm_client_destroy(nullptr), XLM_SUCCESS);
    CHECK_EQ(xlm_session_close(nullptr), XLM_SUCCESS);
    CHECK_EQ(xlm_client_get_state(nullptr), XLM_CLIENT_FAILED);
    for (const xlm_result result :
         {xlm_client_poll(nullptr, 0), xlm_client_next_event(nullptr, &event), xlm_client_attach_thread(nullptr),
          xlm_client_get_lease(nullptr, &lease), xlm_client_ready_wait(nullptr, 0), xlm_client_event_wait(nullptr, 0),
          xlm_client_set_budget(nullptr, &budget, nullptr), xlm_client_set_budget_wait(nullptr, &budget, 0, nullptr),
          xlm_client_reserve(nullptr, 0, 0, nullptr), xlm_client_reserve_wait(nullptr, 0, 0, 0, nullptr),
          xlm_client_request_status(nullptr, nullptr), xlm_frame(nullptr, &frame),
          xlm_session_open(nullptr, nullptr, &session), xlm_last_error(nullptr), xlm_result_describe(0, nullptr)})
        CHECK_EQ(result, XLM_ERROR_INVALID_ARGUMENT);
    for (const xlm_result result : {xlm_session_say(nullptr, xlm_str_from("x"), nullptr, nullptr),
                                    xlm_session_cancel(nullptr, 0), xlm_session_get_info(nullptr, &info)})
        CHECK_EQ(result, XLM_ERROR_INVALID_HANDLE);
    WithClient with;
    CHECK_EQ(xlm_client_next_event(with.client, nullptr), XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_client_get_lease(with.client, nullptr), XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_client_set_budget(with.client, nullptr, nullptr), XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_frame(with.client, nullptr), XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(xlm_session_open(with.client, nullptr, &session), XLM_ERROR_INVALID_ARGUMENT);
}

TEST(every_error_is_described) {
    int known = 0;
    for (xlm_result result = 0; result > -1000; result--) {
        xlm_error error = XLM_ERROR_INIT;
        REQUIRE(xlm_result_describe(result, &error) == XLM_SUCCESS);
        CHECK_EQ(error.result, result);
        const bool is_known = text_of(error.name) != "unknown_result";
        known += is_known;
        if (is_known && result != XLM_SUCCESS) CHECK(error.fault != XLM_FAULT_NONE);
    }
    CHECK_EQ(known, XLM_TEST_N_CODES); // as many as xlm.h declares
}

TEST(the_last_error_is_each_threads_own) {
    xlm_client_create(nullptr, nullptr);
    std::thread([] {
        xlm_error error = XLM_ERROR_INIT;
        REQUIRE(xlm_last_error(&error) == XLM_SUCCESS);
        CHECK_EQ(error.result, XLM_SUCCESS);
    }).join();
    xlm_error error = XLM_ERROR_INIT;
    REQUIRE(xlm_last_error(&error) == XLM_SUCCESS);
    CHECK_EQ(error.result, XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(error.fault, XLM_FAULT_CALLER);
}

TEST(the_last_error_is_one_line_too) {
    std::thread([] { CHECK_EQ(std::string(xlm_last_error_line()), ""); }).join();
    xlm_session * session = nullptr;
    CHECK_EQ(xlm_session_open(nullptr, nullptr, &session), XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(std::string(xlm_last_error_line()),
             "invalid_argument: the client is NULL, or the place for the handle (compare the call with xlm.h)");
    WithClient with;
    CHECK_EQ(xlm_client_ready_wait(with.client, 1), XLM_ERROR_TIMEOUT);
    const std::string line = xlm_last_error_line();
    CHECK(line.find("timeout: no broker answers (") == 0);
    CHECK(line.find("xlm-broker --model demo --budget-from-game") != std::string::npos);
}

TEST(what_is_no_connection_is_told_from_what_is_wrong) {
    for (const xlm_result away : {XLM_ERROR_NOT_READY, XLM_ERROR_BROKER_GONE, XLM_ERROR_LEASE_EXPIRED}) {
        xlm_error error = XLM_ERROR_INIT;
        CHECK(xlm_is_disconnected(away));
        REQUIRE(xlm_result_describe(away, &error) == XLM_SUCCESS);
        CHECK_EQ(error.retryable, 1u);
        CHECK(error.hint.len > 0);
    }
    for (const xlm_result other : {XLM_SUCCESS, XLM_ERROR_OVERLOADED, XLM_ERROR_TIMEOUT, XLM_ERROR_NOT_CONNECTED})
        CHECK(!xlm_is_disconnected(other));
}

TEST(budget_arguments) {
    WithClient with;
    xlm_budget budget = XLM_BUDGET_INIT;
    budget.cap_bytes = (UINT64_C(1) << 62);
    CHECK_EQ(xlm_client_set_budget(with.client, &budget, nullptr), XLM_ERROR_BUDGET_INVALID);
    budget.cap_bytes--;
    with.until_nobody_answers();
    CHECK_EQ(xlm_client_set_budget(with.client, &budget, nullptr), XLM_ERROR_NOT_READY);
    budget.deadline_ns = XLM_NO_DEADLINE - 1;
    CHECK_EQ(xlm_client_set_budget(with.client, &budget, nullptr), XLM_ERROR_BUDGET_INVALID);
    budget = XLM_BUDGET_INIT;
    budget.require = 2;
    CHECK_EQ(xlm_client_set_budget(with.client, &budget, nullptr), XLM_ERROR_BUDGET_INVALID);
    CHECK_EQ(xlm_client_reserve(with.client, UINT64_MAX, 0, nullptr), XLM_ERROR_BUDGET_INVALID);
    xlm_frame_info frame = XLM_FRAME_INFO_INIT;
    frame.target_ns = 0;
    CHECK_EQ(xlm_frame(with.client, &frame), XLM_ERROR_INVALID_ARGUMENT);
}

TEST(session_handles_are_checked) {
    WithClient with;
    xlm_session * session = open_on(with.client);
    xlm_session_info info = XLM_SESSION_INFO_INIT;
    CHECK_EQ(xlm_session_get_info(session, &info), XLM_SUCCESS);
    CHECK_EQ(info.state, XLM_SESSION_OPENING);
    CHECK_EQ(info.id.len, 0u);
    with.until_nobody_answers();
    CHECK_EQ(xlm_session_say(session, xlm_str_from("x"), nullptr, nullptr), XLM_ERROR_NOT_READY);
    CHECK_EQ(xlm_session_close(session), XLM_SUCCESS);
    CHECK_EQ(xlm_session_close(session), XLM_ERROR_INVALID_HANDLE);
    CHECK_EQ(xlm_session_say(session, xlm_str_from("x"), nullptr, nullptr), XLM_ERROR_INVALID_HANDLE);
    xlm_session_options options = XLM_SESSION_OPTIONS_INIT;
    options.system = xlm_str_from("\xC3");
    CHECK_EQ(xlm_session_open(with.client, &options, &session), XLM_ERROR_INVALID_UTF8);
    options = XLM_SESSION_OPTIONS_INIT;
    options.overflow = 9;
    CHECK_EQ(xlm_session_open(with.client, &options, &session), XLM_ERROR_INVALID_ARGUMENT);
    const std::string huge(3 << 19, 'x');
    options = XLM_SESSION_OPTIONS_INIT;
    options.system = {huge.data(), huge.size()};
    CHECK_EQ(xlm_session_open(with.client, &options, &session), XLM_ERROR_FRAME_TOO_LARGE);
    CHECK(session == nullptr);
}

TEST(too_many_requests_are_refused_and_then_taken_again) {
    struct Gate { // an allocator that the I/O thread gets stuck in
        std::mutex mutex;
        std::condition_variable changed;
        std::thread::id game = std::this_thread::get_id();
        bool shut = false, stuck = false;

        void pass() {
            if (std::this_thread::get_id() == game) return;
            std::unique_lock lock(mutex);
            stuck = shut;
            changed.notify_all();
            changed.wait(lock, [&] { return !shut; });
        }
        void set(bool now_shut) {
            const std::lock_guard lock(mutex);
            shut = now_shut;
            changed.notify_all();
        }
    } gate;
    xlm_allocator hooks = XLM_ALLOCATOR_INIT;
    hooks.user_data = &gate;
    hooks.allocate = [](void * self, std::size_t bytes, std::size_t alignment) {
        static_cast<Gate *>(self)->pass();
        return ::operator new(bytes, std::align_val_t(alignment), std::nothrow);
    };
    hooks.release = [](void *, void * memory, std::size_t, std::size_t alignment) {
        ::operator delete(memory, std::align_val_t(alignment));
    };
    xlm_client_options options = options_for();
    options.allocator = &hooks;
    xlm_client * client = nullptr;
    REQUIRE(xlm_client_create(&options, &client) == XLM_SUCCESS);
    gate.set(true);
    xlm_session * session = open_on(client); // the I/O thread takes memory for it
    {
        std::unique_lock lock(gate.mutex);
        gate.changed.wait(lock, [&] { return gate.stuck; });
    }
    const xlm_budget budget = XLM_BUDGET_INIT;
    int taken = 0;
    while (xlm_client_set_budget(client, &budget, nullptr) != XLM_ERROR_OVERLOADED && taken < 1000)
        taken++;
    CHECK(taken >= 254); // of 256, one of which opens the session
    CHECK_EQ(xlm_client_set_budget(client, &budget, nullptr), XLM_ERROR_OVERLOADED);
    CHECK_EQ(xlm_session_close(session), XLM_ERROR_OVERLOADED); // and stays open
    gate.set(false);
    while (xlm_session_close(session) == XLM_ERROR_OVERLOADED)
        std::this_thread::yield();
    CHECK_EQ(xlm_client_destroy(client), XLM_SUCCESS);
}

TEST(structs_of_an_older_and_a_newer_header) {
    struct {
        xlm_client_options known;
        char more[64];
    } newer;
    std::memset(&newer, 0x55, sizeof newer);
    newer.known = options_for();
    newer.known.struct_size = sizeof newer;
    CHECK_EQ(create_and_destroy(newer.known), XLM_SUCCESS);
    xlm_client_options older = options_for();
    older.struct_size = offsetof(xlm_client_options, on_log); // what follows keeps its default
    older.on_log = reinterpret_cast<xlm_log_fn>(std::uintptr_t(1));
    older.allocator = reinterpret_cast<const xlm_allocator *>(std::uintptr_t(1));
    CHECK_EQ(create_and_destroy(older), XLM_SUCCESS);
    WithClient with;
    xlm_lease lease;
    std::memset(&lease, 0x55, sizeof lease);
    lease.struct_size = offsetof(xlm_lease, used_bytes);
    REQUIRE(xlm_client_get_lease(with.client, &lease) == XLM_SUCCESS);
    CHECK_EQ(lease.struct_size, offsetof(xlm_lease, used_bytes));
    CHECK_EQ(lease.granted_bytes, 0u);
    CHECK_EQ(lease.cap_bytes, UINT64_C(0x5555555555555555)); // not touched
}

TEST(all_memory_comes_from_the_host_and_goes_back) {
    Ledger ledger;
    const xlm_allocator hooks = ledger.hooks();
    {
        FakeBroker broker;
        xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
        options.allocator = &hooks;
        Game game(broker.endpoint, {}, options);
        REQUIRE(game.ready());
        game.say(game.open());
        REQUIRE(game.until(XLM_EVENT_DONE));
        CHECK(!ledger.lent.empty());
    }
    CHECK(ledger.lent.empty());
    xlm_allocator half = ledger.hooks();
    half.release = nullptr;
    xlm_client_options options = options_for();
    options.allocator = &half;
    CHECK_EQ(create_and_destroy(options), XLM_ERROR_INVALID_ARGUMENT);
}

TEST(creation_fails_cleanly_at_every_allocation) {
    Ledger ledger;
    const xlm_allocator hooks = ledger.hooks();
    xlm_client_options options = options_for();
    options.allocator = &hooks;
    options.max_sessions = 2;
    bool failed = true;
    for (long n = 0; failed; n += n < 20 ? 1 : 97) {
        ledger.until_failure = n;
        xlm_client * client = nullptr;
        const xlm_result result = xlm_client_create(&options, &client);
        failed = result == XLM_ERROR_OUT_OF_MEMORY;
        if (!failed) CHECK_EQ(result, XLM_SUCCESS); // the I/O thread may still meet the failure
        xlm_client_destroy(client);
        CHECK(ledger.lent.empty());
    }
}

TEST(running_out_of_memory_under_way_ends_in_a_code) {
    Ledger ledger;
    const xlm_allocator hooks = ledger.hooks();
    FakeBroker broker;
    for (long n = 0; n < 40; n++) {
        xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
        options.allocator = &hooks;
        ledger.until_failure = -1;
        Game game(broker.endpoint, {}, options);
        REQUIRE(game.ready());
        {
            const std::lock_guard lock(ledger.mutex);
            ledger.until_failure = n;
        }
        xlm_session_options character = XLM_SESSION_OPTIONS_INIT;
        const std::string system(4000, 'x'); // more than is kept ready
        character.system = xlm_str_from(system.c_str());
        xlm_session * session = nullptr;
        if (xlm_session_open(game.client, &character, &session) == XLM_SUCCESS)
            xlm_session_say(session, xlm_str_from(system.c_str()), nullptr, nullptr);
        const std::lock_guard lock(ledger.mutex);
        ledger.until_failure = -1;
    }
    CHECK(ledger.lent.empty());
}

TEST(logs_come_within_poll) {
    struct Log {
        std::vector<std::string> lines;
        std::thread::id thread;
    } log;
    FakeBroker broker;
    broker("fail\thello\ttoo_many_clients");
    xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
    options.on_log = [](void * self, xlm_log_level level, xlm_str line) {
        CHECK_EQ(level, XLM_LOG_WARNING);
        static_cast<Log *>(self)->lines.push_back(text_of(line));
        static_cast<Log *>(self)->thread = std::this_thread::get_id();
    };
    options.log_user_data = &log;
    Game game(broker.endpoint, {}, options);
    REQUIRE(game.ready());
    REQUIRE(log.lines.size() == 1);
    CHECK_EQ(log.lines[0], "scripted failure");
    CHECK(log.thread == std::this_thread::get_id());
}

TEST(a_child_process_is_told_that_the_client_is_its_parents) {
    WithClient with;
    xlm_session * session = open_on(with.client);
    const pid_t child = fork();
    if (child == 0) {
        const xlm_budget budget = XLM_BUDGET_INIT;
        const bool refused = xlm_client_poll(with.client, 0) == XLM_ERROR_FORKED &&
                             xlm_client_set_budget(with.client, &budget, nullptr) == XLM_ERROR_FORKED &&
                             xlm_session_cancel(session, 0) == XLM_ERROR_FORKED &&
                             xlm_client_destroy(with.client) == XLM_ERROR_FORKED;
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
    CHECK_EQ(xlm_client_poll(with.client, 0), 0); // the parent goes on
}

XLM_TEST_MAIN
