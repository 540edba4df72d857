#include "io.hpp"

#include "answer_quickly.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#ifdef _WIN32
#include <process.h>
#else
#include <csignal>
#include <pthread.h>
#include <unistd.h>
#endif

namespace xlm::client {

namespace {

constexpr std::size_t max_outbox = 1024;     // frames waiting for a broker that does not read
constexpr std::size_t max_overflow = 16'384; // events waiting for a game that does not poll; then reading stops
constexpr int batch = 256;                   // frames taken in one go before the game is told
constexpr Nanoseconds report_interval = 100'000'000;
#define XLM_TEXT_OF(number) #number
#define XLM_VERSION_TEXT(major, minor, patch) XLM_TEXT_OF(major) "." XLM_TEXT_OF(minor) "." XLM_TEXT_OF(patch)
constexpr std::string_view sdk = "libxlm-" XLM_VERSION_TEXT(XLM_VERSION_MAJOR, XLM_VERSION_MINOR, XLM_VERSION_PATCH);

Nanoseconds now_ns() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

std::int64_t process_id() {
#ifdef _WIN32
    return _getpid();
#else
    return getpid();
#endif
}

#ifndef _WIN32
/// Signals are for the game's threads: with all of them blocked here, none of its handlers runs on this one.
class NoSignals {
public:
    NoSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};
#else
struct NoSignals {};
#endif

xlm_client_state visible_state(Phase phase) {
    switch (phase) {
    case Phase::ready: return XLM_CLIENT_READY;
    case Phase::failed: return XLM_CLIENT_FAILED;
    default: return XLM_CLIENT_CONNECTING;
    }
}

} // namespace

Io::Io(Memory * memory, Shared & shared, IoOptions options)
    : memory_(memory), shared_(shared), options_(std::move(options)), socket_(options_.endpoint, options_.server_key),
      connection_(memory, Identity{options_.name, sdk, process_id()}, shared.next_id, *this), outbox_(memory),
      overflow_(memory), log_event_(memory) {}

void Io::start() {
    [[maybe_unused]] const NoSignals guard;
    thread_ = std::thread([this] { run(); });
#ifdef __linux__
    pthread_setname_np(thread_.native_handle(), "xlm-io");
#endif
}

void Io::stop() {
    if (!thread_.joinable()) return;
    shared_.stopping.store(true, std::memory_order_release);
    shared_.waker.wake();
    thread_.join();
}

void Io::run() noexcept {
    answer_quickly(); // so do the threads of its socket, which start from here
    try {
        connection_.start(now_ns());
        loop();
    } catch (const Failed & error) {
        give_up(error.failure);
    } catch (const std::bad_alloc &) {
        give_up(Failure(XLM_ERROR_OUT_OF_MEMORY, "the host's allocator has no memory"));
    } catch (const std::exception & error) {
        give_up(Failure(XLM_ERROR_INTERNAL, error.what()));
    }
    end();
}

void Io::loop() {
    while (!shared_.stopping.load(std::memory_order_acquire)) {
        try {
            flush_outbox();
            socket_.poll(shared_.waker, timeout_ms(), !outbox_.empty());
            turn();
        } catch (const std::bad_alloc &) {
            // What was under way is in doubt: begin anew. The ring and the pools are untouched by this.
            connection_.lost(now_ns(), Failure(XLM_ERROR_BROKER_GONE, "out of memory"));
        }
    }
}

void Io::turn() {
    shared_.waker.clear();
    flush_overflow();
    take_requests();
    const bool reads = overflow_.size() < max_overflow;
    if (reads) receive();
    watch();
    take_frames(now_ns());
    connection_.work();
    connection_.tick(now_ns());
    announce();
}

void Io::take_requests() {
    std::uint32_t index;
    while (shared_.requests.pop(index))
        connection_.submit(shared_.commands[index]);
}

void Io::take_frames(Nanoseconds now) {
    FrameSample sample;
    while (shared_.frames.pop(sample)) {
        frames_.frames++;
        frames_.frame_sum_ns += sample.frame_ns;
        frames_.frame_max_ns = std::max(frames_.frame_max_ns, sample.frame_ns);
        frames_.gpu_sum_ns += sample.gpu_ns;
        frames_.target_ns = sample.target_ns;
        frames_.over_target += sample.frame_ns > sample.target_ns;
        frames_.pacing = sample.pacing;
    }
    if (frames_.frames == 0 || now - last_report_ < report_interval) return;
    connection_.report(frames_);
    frames_ = {};
    last_report_ = now;
}

bool Io::receive() {
    for (int count = 0; count < batch; count++) {
        Received frame;
        if (!socket_.receive(frame)) return count > 0;
        connection_.receive(frame.view(), now_ns());
    }
    return true;
}

void Io::watch() {
    for (;;) {
        switch (socket_.watch()) {
        case Sight::nothing: return;
        case Sight::connected: peer_there_ = true; break;
        case Sight::disconnected:
            peer_there_ = false;
            connection_.lost(now_ns(), Failure(XLM_ERROR_BROKER_GONE, "the broker closed the connection"));
            break;
        case Sight::handshake_failed: connection_.handshake_failed(socket_.no_handshake());
        }
    }
}

void Io::flush_outbox() {
    while (!outbox_.empty() && socket_.send(outbox_.front()))
        outbox_.pop_front();
}

void Io::flush_overflow() {
    while (!overflow_.empty()) {
        Event * slot = shared_.events.back();
        if (slot == nullptr) return;
        *slot = overflow_.front();
        shared_.events.push();
        overflow_.pop_front();
        news_ = true;
    }
    shared_.overflowing.store(false, std::memory_order_release);
}

void Io::announce() {
    if (!std::exchange(news_, false)) return;
    { const std::lock_guard lock(shared_.mutex); } // who checked before this is asleep by now, or sees the news
    shared_.changed.notify_all();
}

void Io::end() {
    try {
        take_requests(); // so that nobody waits for one of them
        watch();
        const bool somebody_listens = peer_there_; // nobody: there is no lease to end, and nothing to wait for
        connection_.close();
        flush_outbox();
        socket_.close(somebody_listens ? options_.goodbye_ms : 0);
    } catch (...) {
        socket_.close(0);
    }
}

long Io::timeout_ms() const {
    const Nanoseconds due = connection_.next_deadline();
    if (due == never) return -1;
    if (due == 0) return 0; // there is work
    return static_cast<long>(std::max<Nanoseconds>(0, due - now_ns()) / 1'000'000 + 1);
}

void Io::give_up(const Failure & why) noexcept {
    try {
        connection_.fail(why);
        announce();
        while (!shared_.stopping.load(std::memory_order_acquire)) { // calls are still answered
            socket_.poll(shared_.waker, -1, false);
            shared_.waker.clear();
            take_requests();
            flush_overflow();
            announce();
        }
    } catch (...) { // not even memory for the news: the state alone tells
        shared_.absence.store(why.result, std::memory_order_relaxed);
        shared_.takes.store(false, std::memory_order_release);
        shared_.state.store(XLM_CLIENT_FAILED, std::memory_order_release);
    }
}

// -- Shell ----------------------------------------------------------------------------------------------------------

void Io::dial() {
    outbox_.clear();
    peer_there_ = false;
    socket_.dial();
}

void Io::send(std::string_view frame) {
    if (outbox_.empty() && socket_.send(frame)) return;
    if (outbox_.size() >= max_outbox) return; // it does not read: its silence ends this connection soon
    outbox_.emplace_back(frame);
}

void Io::publish(Event & event) {
    news_ = true;
    if (Event * slot = overflow_.empty() ? shared_.events.back() : nullptr) {
        *slot = event;
        return shared_.events.push();
    }
    Event * last = overflow_.empty() ? nullptr : &overflow_.back();
    const bool joins = last && event.kind == XLM_EVENT_TOKENS && last->kind == event.kind && last->id == event.id;
    if (joins) { // pieces nobody looked at yet are one piece
        last->text += event.text;
        last->token_ids.insert(last->token_ids.end(), event.token_ids.begin(), event.token_ids.end());
    } else {
        overflow_.emplace_back(memory_) = event;
    }
    shared_.overflowing.store(true, std::memory_order_release);
}

void Io::recycle(Command & command) {
    command.waiter.reset();
    command.session = nullptr;
    if (command.borrows()) { // it is free once the game has its bytes back
        shared_.lent.push(command.index);
        news_ = true;
        return;
    }
    command.pictures.clear();
    shared_.free_commands.release(command.index);
}

void Io::phase_changed(Phase phase, bool takes, const Failure & why) {
    {
        const std::lock_guard lock(shared_.mutex);
        shared_.why = why;
    }
    if (why) shared_.absence.store(why.result, std::memory_order_relaxed);
    shared_.takes.store(takes, std::memory_order_release);
    shared_.state.store(visible_state(phase), std::memory_order_release);
    news_ = true;
}

void Io::log(xlm_log_level level, std::string_view line) {
    const bool crowded = shared_.events.size() > shared_.events.capacity() / 2; // answers come first
    if (!options_.wants_log || level < options_.log_level || crowded) return;
    log_event_.reset(event_log, nullptr, 0);
    log_event_.number = level;
    log_event_.text = line;
    publish(log_event_);
}

} // namespace xlm::client
