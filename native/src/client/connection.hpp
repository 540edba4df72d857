// The client's side of the protocol, without sockets, threads or clocks: it is told what happens and when, and
// tells a Shell what to do. The shape is that of sdk/xlm/_base.py, whose Connection does the same for Python.
//
//     CONNECTING --welcome--> RESTORING --sessions taken up--> READY
//         ^                                                      |
//         +------------- nothing heard for ttl, peer lost -------+
//     FAILED: refused for good. CLOSED: the game destroyed the client.
//
// Sessions, cap and reservation are wishes: kept here, and put to the broker anew after each connection.
// What a game asks before its first connection waits for it: a client is made and spoken through in one breath. It
// waits as long as the first HELLO may stay unanswered; then the game is told that nobody is there.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <unordered_map>

#include "codec.hpp"
#include "session.hpp"
#include "sha256.hpp"

namespace xlm::client {

using Nanoseconds = std::int64_t; // of any monotonic clock
inline constexpr Nanoseconds second_ns = 1'000'000'000;
inline constexpr Nanoseconds never = INT64_MAX;

enum class Phase { connecting, restoring, ready, failed, closed };

/// Carries out what a Connection decides. Frames and events are only lent.
class Shell {
public:
    virtual ~Shell() = default;
    virtual void dial() = 0; // drop the socket with all that is queued in it, open a fresh one
    virtual void send(std::string_view frame) = 0;
    virtual void publish(Event & event) = 0;
    virtual void recycle(Command & command) = 0; // it is done with
    /// `takes`: requests are taken now, to be carried out or to wait for the first connection.
    virtual void phase_changed(Phase phase, bool takes, const Failure & why) = 0;
    virtual void lease_changed(const xlm_lease & lease) = 0;
    virtual void log(xlm_log_level level, std::string_view line) = 0;
};

/// When something is due.
struct Timing {
    Nanoseconds attempt_ends = 0;
    Nanoseconds attempt = second_ns; // how long one HELLO may stay unanswered; doubles up to
    static constexpr Nanoseconds longest_attempt = 8 * second_ns;
    Nanoseconds heartbeat = second_ns;
    Nanoseconds ttl = 3 * second_ns;
    Nanoseconds next_ping = 0;
    Nanoseconds last_tick = 0;
    // How long nothing has been heard while this process ran: one that was stopped, or got no CPU, did not listen, and
    // has asked nothing. So no step counts for more than a heartbeat.
    Nanoseconds silence = 0;

    void next_attempt(Nanoseconds now);
    void welcome(Nanoseconds now, double heartbeat_ms, double ttl_ms);
    void pass(Nanoseconds now);
    void heard(Nanoseconds now);
    Nanoseconds silent_at() const { return last_tick + std::max<Nanoseconds>(0, ttl - silence); }
};

class Connection {
public:
    /// `identity`'s texts must outlive it. `next_id` is shared with whoever else makes request ids.
    Connection(Memory * memory, const Identity & identity, std::atomic<std::uint64_t> & next_id, Shell & shell);

    // -- events
    void start(Nanoseconds now);
    void submit(Command & command); // taken over; goes back through Shell::recycle
    void receive(std::string_view frame, Nanoseconds now);
    void tick(Nanoseconds now);
    void lost(Nanoseconds now, const Failure & why);
    void handshake_failed(std::string_view why) { trouble_ = why; }
    void report(const FrameReport & frames); // dropped where there is no connection, or no broker that knows it
    void work();                             // a slice of what takes time (an image's hash), under a millisecond
    void close();
    void fail(const Failure & why); // for good

    // -- what holds
    Phase phase() const { return phase_; }
    Nanoseconds next_deadline() const;
    std::size_t pending_count() const { return pending_.size(); }

private:
    struct Wish { // the last cap or reservation asked for
        std::uint64_t bytes = 0;
        std::uint32_t choice = 0;
        bool active = false;
        bool operator==(const Wish & other) const {
            return bytes == other.bytes && choice == other.choice && active == other.active;
        }
    };
    struct Call { // a request under way
        CommandKind kind = CommandKind::get_status;
        xlm_session * session = nullptr;
        bool restoring = false; // nobody asked: no event
        Wish asked, previous;   // of set_budget and reserve: what it asks for and what that replaced
        std::shared_ptr<Waiter> waiter;
        std::pmr::string text; // of an answer, so far
        std::int64_t next_seq = 0;
        std::uint64_t upload = 0; // of image: which attempt it belongs to
        explicit Call(Memory * memory) : text(memory) {}
    };
    struct Conversation {
        xlm_session * handle;
        std::pmr::string system, id;
        xlm_overflow overflow = XLM_OVERFLOW_ERROR;
        bool was_open = false;
        bool lost = false;
        std::uint64_t opening = 0;            // the request; 0: none
        Command * held = nullptr;             // said before it was open
        xlm_event_kind news = XLM_EVENT_NONE; // to be told once the state is READY: the game may speak again then
        std::uint32_t n_ctx = 0;
        Failure why; // of SESSION_LOST
        Conversation(xlm_session * of, Memory * memory) : handle(of), system(memory), id(memory) {}
    };

