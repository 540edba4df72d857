#include "client.hpp"

#include <chrono>
#include <utility>

#ifndef _WIN32
#include <pthread.h>
#endif

#include "structs.hpp"
#include "utf8.hpp"

namespace xlm::client {

namespace {

using Clock = std::chrono::steady_clock;

std::atomic<std::uint32_t> n_forks{0};

#ifndef _WIN32
/// A child has this library's memory but not its threads: every client in it is dead.
const int fork_watch = pthread_atfork(nullptr, nullptr, [] { n_forks.fetch_add(1, std::memory_order_relaxed); });
#endif

/// Sets a flag for as long as a callback runs, whatever way it ends.
class Calling {
public:
    explicit Calling(std::atomic<std::thread::id> & flag) : flag_(flag) {
        flag_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    }
    ~Calling() { flag_.store({}, std::memory_order_relaxed); }

private:
    std::atomic<std::thread::id> & flag_;
};

xlm_str lend(std::string_view text) {
    return {text.data(), text.size()};
}

std::chrono::nanoseconds bounded(std::uint64_t timeout_ns) {
    constexpr std::uint64_t year_ns = std::uint64_t(365) * 86'400 * 1'000'000'000; // no overflow of the clock
    return std::chrono::nanoseconds(std::min(timeout_ns, year_ns));
}

std::string checked_text(xlm_str text, const char * what, std::size_t max_characters) {
    if (text.len > 0 && text.data == nullptr)
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, std::string(what) + " has a length and no data");
    const std::string_view view(text.data ? text.data : "", text.len);
    const auto characters = utf8::count(view);
    if (!characters) throw Failed(XLM_ERROR_INVALID_UTF8, std::string(what) + " is no UTF-8");
    if (*characters > max_characters) throw Failed(XLM_ERROR_INVALID_ARGUMENT, std::string(what) + " is too long");
    return std::string(view);
}

IoOptions io_options(const xlm_client_options & options) {
    IoOptions io;
    io.name = checked_text(options.name, "the name", max_name_characters);
    if (io.name.empty()) throw Failed(XLM_ERROR_INVALID_ARGUMENT, "a client needs a name: that of your game");
    io.endpoint = parse_endpoint(checked_text(options.endpoint, "the endpoint", 4096));
    io.server_key = find_server_key(io.endpoint, checked_text(options.server_key, "the server key", 4096));
    io.goodbye_ms = static_cast<int>(std::min<std::uint32_t>(options.goodbye_ms, 60'000));
    io.wants_log = options.on_log != nullptr;
    io.log_level = options.log_level;
    return io;
}

xlm_allocator checked_allocator(const xlm_allocator * given) {
    const xlm_allocator none = XLM_ALLOCATOR_INIT;
    if (given == nullptr) return none;
    const xlm_allocator allocator = read_struct(given, none);
    if ((allocator.allocate == nullptr) != (allocator.release == nullptr))
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, "an allocator needs both its functions");
    return allocator;
}

} // namespace

xlm_result overloaded() noexcept {
    return fail(XLM_ERROR_OVERLOADED, "256 requests are under way already");
}

std::uint32_t fork_generation() noexcept {
    return n_forks.load(std::memory_order_relaxed);
}

} // namespace xlm::client

using namespace xlm::client;

xlm_client::xlm_client(const xlm_client_options & options, IoOptions io)
    : memory(checked_allocator(options.allocator)), shared(&memory, options.max_sessions), on_event_(options.on_event),
      user_data_(options.user_data), on_log_(options.on_log), log_user_data_(options.log_user_data),
      generation_(fork_generation()), released_(&memory), io_(&memory, shared, std::move(io)) {
    for (xlm_session & session : shared.sessions)
        session.client = this;
    xlm_lease lease = XLM_LEASE_INIT;
    lease.cap_bytes = XLM_NO_CAP;
    shared.lease.store(lease);
    io_.start();
}

xlm_client * xlm_client::make(const xlm_client_options & options) {
    if (options.max_sessions < 1 || options.max_sessions > 4096)
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, "max_sessions is 1 to 4096");
    IoOptions io = io_options(options);
    HostMemory memory(checked_allocator(options.allocator));
    void * const place = memory.allocate(sizeof(xlm_client), alignof(xlm_client));
    try {
        return new (place) xlm_client(options, std::move(io));
    } catch (...) {
        memory.deallocate(place, sizeof(xlm_client), alignof(xlm_client));
        throw;
    }
}

