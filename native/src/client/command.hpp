// What the game wants, on its way to the I/O thread. Commands are pooled and keep their buffers.
#pragma once

#include <algorithm>
#include <array>
#include <condition_variable>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <string>
#include <vector>

#include "errors.hpp"
#include "memory.hpp"
#include "picture.hpp"

namespace xlm::client {

/// `image`: of an upload, which no command of the game asks for by itself.
enum class CommandKind { set_budget, reserve, open_session, close_session, say, cancel, get_status, image };

/// Where a *_wait call sleeps. Shared: whoever leaves last frees it, so that a time-out needs no handshake.
class Waiter {
public:
    void complete(const Failure & failure, const xlm_lease & lease) {
        {
            const std::lock_guard lock(mutex_);
            failure_ = failure;
            lease_ = lease;
            done_ = true;
        }
        changed_.notify_all();
    }

    /// False: not within `timeout`.
    template <typename Duration>
    bool wait(Duration timeout, Failure & failure, xlm_lease & lease) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, timeout, [&] { return done_; })) return false;
        failure = failure_;
        lease = lease_;
        return true;
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false;
    Failure failure_;
    xlm_lease lease_ = XLM_LEASE_INIT;
};

inline constexpr std::uint32_t max_stops = 16;

struct Command {
    Command(std::uint32_t at, Memory * memory)
        : index(at), text(memory), grammar(memory), json_schema(memory), stops(memory), pictures(memory) {
        text.reserve(1024);
        pictures.reserve(2);
    }

    std::uint32_t index; // in its pool
    CommandKind kind = CommandKind::get_status;
    std::uint64_t id = 0; // of the request, and so of ticket or answer
    xlm_session * session = nullptr;
    bool wish_only = false; // there is no connection: keep it, tell nobody
    std::uint64_t bytes = 0;
    std::uint64_t deadline_ns = XLM_NO_DEADLINE;
    std::uint32_t choice = 0;                   // set_budget: xlm_require; open_session: xlm_overflow
    std::uint64_t answer = 0;                   // cancel
    xlm_say_options say = XLM_SAY_OPTIONS_INIT; // numbers only; the texts are below
    std::pmr::string text;                      // say: the words; open_session: the system text
    std::pmr::string grammar, json_schema;      // open_session: `grammar` is the id to resume
    std::pmr::string stops;                     // one after the other
    std::array<std::uint16_t, max_stops> stop_bytes{};
    std::shared_ptr<Waiter> waiter;     // of a *_wait call
    std::pmr::vector<Picture> pictures; // say: uploaded before it is sent

    bool borrows() const noexcept {
        return std::any_of(pictures.begin(), pictures.end(), [](const Picture & one) { return one.lent != nullptr; });
    }
};

} // namespace xlm::client
