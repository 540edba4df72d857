#include "connection.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace xlm::client {

namespace {

constexpr Nanoseconds shortest_heartbeat = 10'000'000; // whatever a broker asks for: no busy loop
constexpr std::size_t max_lease_id_bytes = 4 * max_name_characters;

Nanoseconds from_ms(double millis) {
    return static_cast<Nanoseconds>(millis * 1e6);
}

Failure failure_of(const Reply & reply) {
    const CodeInfo * known = find_code(reply.code);
    Failure failure(known ? known->result : XLM_ERROR_UNKNOWN_CODE, reply.message);
    if (!known) {
        char text[sizeof failure.message];
        const int length = std::snprintf(text, sizeof text, "%.*s: %.*s",
                                         int(std::min<std::size_t>(reply.code.size(), 64)), reply.code.data(),
                                         int(std::min<std::size_t>(reply.message.size(), 300)), reply.message.data());
        failure.set_message({text, static_cast<std::size_t>(std::max(length, 0))});
    }
    if (!reply.fault.empty()) failure.fault = find_fault(reply.fault);
    if (!reply.hint.empty()) failure.set_hint(reply.hint);
    failure.retryable = known ? known->retryable : reply.retryable;
    failure.minimum_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(reply.minimum_bytes, 0));
    return failure;
}

struct NoticeName {
    std::string_view name;
    xlm_notice_kind kind;
};
constexpr NoticeName notice_names[] = {
    {"engine_restarting", XLM_NOTICE_ENGINE_RESTARTING},
    {"engine_ready", XLM_NOTICE_ENGINE_READY},
    {"engine_failed", XLM_NOTICE_ENGINE_FAILED},
    {"engine_unresponsive", XLM_NOTICE_ENGINE_UNRESPONSIVE},
    {"device_lost", XLM_NOTICE_DEVICE_LOST},
    {"device_restored", XLM_NOTICE_DEVICE_RESTORED},
    {"degraded", XLM_NOTICE_DEGRADED},
    {"budget_changed", XLM_NOTICE_BUDGET_CHANGED},
    {"lease_expiring", XLM_NOTICE_LEASE_EXPIRING},
    {"shutdown", XLM_NOTICE_SHUTDOWN},
};

xlm_notice_kind notice_kind(std::string_view name) {
    for (const NoticeName & known : notice_names)
        if (known.name == name) return known.kind;
    return XLM_NOTICE_OTHER;
}

} // namespace

void Timing::next_attempt(Nanoseconds now) {
    attempt_ends = now + attempt;
    attempt = std::min(2 * attempt, longest_attempt);
}

void Timing::welcome(Nanoseconds now, double heartbeat_ms, double ttl_ms) {
    attempt = second_ns;
    heard(now);
    heartbeat = std::max(from_ms(heartbeat_ms), shortest_heartbeat);
    ttl = std::max(from_ms(ttl_ms), 2 * heartbeat);
    next_ping = now + heartbeat;
}

void Timing::heard(Nanoseconds now) {
    last_tick = now;
    silence = 0;
}

void Timing::pass(Nanoseconds now) {
    silence += std::clamp<Nanoseconds>(now - last_tick, 0, heartbeat);
    last_tick = now;
}

Connection::Connection(Memory * memory, const Identity & identity, std::atomic<std::uint64_t> & next_id, Shell & shell)
    : memory_(memory), identity_(identity), next_id_(next_id), shell_(shell), early_(memory), lease_id_(memory),
      trouble_(memory), conversations_(memory), closed_unsaid_(memory), pending_(memory), uploading_(memory),
      frame_(memory), chunk_(memory), event_(memory), reply_(memory) {
    lease_.cap_bytes = XLM_NO_CAP;
}

void Connection::start(Nanoseconds now) {
    dial(now);
}

void Connection::submit(Command & command) {
    try {
        carry_out(command);
    } catch (const std::bad_alloc &) { // it was not given back: that is the last step of each
        Call call(memory_);
        call.kind = command.kind;
        call.session = command.session;
        call.waiter = std::move(command.waiter);
        const std::uint64_t id = command.id;
        pending_.erase(id);
        shell_.recycle(command); // from here on it may be another's
        tell_failed(id, call, Failure(XLM_ERROR_OUT_OF_MEMORY, "the host's allocator has no memory"));
    }
}

void Connection::carry_out(Command & command) {
    if (is_early(command)) return early_.push_back(&command);
    switch (command.kind) {
    case CommandKind::set_budget:
    case CommandKind::reserve: ask_budget(command); break;
    case CommandKind::open_session: open_session(command); break;
    case CommandKind::close_session: close_session(command.session); break;
    case CommandKind::say: return say(command); // which may keep it
    case CommandKind::cancel: cancel(command); break;
    case CommandKind::get_status: ask_status(command); break;
    case CommandKind::image: break;
    }
    shell_.recycle(command);
}