    struct Upload { // of the image whose turn it is
        std::uint64_t number = 0;
        std::uint32_t at = 0; // which image of its answer
        std::uint32_t attempts = 1;
        std::uint32_t unanswered = 0; // chunks
        std::size_t hashed = 0, sent = 0;
        bool begun = false, told = false, ended = false; // IMAGE_BEGIN sent, answered; IMAGE_END sent
        Sha256 hash;
    };

    // connection.cpp
    void carry_out(Command & command);
    bool is_early(const Command & command) const;
    void release_early();
    void lose_patience();
    void tell_state(xlm_client_state state, const Failure & why);
    void dial(Nanoseconds now);
    void move_to(Phase phase, const Failure & why);
    std::uint64_t fresh_id() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
    Failure absence() const;
    void dispatch(const Reply & reply, std::string_view frame, Nanoseconds now);
    void welcomed(const Reply & reply, Nanoseconds now);
    void refused(const Reply & reply, Nanoseconds now);
    void notice(const Reply & reply, std::string_view frame);
    void fail_pending(const Failure & why);
    void settle(std::uint64_t id);
    Call & expect(std::uint64_t id, CommandKind kind, xlm_session * session);
    template <typename Encode>
    void send(Encode && encode);

    // connection_calls.cpp: requests of the game and their answers
    void ask_budget(Command & command);
    void ask_status(Command & command);
    void cancel(const Command & command);
    void answered(const Reply & reply, std::string_view frame);
    void leased(Call & call, const Reply & reply);
    void status(const Reply & reply, std::string_view frame);
    void call_failed(std::uint64_t id, const Failure & why);
    void take_wish_back(const Call & call, const Failure & why);
    void tell_lease(std::uint64_t id, Call & call, const Failure & why, const xlm_lease & lease);
    void tell_failed(std::uint64_t id, Call & call, const Failure & why);
    Wish & wish(CommandKind kind) { return kind == CommandKind::reserve ? reservation_ : cap_; }
    void ask_wish(CommandKind kind);

    // connection_sessions.cpp
    void open_session(Command & command);
    void close_session(xlm_session * session);
    void open(Conversation & conversation);
    void opened(Call & call, const Reply & reply);
    void tell_news(Conversation & conversation);
    void not_opened(Conversation & conversation, const Failure & why);
    void say(Command & command);
    void prepare_say(Command & command, Conversation & conversation);
    void send_say(Command & command, Conversation & conversation);
    void refuse_say(Command & command, const Failure & why);
    void drop_held(Conversation & conversation, const Failure & why);
    void drop_unsent(Command & command);
    Command * unsent(const xlm_session * session);
    void piece(std::uint64_t id, Call & call, const Reply & reply);
    void finished(std::uint64_t id, Call & call, const Reply & reply);
    Conversation * find(const xlm_session * session);
    void restore();
    void ready_if_restored();

    // connection_images.cpp
    bool has_work() const;
    void upload_images(Command & command);
    void begin_picture(std::uint32_t at);
    Picture & picture();
    void ask_to_begin();
    std::uint64_t expect_image();
    void send_chunks();
    std::string_view next_chunk();
    void image_answered(const Call & call, const Reply & reply);
    void picture_ready();
    void image_failed(const Call & call, const Failure & why);
    void drop_upload(Command & command);
    Command * uploading_for(const xlm_session * session);
    void fail_uploads(const Failure & why);

    Event & fresh(xlm_event_kind kind, xlm_session * session, std::uint64_t id) {
        event_.reset(kind, session, id);
        return event_;
    }

    Memory * memory_;
    Identity identity_;
    std::atomic<std::uint64_t> & next_id_;
    Shell & shell_;
    Phase phase_ = Phase::connecting;
    Failure error_; // why it FAILED
    Timing timing_;
    bool patient_ = true; // the first HELLO may still be answered
    bool met_ = false;    // READY once
    std::pmr::deque<Command *> early_;
    std::pmr::string lease_id_, trouble_;
    std::uint64_t hello_id_ = 0;
    std::uint64_t report_id_ = 0; // the last frame report
    bool reports_known_ = true;
    Wish cap_, reservation_;
    xlm_lease lease_ = XLM_LEASE_INIT;
    std::pmr::list<Conversation> conversations_;
    std::pmr::vector<std::pmr::string> closed_unsaid_; // ids of sessions closed while there was no connection
    std::pmr::unordered_map<std::uint64_t, Call> pending_;
    std::pmr::deque<Command *> uploading_; // answers whose images are not all at the broker; the first one's go first
    Upload upload_;
    std::uint64_t n_uploads_ = 0;
    // reused, so that a steady state asks for no memory
    Frame frame_;
    std::pmr::string chunk_; // of an image with padded rows
    Event event_;
    Reply reply_;
};

template <typename Encode>
void Connection::send(Encode && encode) {
    frame_.clear();
    encode(frame_);
    shell_.send(frame_);
}

} // namespace xlm::client
