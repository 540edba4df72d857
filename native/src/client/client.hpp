// The object behind xlm_client: the game's side of what it shares with the I/O thread.
#pragma once

#include <memory>
#include <string_view>
#include <thread>

#include "io.hpp"
#include "shared.hpp"

namespace xlm::client {

/// A struct as the game sees it, with what its pointers lead to.
struct EventView {
    xlm_event event = XLM_EVENT_INIT;
    xlm_error error = XLM_ERROR_INIT;
    xlm_status_info status = XLM_STATUS_INFO_INIT;
};

/// What came of giving back the images of a request.
struct Returned {
    bool threw = false, by_event = false;
};

/// Results that a game meets in its frame. Returned, never thrown: to throw is to allocate.
xlm_result overloaded() noexcept;

/// Which child of a fork() this process is: 0 in the one that loaded the library.
std::uint32_t fork_generation() noexcept;

} // namespace xlm::client

struct xlm_client {
public:
    /// Options are checked and complete. Throws Failed, std::bad_alloc, std::system_error.
    xlm_client(const xlm_client_options & options, xlm::client::IoOptions io_options);

    static xlm_client * make(const xlm_client_options & options);
    static void destroy(xlm_client * client) noexcept;

    std::int32_t poll(std::uint64_t max_time_ns);
    std::int32_t next_event(xlm_event * out);
    void attach_thread() noexcept { poll_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed); }
    void check_alive() const;       // throws Failed: FORKED
    void check_poll_thread();       // throws Failed: WRONG_THREAD, IN_CALLBACK; the first caller becomes it
    void check_no_callback() const; // throws Failed: IN_CALLBACK

    bool wait_event(std::uint64_t timeout_ns);
    bool wait_ready(std::uint64_t timeout_ns, xlm::client::Failure & why);

    /// A command to fill in; nullptr: too many are under way. Throws Failed: FORKED.
    xlm::client::Command * take_command(xlm::client::CommandKind kind);
    void put_back(xlm::client::Command & command) noexcept {
        command.pictures.clear();
        shared.free_commands.release(command.index);
    }
    std::uint64_t submit(xlm::client::Command & command) noexcept; // its id
    bool ready() const noexcept { return shared.state.load(std::memory_order_acquire) == XLM_CLIENT_READY; }
    bool takes() const noexcept { return shared.takes.load(std::memory_order_acquire); }
    xlm_result absent() const noexcept; // why it takes no requests now

    xlm::client::HostMemory memory; // first, so that it goes last
    xlm::client::Shared shared;

private:
    bool deliver(xlm::client::Event & event); // true: the game's, false: only passing through
    void call_back(const xlm::client::Event & event);
    void release_held() noexcept;
    void ask_for_more() noexcept;
    bool return_images(); // true: `released_` is an event for the game
    void return_all_images() noexcept;
    xlm::client::Returned return_images_of(xlm::client::Command & command) noexcept;
    void log(const xlm::client::Event & event) const;
    const xlm_event & view(const xlm::client::Event & event);

    xlm_event_fn on_event_;
    void * user_data_;
    xlm_log_fn on_log_;
    void * log_user_data_;
    std::uint32_t generation_;
    std::atomic<std::thread::id> poll_thread_{};
    std::atomic<std::thread::id> callback_thread_{}; // none: no callback is running
    xlm::client::Event released_;                    // XLM_EVENT_IMAGES_RELEASED, as it is handed out
    bool holding_ = false;                           // next_event() lent the front of the queue
    xlm::client::EventView view_;
    xlm::client::Io io_; // last: its thread uses the rest
};