bool Connection::is_early(const Command & command) const {
    const bool asks = command.kind == CommandKind::set_budget || command.kind == CommandKind::reserve ||
                      command.kind == CommandKind::say || command.kind == CommandKind::get_status;
    return asks && patient_ && phase_ == Phase::connecting;
}

/// What waited for the first connection, in order: carried out, or refused where there is none.
void Connection::release_early() {
    patient_ = false;
    std::pmr::deque<Command *> waiting(memory_);
    waiting.swap(early_);
    for (Command * command : waiting)
        submit(*command);
}

void Connection::lose_patience() {
    if (!std::exchange(patient_, false)) return;
    const Failure why = absence();
    shell_.phase_changed(phase_, false, why);
    tell_state(XLM_CLIENT_CONNECTING, why);
    release_early();
}

void Connection::receive(std::string_view frame, Nanoseconds now) {
    timing_.heard(now);
    std::pmr::vector<std::int32_t> ids = std::move(reply_.token_ids);
    ids.clear();
    reply_ = Reply(memory_);
    reply_.token_ids = std::move(ids);
    if (const Failure broken = decode(frame, reply_)) {
        shell_.log(XLM_LOG_WARNING, broken.message_view());
        return call_failed(reply_.id, broken); // it fails the call it is for, and nothing else
    }
    dispatch(reply_, frame, now);
}

void Connection::dispatch(const Reply & reply, std::string_view frame, Nanoseconds now) {
    switch (reply.type) {
    case ReplyType::welcome: return welcomed(reply, now);
    case ReplyType::error: return refused(reply, now);
    case ReplyType::notice: return notice(reply, frame);
    case ReplyType::pong: return;
    default: return answered(reply, frame);
    }
}

void Connection::tick(Nanoseconds now) {
    if (phase_ == Phase::connecting) {
        if (now < timing_.attempt_ends) return;
        lose_patience();
        return dial(now);
    }
    if (phase_ != Phase::ready && phase_ != Phase::restoring) return;
    timing_.pass(now);
    if (timing_.silence >= timing_.ttl)
        return lost(now, Failure(XLM_ERROR_BROKER_GONE, "the broker has been silent for too long"));
    if (now < timing_.next_ping) return;
    timing_.next_ping = now + timing_.heartbeat;
    send([&](Frame & frame) { encode_plain(frame, fresh_id(), "ping"); });
}

void Connection::lost(Nanoseconds now, const Failure & why) {
    if (phase_ == Phase::connecting) {
        // No WELCOME yet, and perhaps HELLO went down with the peer: do not wait long.
        if (trouble_.empty()) trouble_ = why.message_view();
        timing_.attempt_ends = std::min(timing_.attempt_ends, now + timing_.attempt / 4);
        return;
    }
    if (phase_ != Phase::ready && phase_ != Phase::restoring) return;
    trouble_ = why.message_view();
    move_to(Phase::connecting, why); // first, so that a game which reacts to a failed call sees why
    fail_pending(why);
    dial(now);
}

void Connection::report(const FrameReport & frames) {
    if (phase_ != Phase::ready || !reports_known_) return;
    report_id_ = fresh_id();
    send([&](Frame & frame) { encode_report(frame, report_id_, frames); });
}

void Connection::close() {
    if (phase_ != Phase::failed && phase_ != Phase::closed) // while connecting too: HELLO may have made a lease
        send([&](Frame & frame) { encode_plain(frame, fresh_id(), "goodbye"); });
    phase_ = Phase::closed;
    fail_pending(Failure(XLM_ERROR_NOT_CONNECTED, "the client was destroyed"));
    release_early();
}

void Connection::fail(const Failure & why) {
    if (phase_ == Phase::closed || phase_ == Phase::failed) return;
    error_ = why;
    patient_ = false;
    move_to(Phase::failed, why);
    fail_pending(why);
    release_early();
}

Nanoseconds Connection::next_deadline() const {
    if (phase_ == Phase::connecting) return timing_.attempt_ends;
    if (phase_ == Phase::failed || phase_ == Phase::closed) return never;
    if (has_work()) return 0;
    return std::min(timing_.next_ping, timing_.silent_at());
}

void Connection::dial(Nanoseconds now) {
    timing_.next_attempt(now);
    hello_id_ = fresh_id();
    shell_.dial();
    send([&](Frame & frame) { encode_hello(frame, hello_id_, identity_, lease_id_); });
}

