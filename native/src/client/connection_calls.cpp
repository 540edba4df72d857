// Requests of the game that concern the whole client, and what becomes of any request.
#include <algorithm>

#include "connection.hpp"

namespace xlm::client {

namespace {

std::uint64_t to_ns(double millis) {
    return millis > 0.0 ? static_cast<std::uint64_t>(std::min(millis, 1e12) * 1e6) : 0;
}

std::uint32_t to_count(std::int64_t value) {
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(value, 0, UINT32_MAX));
}

std::uint64_t to_size(std::int64_t value) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
}

struct EngineState {
    std::string_view name;
    xlm_engine_state state;
};
constexpr EngineState engine_states[] = {
    {"starting", XLM_ENGINE_STARTING},     {"loading", XLM_ENGINE_LOADING}, {"ready", XLM_ENGINE_READY},
    {"restarting", XLM_ENGINE_RESTARTING}, {"failed", XLM_ENGINE_FAILED},   {"stopped", XLM_ENGINE_STOPPED},
};

xlm_engine_state engine_state(std::string_view name) {
    for (const EngineState & known : engine_states)
        if (known.name == name) return known.state;
    return XLM_ENGINE_UNKNOWN;
}

/// The caller's fault: the wish was wrong, so it is not asked for again.
bool is_refusal(const Failure & why) {
    return why.fault == XLM_FAULT_CALLER && why.result != XLM_ERROR_LEASE_EXPIRED &&
           why.result != XLM_ERROR_NOT_CONNECTED;
}

} // namespace

void Connection::ask_budget(Command & command) {
    Wish & wanted = wish(command.kind);
    const Wish previous = wanted;
    const bool ends = command.kind == CommandKind::reserve ? command.bytes == 0 : command.bytes == XLM_NO_CAP;
    wanted = {command.bytes, command.choice, !ends};
    if (phase_ != Phase::ready && phase_ != Phase::restoring) { // asked for with the next connection
        if (command.wish_only) return;
        Call call(memory_);
        call.kind = command.kind;
        call.waiter = std::move(command.waiter);
        return tell_failed(command.id, call, absence());
    }
    Call & call = expect(command.id, command.kind, nullptr);
    call.asked = wanted;
    call.previous = previous;
    call.restoring = command.wish_only;
    call.waiter = std::move(command.waiter);
    send([&](Frame & frame) {
        if (command.kind == CommandKind::reserve)
            encode_reserve(frame, command.id, command.bytes, command.deadline_ns);
        else
            encode_budget(frame, command.id, command.bytes, command.deadline_ns, command.choice);
    });
}

void Connection::ask_wish(CommandKind kind) {
    const Wish & wanted = wish(kind);
    if (!wanted.active) return;
    const std::uint64_t id = fresh_id();
    Call & call = expect(id, kind, nullptr);
    call.asked = wanted;
    call.restoring = true;
    send([&](Frame & frame) {
        if (kind == CommandKind::reserve)
            encode_reserve(frame, id, wanted.bytes, XLM_NO_DEADLINE);
        else
            encode_budget(frame, id, wanted.bytes, XLM_NO_DEADLINE, wanted.choice);
    });
}

void Connection::ask_status(Command & command) {
    if (phase_ != Phase::ready) {
        Call call(memory_);
        return tell_failed(command.id, call, absence());
    }
    expect(command.id, CommandKind::get_status, nullptr);
    send([&](Frame & frame) { encode_plain(frame, command.id, "get_status"); });
}

void Connection::cancel(const Command & command) {
    if (Command * waiting = unsent(command.session); waiting && waiting->id == command.answer) {
        drop_unsent(*waiting);
        waiting->session->answer.store(0, std::memory_order_relaxed);
        Event & event = fresh(XLM_EVENT_DONE, waiting->session, waiting->id);
        event.finish_reason = XLM_FINISH_CANCELLED;
        shell_.publish(event);
        return shell_.recycle(*waiting);
    }
    const auto found = pending_.find(command.answer);
    if (found == pending_.end() || found->second.kind != CommandKind::say) return; // it has ended
    send([&](Frame & frame) { encode_cancel(frame, fresh_id(), command.answer); });
}

void Connection::answered(const Reply & reply, std::string_view frame) {
    const auto found = pending_.find(reply.id);
    if (found == pending_.end()) return; // OK to a CANCEL, or something nobody waits for any more
    Call & call = found->second;
    if (reply.type == ReplyType::tokens && call.kind == CommandKind::say) return piece(reply.id, call, reply);
    if (reply.type == ReplyType::done && call.kind == CommandKind::say)
        finished(reply.id, call, reply);
    else if (reply.type == ReplyType::lease &&
             (call.kind == CommandKind::set_budget || call.kind == CommandKind::reserve))
        leased(call, reply);
    else if (reply.type == ReplyType::session && call.kind == CommandKind::open_session)
        opened(call, reply);
    else if (reply.type == ReplyType::image && call.kind == CommandKind::image) {
        const auto node = pending_.extract(found); // first: what comes next makes new calls
        return image_answered(node.mapped(), reply);
    } else if (reply.type == ReplyType::status && call.kind == CommandKind::get_status)
        status(reply, frame);
    else if (!(reply.type == ReplyType::ok && call.kind == CommandKind::close_session))
        return call_failed(reply.id, Failure(XLM_ERROR_BAD_REQUEST, "the broker gave an answer of the wrong type"));
    settle(reply.id);
}

