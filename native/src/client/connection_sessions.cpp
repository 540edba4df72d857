// Conversations: opened, said to, taken up again.
#include <algorithm>
#include <utility>

#include "connection.hpp"

namespace xlm::client {

Connection::Conversation * Connection::find(const xlm_session * session) {
    const auto found = std::find_if(conversations_.begin(), conversations_.end(),
                                    [&](const Conversation & one) { return one.handle == session; });
    return found == conversations_.end() ? nullptr : &*found;
}

void Connection::open_session(Command & command) {
    Conversation & conversation = conversations_.emplace_back(command.session, memory_);
    conversation.system = command.text;
    conversation.id = command.grammar; // to resume
    conversation.overflow = command.choice;
    if (phase_ == Phase::ready || phase_ == Phase::restoring) return open(conversation);
    if (phase_ == Phase::failed) not_opened(conversation, absence());
}

void Connection::open(Conversation & conversation) {
    conversation.opening = fresh_id();
    expect(conversation.opening, CommandKind::open_session, conversation.handle).restoring = conversation.was_open;
    send([&](Frame & frame) {
        encode_open(frame, conversation.opening, conversation.system, conversation.overflow, conversation.id);
    });
}

void Connection::opened(Call & call, const Reply & reply) {
    Conversation * conversation = find(call.session);
    if (conversation == nullptr || conversation->opening != reply.id) // closed by the game meanwhile
        return send([&](Frame & frame) { encode_close(frame, fresh_id(), reply.session_id); });
    const bool wanted_back = !conversation->id.empty() || conversation->was_open;
    const xlm_event_kind kind = !wanted_back    ? XLM_EVENT_SESSION_OPENED
                                : reply.resumed ? XLM_EVENT_SESSION_RESUMED
                                                : XLM_EVENT_SESSION_RESET;
    conversation->id = reply.session_id;
    conversation->opening = 0;
    conversation->was_open = true;
    conversation->handle->state.store(XLM_SESSION_OPEN, std::memory_order_relaxed);
    conversation->n_ctx = static_cast<std::uint32_t>(std::clamp<std::int64_t>(reply.n_ctx, 0, UINT32_MAX));
    // One that began anew, of which the game has not heard because the connection broke again, did not resume.
    if (conversation->news != XLM_EVENT_SESSION_RESET) conversation->news = kind;
    if (phase_ == Phase::ready) tell_news(*conversation);
    if (Command * held = std::exchange(conversation->held, nullptr)) prepare_say(*held, *conversation);
}

void Connection::tell_news(Conversation & conversation) {
    const xlm_event_kind kind = std::exchange(conversation.news, XLM_EVENT_NONE);
    if (kind == XLM_EVENT_NONE) return;
    Event & event = fresh(kind, conversation.handle, 0);
    if (kind == XLM_EVENT_SESSION_LOST) {
        event.failure = conversation.why;
    } else {
        event.number = conversation.n_ctx;
        event.text = conversation.id;
    }
    shell_.publish(event);
}

void Connection::not_opened(Conversation & conversation, const Failure & why) {
    conversation.opening = 0;
    if (why.result == XLM_ERROR_BROKER_GONE || why.result == XLM_ERROR_LEASE_EXPIRED ||
        why.result == XLM_ERROR_NOT_CONNECTED)
        return; // the next connection asks again
    if (why.result == XLM_ERROR_SESSION_UNKNOWN && !conversation.id.empty()) {
        conversation.was_open = true; // so that the game hears of a RESET, not of something new
        conversation.id.clear();
        return open(conversation);
    }
    conversation.lost = true;
    conversation.handle->state.store(XLM_SESSION_LOST, std::memory_order_relaxed);
    drop_held(conversation, why);
    conversation.news = XLM_EVENT_SESSION_LOST;
    conversation.why = why;
    if (phase_ != Phase::restoring) tell_news(conversation);
}

void Connection::close_session(xlm_session * session) {
    const auto found = std::find_if(conversations_.begin(), conversations_.end(),
                                    [&](const Conversation & one) { return one.handle == session; });
    if (found == conversations_.end()) return;
    if (Command * waiting = unsent(session)) {
        drop_unsent(*waiting);
        shell_.recycle(*waiting);
    }
    for (auto call = pending_.begin(); call != pending_.end();) // its answer: what comes is for nobody
        call = call->second.session == session && call->second.kind == CommandKind::say ? pending_.erase(call)
                                                                                        : std::next(call);
    const bool at_broker = !found->lost && found->opening == 0 && !found->id.empty();
    if (at_broker && phase_ == Phase::ready)
        send([&](Frame & frame) { encode_close(frame, fresh_id(), found->id); });
    else if (at_broker && phase_ == Phase::connecting)
        closed_unsaid_.emplace_back(found->id);
    conversations_.erase(found); // one that is being opened is closed when the answer comes
    shell_.publish(fresh(event_session_gone, session, 0));
}

void Connection::say(Command & command) {
    Conversation * conversation = find(command.session);
    if (conversation == nullptr) return shell_.recycle(command); // closed
    if (conversation->lost) return refuse_say(command, Failure(XLM_ERROR_SESSION_UNKNOWN, "the conversation was lost"));
    if (phase_ != Phase::ready) return refuse_say(command, absence());
    if (conversation->opening != 0) {
        conversation->held = &command; // one at most: the handle lets no second one through
        return;
    }
    prepare_say(command, *conversation);
}

void Connection::prepare_say(Command & command, Conversation & conversation) {
    if (command.pictures.empty())
        send_say(command, conversation);
    else
        upload_images(command);
}

void Connection::send_say(Command & command, Conversation & conversation) {
    expect(command.id, CommandKind::say, conversation.handle);
    send([&](Frame & frame) { encode_say(frame, command, conversation.id); });
    shell_.recycle(command);
}

void Connection::refuse_say(Command & command, const Failure & why) {
    Call call(memory_);
    call.kind = CommandKind::say;
    call.session = command.session;
    tell_failed(command.id, call, why);
    shell_.recycle(command);
}

/// The answer a session was asked for of which the broker has not heard: the first connection is to come, or the
/// session to be opened, or images to be uploaded.
Command * Connection::unsent(const xlm_session * session) {
    const auto early =
        std::find_if(early_.begin(), early_.end(), [&](const Command * one) { return one->session == session; });
    if (early != early_.end()) return *early;
    Conversation * conversation = find(session);
    return conversation && conversation->held ? conversation->held : uploading_for(session);
}

/// Nobody waits for it any more; the command is the caller's.
void Connection::drop_unsent(Command & command) {
    early_.erase(std::remove(early_.begin(), early_.end(), &command), early_.end());
    Conversation * conversation = find(command.session);
    if (conversation && conversation->held == &command) conversation->held = nullptr;
    drop_upload(command);
}

void Connection::drop_held(Conversation & conversation, const Failure & why) {
    if (Command * held = std::exchange(conversation.held, nullptr)) refuse_say(*held, why);
}

void Connection::piece(std::uint64_t id, Call & call, const Reply & reply) {
    if (reply.seq < call.next_seq) return; // delivered before: a broker that replays may repeat itself
    if (reply.seq > call.next_seq)
        return call_failed(id, Failure(XLM_ERROR_BAD_REQUEST, "a piece of the answer is missing"));
    call.next_seq++;
    call.text += reply.text;
    Event & event = fresh(XLM_EVENT_TOKENS, call.session, id);
    event.text = reply.text;
    event.token_ids = reply.token_ids;
    shell_.publish(event);
}

void Connection::restore() {
    for (const auto & session_id : closed_unsaid_)
        send([&](Frame & frame) { encode_close(frame, fresh_id(), session_id); });
    closed_unsaid_.clear();
    ask_wish(CommandKind::set_budget);
    ask_wish(CommandKind::reserve);
    for (Conversation & conversation : conversations_)
        if (!conversation.lost) open(conversation);
}

void Connection::ready_if_restored() {
    if (phase_ != Phase::restoring) return;
    for (const Conversation & conversation : conversations_) {
        const auto call = pending_.find(conversation.opening);
        if (call != pending_.end() && call->second.restoring) return;
    }
    move_to(Phase::ready, {});
    for (Conversation & conversation : conversations_) // in the order in which a game can act on it
        tell_news(conversation);
    release_early();
}

} // namespace xlm::client