void Connection::move_to(Phase phase, const Failure & why) {
    const bool visible = phase != phase_ && phase != Phase::restoring;
    phase_ = phase;
    met_ = met_ || phase == Phase::ready;
    shell_.phase_changed(phase, phase == Phase::ready || patient_, why);
    if (!visible) return;
    tell_state(phase == Phase::ready    ? XLM_CLIENT_READY
               : phase == Phase::failed ? XLM_CLIENT_FAILED
                                        : XLM_CLIENT_CONNECTING,
               why);
}

void Connection::tell_state(xlm_client_state state, const Failure & why) {
    Event & event = fresh(XLM_EVENT_STATE, nullptr, 0);
    event.state = state;
    event.failure = why;
    event.text = why.message_view();
    shell_.publish(event);
}

Failure Connection::absence() const {
    if (phase_ == Phase::failed) return error_;
    const std::string_view trouble = trouble_.empty() ? std::string_view("no broker answers yet") : trouble_;
    return Failure(met_ ? XLM_ERROR_BROKER_GONE : XLM_ERROR_NOT_READY, trouble);
}

void Connection::welcomed(const Reply & reply, Nanoseconds now) {
    if (phase_ != Phase::connecting || reply.id != hello_id_) return;
    const auto version = static_cast<std::uint64_t>(reply.version);
    if (version < protocol_version_min || version > protocol_version_max)
        return fail(
            Failure(XLM_ERROR_PROTOCOL_VERSION, "the broker chose a protocol version this library does not know"));
    if (reply.lease_id.size() > max_lease_id_bytes)
        return fail(Failure(XLM_ERROR_BAD_REQUEST, "the broker's lease id is too long"));
    lease_id_ = reply.lease_id;
    trouble_.clear();
    reports_known_ = true;
    timing_.welcome(now, reply.heartbeat_ms, reply.ttl_ms);
    move_to(Phase::restoring, {});
    restore();
    ready_if_restored();
}

void Connection::refused(const Reply & reply, Nanoseconds now) {
    const Failure failure = failure_of(reply);
    if (reply.id == hello_id_ && phase_ == Phase::connecting) {
        trouble_ = failure.message_view();
        shell_.log(XLM_LOG_WARNING, failure.message_view());
        if (!failure.retryable) fail(failure); // otherwise the next attempt comes in its time
        return;
    }
    if (reply.id != 0 && reply.id == report_id_) reports_known_ = false;
    call_failed(reply.id, failure);
    if (failure.result == XLM_ERROR_LEASE_EXPIRED) lost(now, Failure(XLM_ERROR_LEASE_EXPIRED, failure.message_view()));
    if (failure.result == XLM_ERROR_NOT_CONNECTED)
        lost(now, Failure(XLM_ERROR_BROKER_GONE, "the broker does not know this game any more"));
}

void Connection::notice(const Reply & reply, std::string_view frame) {
    Event & event = fresh(XLM_EVENT_NOTICE, nullptr, 0);
    event.notice = notice_kind(reply.kind);
    event.text = reply.text.empty() ? reply.kind : reply.text;
    to_json(frame, "detail", event.detail);
    if (event.detail.empty()) event.detail = "{}";
    if (event.notice == XLM_NOTICE_BUDGET_CHANGED && reply.notice_granted_bytes >= 0) {
        lease_.granted_bytes = static_cast<std::uint64_t>(reply.notice_granted_bytes);
        event.has_lease = true;
        event.lease = lease_;
        shell_.lease_changed(lease_);
    }
    shell_.publish(event);
}

void Connection::fail_pending(const Failure & why) {
    // Calls are told of after they are gone, so that what a failure leads to cannot meet them.
    std::pmr::unordered_map<std::uint64_t, Call> calls(memory_);
    calls.swap(pending_);
    std::pmr::map<std::uint64_t, Call *> in_order(memory_);
    for (auto & [id, call] : calls)
        in_order.emplace(id, &call);
    for (auto & [id, call] : in_order)
        tell_failed(id, *call, why);
    fail_uploads(why);
    for (Conversation & conversation : conversations_) {
        conversation.opening = 0;
        drop_held(conversation, why);
        if (!conversation.lost) conversation.handle->state.store(XLM_SESSION_OPENING, std::memory_order_relaxed);
    }
}

void Connection::settle(std::uint64_t id) {
    pending_.erase(id);
    ready_if_restored();
}

Connection::Call & Connection::expect(std::uint64_t id, CommandKind kind, xlm_session * session) {
    Call & call = pending_.try_emplace(id, memory_).first->second;
    call.kind = kind;
    call.session = session;
    return call;
}

} // namespace xlm::client