void Connection::leased(Call & call, const Reply & reply) {
    lease_.granted_bytes = to_size(reply.granted_bytes);
    lease_.used_bytes = to_size(reply.used_bytes);
    lease_.device_used_bytes = to_size(reply.device_used_bytes);
    lease_.cap_bytes = reply.cap_bytes < 0 ? XLM_NO_CAP : to_size(reply.cap_bytes);
    lease_.reserved_bytes = to_size(reply.reserved_bytes);
    lease_.release_ns = to_ns(reply.release_ms);
    lease_.deadline_met = reply.deadline_met;
    shell_.lease_changed(lease_);
    tell_lease(reply.id, call, {}, lease_);
}

void Connection::status(const Reply & reply, std::string_view frame) {
    Event & event = fresh(XLM_EVENT_STATUS, nullptr, reply.id);
    StatusNumbers & numbers = event.status;
    numbers.engine_state = engine_state(reply.engine_state);
    numbers.engine_restarts = to_count(reply.engine_restarts);
    numbers.device_lost = reply.device_lost;
    numbers.device_total_bytes = to_size(reply.device_total_bytes);
    numbers.device_used_bytes = to_size(reply.ledger_bytes);
    numbers.budget_bytes = to_size(reply.effective_bytes);
    numbers.minimum_bytes = to_size(reply.least_bytes);
    numbers.demand_bytes = to_size(reply.demand_bytes);
    numbers.resident_bytes = to_size(reply.resident_bytes);
    numbers.tokens_per_s = reply.tokens_per_s;
    event.device_kind = reply.device_kind;
    event.model_name = reply.model_name;
    event.schedule_summary = reply.schedule_summary;
    to_json(frame, "", event.detail);
    shell_.publish(event);
}

void Connection::call_failed(std::uint64_t id, const Failure & why) {
    auto node = pending_.extract(id);
    if (node.empty()) return;
    Call & call = node.mapped();
    if (call.kind == CommandKind::image) return image_failed(call, why);
    take_wish_back(call, why);
    if (call.kind == CommandKind::say && why.result == XLM_ERROR_BAD_REQUEST)
        send([&](Frame & frame) { encode_cancel(frame, fresh_id(), id); }); // the broker may still be at it
    tell_failed(id, call, why);
    ready_if_restored();
}

void Connection::take_wish_back(const Call & call, const Failure & why) {
    const bool is_wish = call.kind == CommandKind::set_budget || call.kind == CommandKind::reserve;
    if (!is_wish || !is_refusal(why) || !(wish(call.kind) == call.asked)) return; // or a newer wish stands
    wish(call.kind) = call.previous;
}

void Connection::tell_failed(std::uint64_t id, Call & call, const Failure & why) {
    switch (call.kind) {
    case CommandKind::set_budget:
    case CommandKind::reserve: return tell_lease(id, call, why, lease_);
    case CommandKind::open_session:
        if (Conversation * conversation = find(call.session); conversation && conversation->opening == id)
            not_opened(*conversation, why);
        return;
    case CommandKind::say: {
        call.session->answer.store(0, std::memory_order_relaxed);
        Event & event = fresh(XLM_EVENT_FAILED, call.session, id);
        event.failure = why;
        event.text = call.text;
        return shell_.publish(event);
    }
    case CommandKind::get_status: {
        Event & event = fresh(XLM_EVENT_STATUS, nullptr, id);
        event.failure = why;
        return shell_.publish(event);
    }
    default: return;
    }
}

void Connection::tell_lease(std::uint64_t id, Call & call, const Failure & why, const xlm_lease & lease) {
    if (call.waiter) return call.waiter->complete(why, lease);
    const bool asks_again = why.result == XLM_ERROR_BROKER_GONE || why.result == XLM_ERROR_LEASE_EXPIRED;
    const bool quiet = call.restoring && (!why || asks_again);
    if (quiet) return;
    Event & event = fresh(call.restoring ? XLM_EVENT_NOTICE : XLM_EVENT_LEASE, nullptr, call.restoring ? 0 : id);
    event.failure = why;
    if (call.restoring) {
        event.notice = XLM_NOTICE_RESTORE_FAILED;
        event.text = why.message_view();
        event.detail = "{}";
    } else if (!why) {
        event.has_lease = true;
        event.lease = lease;
    }
    shell_.publish(event);
}

void Connection::finished(std::uint64_t id, Call & call, const Reply & reply) {
    call.session->answer.store(0, std::memory_order_relaxed);
    Event & event = fresh(XLM_EVENT_DONE, call.session, id);
    event.finish_reason = reply.finish_reason == "stop"     ? XLM_FINISH_STOP
                          : reply.finish_reason == "length" ? XLM_FINISH_LENGTH
                                                            : XLM_FINISH_CANCELLED;
    event.usage.prompt_tokens = to_count(reply.prompt_tokens);
    event.usage.cached_tokens = to_count(reply.cached_tokens);
    event.usage.completion_tokens = to_count(reply.completion_tokens);
    event.usage.ttft_ns = to_ns(reply.ttft_ms);
    event.usage.tpot_ns = to_ns(reply.tpot_ms);
    event.text = call.text;
    shell_.publish(event);
}

} // namespace xlm::client