void xlm_client::destroy(xlm_client * client) noexcept {
    HostMemory memory(client->memory);
    client->io_.stop();
    client->return_all_images();
    client->~xlm_client();
    memory.deallocate(client, sizeof(xlm_client), alignof(xlm_client));
}

// -- events ---------------------------------------------------------------------------------------------------------

std::int32_t xlm_client::poll(std::uint64_t max_time_ns) {
    check_poll_thread();
    release_held();
    std::int32_t count = 0;
    for (; return_images(); count++)
        call_back(released_);
    Event * event = shared.events.front();
    const auto start = event ? Clock::now() : Clock::time_point();
    while (event != nullptr) {
        struct Pop { // also where a callback throws
            SpscRing<Event> & ring;
            ~Pop() { ring.pop(); }
        };
        {
            const Pop pop{shared.events};
            if (deliver(*event)) {
                count++;
                call_back(*event);
            }
        }
        if (static_cast<std::uint64_t>((Clock::now() - start) / std::chrono::nanoseconds(1)) >= max_time_ns) break;
        event = shared.events.front();
    }
    ask_for_more();
    return count;
}

std::int32_t xlm_client::next_event(xlm_event * out) {
    check_poll_thread();
    release_held();
    if (return_images()) {
        write_struct(out, view(released_));
        return 1;
    }
    while (Event * event = shared.events.front()) {
        if (deliver(*event)) {
            write_struct(out, view(*event));
            holding_ = true; // its texts stay where they are until the next call
            return 1;
        }
        shared.events.pop();
    }
    ask_for_more();
    return 0;
}

void xlm_client::check_alive() const {
    if (generation_ != fork_generation()) throw Failed(XLM_ERROR_FORKED, "a client does not survive fork()");
}

void xlm_client::check_poll_thread() {
    check_alive();
    const std::thread::id self = std::this_thread::get_id();
    std::thread::id owner = poll_thread_.load(std::memory_order_relaxed);
    if (owner == std::thread::id() && poll_thread_.compare_exchange_strong(owner, self)) owner = self;
    if (owner != self) throw Failed(XLM_ERROR_WRONG_THREAD, "another thread is the poll thread");
    check_no_callback();
}

void xlm_client::check_no_callback() const {
    if (callback_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id())
        throw Failed(XLM_ERROR_IN_CALLBACK, "called within a callback");
}

bool xlm_client::deliver(Event & event) {
    if (event.kind == event_log) {
        log(event);
        return false;
    }
    if (event.kind == event_session_gone) { // the last event of its slot, which now is free
        shared.free_sessions.release(event.session->index);
        return false;
    }
    if (event.session == nullptr) return true;
    if (!event.session->open.load(std::memory_order_relaxed)) return false; // closed with this under way
    const bool opens = event.kind == XLM_EVENT_SESSION_OPENED || event.kind == XLM_EVENT_SESSION_RESUMED ||
                       event.kind == XLM_EVENT_SESSION_RESET;
    if (opens) {
        event.session->id = event.text;
        event.session->n_ctx = event.number;
    }
    return true;
}

void xlm_client::call_back(const Event & event) {
    const bool own = event.session && event.session->on_event;
    const xlm_event_fn function = own ? event.session->on_event : on_event_;
    if (function == nullptr) return;
    const Calling calling(callback_thread_);
    try {
        function(own ? event.session->user_data : user_data_, &view(event));
    } catch (...) {
        throw Failed(XLM_ERROR_CALLBACK_THREW, "an exception came out of an event callback");
    }
}

void xlm_client::log(const Event & event) const {
    if (on_log_ == nullptr) return;
    const Calling calling(const_cast<std::atomic<std::thread::id> &>(callback_thread_));
    on_log_(log_user_data_, event.number, lend(event.text));
}

void xlm_client::release_held() noexcept {
    if (std::exchange(holding_, false)) shared.events.pop();
}

bool xlm_client::return_images() {
    for (std::uint32_t index; shared.lent.pop(index);) {
        Command & command = shared.commands[index];
        const Returned returned = return_images_of(command);
        released_.reset(XLM_EVENT_IMAGES_RELEASED, nullptr, command.id);
        put_back(command);
        if (returned.threw) throw Failed(XLM_ERROR_CALLBACK_THREW, "an exception came out of the release of an image");
        if (returned.by_event) return true;
    }
    return false;
}

/// At the end, when nobody reads them any more: whatever became of the requests they belong to.
void xlm_client::return_all_images() noexcept {
    for (Command & command : shared.commands)
        (void)return_images_of(command);
}

Returned xlm_client::return_images_of(Command & command) noexcept {
    const Calling calling(callback_thread_);
    Returned returned;
    for (Picture & picture : command.pictures) {
        try {
            returned.by_event |= picture.give_back();
        } catch (...) {
            returned.threw = true;
        }
    }
    return returned;
}

void xlm_client::ask_for_more() noexcept {
    if (shared.overflowing.load(std::memory_order_acquire)) shared.waker.wake();
}

const xlm_event & xlm_client::view(const Event & event) {
    view_.error = event.failure.view();
    xlm_event & out = view_.event;
    out = XLM_EVENT_INIT;
    out.kind = event.kind;
    out.client = this;
    out.session = event.session;
    out.id = event.id;
    out.state = event.state;
    out.finish_reason = event.finish_reason;
    out.notice = event.notice;
    out.n_token_ids = static_cast<std::uint32_t>(event.token_ids.size());
    out.token_ids = event.token_ids.data();
    out.text = lend(event.text);
    out.error = event.failure ? &view_.error : nullptr;
    out.lease = event.has_lease ? &event.lease : nullptr;
    out.usage = event.kind == XLM_EVENT_DONE ? &event.usage : nullptr;
    if (event.kind == XLM_EVENT_NOTICE) out.detail = lend(event.detail);
    if (event.kind == XLM_EVENT_STATUS && !event.failure) {
        const StatusNumbers & n = event.status;
        view_.status = {static_cast<std::uint32_t>(sizeof(xlm_status_info)),
                        n.engine_state,
                        n.engine_restarts,
                        n.device_lost,
                        n.device_total_bytes,
                        n.device_used_bytes,
                        n.budget_bytes,
                        n.minimum_bytes,
                        n.demand_bytes,
                        n.tokens_per_s,
                        lend(event.device_kind),
                        lend(event.model_name),
                        lend(event.schedule_summary),
                        lend(event.detail),
                        n.resident_bytes};
        out.status = &view_.status;
    }
    return out;
}

// -- waiting --------------------------------------------------------------------------------------------------------

bool xlm_client::wait_event(std::uint64_t timeout_ns) {
    release_held();
    ask_for_more();
    std::unique_lock lock(shared.mutex);
    const auto something = [&] { return shared.events.front() != nullptr || !shared.lent.empty(); };
    return shared.changed.wait_for(lock, bounded(timeout_ns), something);
}

bool xlm_client::wait_ready(std::uint64_t timeout_ns, Failure & why) {
    const auto settled = [&] { return shared.state.load(std::memory_order_acquire) != XLM_CLIENT_CONNECTING; };
    std::unique_lock lock(shared.mutex);
    const bool in_time = shared.changed.wait_for(lock, bounded(timeout_ns), settled);
    why = shared.why;
    return in_time;
}

// -- requests -------------------------------------------------------------------------------------------------------

xlm_result xlm_client::absent() const noexcept {
    const xlm_result why = shared.absence.load(std::memory_order_relaxed);
    switch (why) {
    case XLM_ERROR_NOT_READY: return fail(why, "no broker answers yet");
    case XLM_ERROR_LEASE_EXPIRED: return fail(why, "the lease has ended, because the game stood still");
    case XLM_ERROR_BROKER_GONE: return fail(why, "there is no connection to the broker now");
    default: return fail(why, "the client has ended for good, as XLM_EVENT_STATE told");
    }
}

Command * xlm_client::take_command(CommandKind kind) {
    check_alive();
    const std::uint32_t index = shared.free_commands.take();
    if (index == FreeList::none) return nullptr;
    Command & command = shared.commands[index];
    command.kind = kind;
    command.session = nullptr;
    command.wish_only = false;
    for (auto * text : {&command.text, &command.grammar, &command.json_schema, &command.stops})
        text->clear();
    command.pictures.clear();
    return &command;
}

std::uint64_t xlm_client::submit(Command & command) noexcept {
    const std::uint64_t id = command.id = shared.next_id.fetch_add(1, std::memory_order_relaxed);
    shared.requests.push(command.index);
    shared.waker.wake();
    return id;
}
