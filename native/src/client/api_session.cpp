// xlm_session_*. The cycle of a slot: open() takes it from the free list and sends a command; close() marks it shut,
// which drops what is still in the queue, and sends another; the I/O thread forgets the session and publishes "gone",
// after which it names the slot no more; the poll thread meets that last and frees the slot.
#include <algorithm>
#include <cmath>
#include <utility>

#include "client.hpp"
#include "structs.hpp"
#include "utf8.hpp"

using namespace xlm::client;

namespace {

constexpr std::size_t room_for_the_rest = 16 * 1024; // of a frame: keys, numbers, ids

struct Texts { // with their common limit
    std::size_t bytes = 0;

    std::string_view take(xlm_str text, const char * what, std::size_t max_characters) {
        if (text.len > 0 && text.data == nullptr) refuse(XLM_ERROR_INVALID_ARGUMENT, what, " has a length and no data");
        bytes += std::min(text.len, max_frame_bytes);
        if (text.len > max_frame_bytes || bytes > max_frame_bytes - room_for_the_rest)
            refuse(XLM_ERROR_FRAME_TOO_LARGE, what, " does not fit a frame of 1 MiB");
        const std::string_view view(text.data ? text.data : "", text.len);
        const auto characters = utf8::count(view);
        if (!characters) refuse(XLM_ERROR_INVALID_UTF8, what, " is no UTF-8");
        if (*characters > max_characters) refuse(XLM_ERROR_FRAME_TOO_LARGE, what, " has too many characters");
        return view;
    }

    [[noreturn]] static void refuse(xlm_result code, const char * what, const char * problem) {
        throw Failed(code, std::string(what) + problem);
    }
};

/// Gives a command back unless it was sent.
class Draft {
public:
    Draft(xlm_client & client, CommandKind kind) : client_(client), command_(client.take_command(kind)) {}
    ~Draft() {
        if (command_) client_.put_back(*command_);
    }
    Draft(const Draft &) = delete;
    Draft & operator=(const Draft &) = delete;
    explicit operator bool() const { return command_ != nullptr; } // false: too many are under way
    Command * operator->() { return command_; }
    std::uint64_t submit() { return client_.submit(*std::exchange(command_, nullptr)); }

private:
    xlm_client & client_;
    Command * command_;
};

xlm_session & checked(xlm_session * session) {
    if (session == nullptr || !session->open.load(std::memory_order_acquire))
        throw Failed(XLM_ERROR_INVALID_HANDLE, "the session is NULL or closed");
    session->client->check_alive();
    return *session;
}

bool within(double value, double low, double high) {
    return std::isfinite(value) && value >= low && value <= high;
}

void check_numbers(const xlm_say_options & say) {
    const struct {
        bool good;
        const char * rule;
    } rules[] = {
        {say.max_tokens >= 1 && say.max_tokens <= 1'000'000, "max_tokens is 1 to 1,000,000"},
        {within(say.temperature, 0.0, 10.0), "temperature is 0 to 10"},
        {within(say.top_p, 0.0, 1.0), "top_p is 0 to 1"},
        {within(say.min_p, 0.0, 1.0), "min_p is 0 to 1"},
        {within(say.repeat_penalty, 0.0, 10.0) && say.repeat_penalty > 0.0, "repeat_penalty is above 0, at most 10"},
        {say.top_k <= 1'000'000, "top_k is at most 1,000,000"},
        {say.repeat_last_n <= 65'536, "repeat_last_n is at most 65,536"},
        {say.seed == XLM_RANDOM_SEED || say.seed < (std::uint64_t(1) << 32), "seed is below 2^32 or XLM_RANDOM_SEED"},
        {say.priority >= -100 && say.priority <= 100, "priority is -100 to 100"},
        {say.n_stop <= max_stops, "there are at most 16 stops"},
        {say.n_stop == 0 || say.stop != nullptr, "stop is NULL"},
    };
    for (const auto & [good, rule] : rules)
        if (!good) throw Failed(XLM_ERROR_SAMPLING_INVALID, rule);
}

void take_stops(Draft & draft, const xlm_say_options & say, Texts & texts) {
    for (std::uint32_t i = 0; i < say.n_stop; i++) {
        const std::string_view stop = texts.take(say.stop[i], "a stop", max_name_characters);
        if (stop.empty()) throw Failed(XLM_ERROR_SAMPLING_INVALID, "a stop is empty");
        draft->stops += stop;
        draft->stop_bytes[i] = static_cast<std::uint16_t>(stop.size());
    }
}

void fill(Draft & draft, xlm_str text, const xlm_say_options & say) {
    check_numbers(say);
    Texts texts;
    draft->text = texts.take(text, "the text", max_text_characters);
    draft->grammar = texts.take(say.grammar, "the grammar", max_text_characters);
    draft->json_schema = texts.take(say.json_schema, "the JSON schema", max_text_characters);
    if (say.grammar.len && say.json_schema.len)
        throw Failed(XLM_ERROR_GRAMMAR_INVALID, "grammar and json_schema exclude each other");
    take_stops(draft, say, texts);
    draft->say = say;
    draft->say.stop = nullptr; // the caller's
    draft->say.images = nullptr;
}

/// Each image's place is told by the size the caller knows: elements of a later version may be longer.
void take_images(Draft & draft, xlm_client & client, const xlm_say_options & say) {
    if (say.n_images > max_images) throw Failed(XLM_ERROR_TOO_MANY_IMAGES, "there are more than 64 images");
    if (say.n_images > 0 && say.images == nullptr) throw Failed(XLM_ERROR_INVALID_ARGUMENT, "images is NULL");
    const auto * place = reinterpret_cast<const char *>(say.images);
    for (std::uint32_t i = 0; i < say.n_images; i++) {
        const auto * given = reinterpret_cast<const xlm_image *>(place);
        const xlm_image defaults = XLM_IMAGE_INIT;
        take_image(read_struct(given, defaults), draft->pictures.emplace_back(&client.memory));
        place += say.images->struct_size;
    }
}

xlm_result busy() {
    return fail(XLM_ERROR_SESSION_BUSY, "an answer is under way");
}

xlm_result say(xlm_session & session, xlm_str text, const xlm_say_options & options, std::uint64_t * answer) {
    xlm_client & client = *session.client;
    if (session.state.load(std::memory_order_relaxed) == XLM_SESSION_LOST)
        throw Failed(XLM_ERROR_SESSION_UNKNOWN, "the conversation was lost");
    if (!client.takes()) return client.absent();
    if (session.answer.load(std::memory_order_relaxed) != 0) return busy();
    Draft draft(client, CommandKind::say);
    if (!draft) return overloaded();
    fill(draft, text, options);
    take_images(draft, client, options);
    draft->session = &session;
    constexpr std::uint64_t claimed = UINT64_MAX; // between this and submit(), whose id is not known yet
    std::uint64_t none = 0;
    if (!session.answer.compare_exchange_strong(none, claimed)) return busy();
    const std::uint64_t id = draft.submit();
    std::uint64_t still = claimed;
    session.answer.compare_exchange_strong(still, id); // or it has ended already
    if (answer) *answer = id;
    return XLM_SUCCESS;
}

xlm_session & take_slot(xlm_client & client) {
    const std::uint32_t index = client.shared.free_sessions.take();
    if (index == FreeList::none)
        throw Failed(XLM_ERROR_TOO_MANY_SESSIONS, "max_sessions are open, or closed ones were not polled away yet");
    return client.shared.sessions[index];
}

} // namespace

xlm_result xlm_session_open(xlm_client * client, const xlm_session_options * given, xlm_session ** session) {
    if (session) *session = nullptr;
    return guarded([&] {
        if (client == nullptr || session == nullptr)
            throw Failed(XLM_ERROR_INVALID_ARGUMENT, "the client is NULL, or the place for the handle");
        const xlm_session_options defaults = XLM_SESSION_OPTIONS_INIT;
        const xlm_session_options options = read_struct(given, defaults);
        if (options.overflow > XLM_OVERFLOW_SHIFT) throw Failed(XLM_ERROR_INVALID_ARGUMENT, "overflow is none");
        Texts texts;
        Draft draft(*client, CommandKind::open_session);
        if (!draft) return overloaded();
        draft->text = texts.take(options.system, "the system text", max_text_characters);
        draft->grammar = texts.take(options.resume, "the id to resume", max_name_characters);
        draft->choice = options.overflow;
        xlm_session & slot = take_slot(*client);
        slot.on_event = options.on_event;
        slot.user_data = options.user_data;
        slot.id.clear();
        slot.n_ctx = 0;
        slot.answer.store(0, std::memory_order_relaxed);
        slot.state.store(XLM_SESSION_OPENING, std::memory_order_relaxed);
        slot.open.store(true, std::memory_order_release);
        draft->session = &slot;
        draft.submit();
        *session = &slot;
        return xlm_result(XLM_SUCCESS);
    });
}

xlm_result xlm_session_close(xlm_session * session) {
    if (session == nullptr) return XLM_SUCCESS;
    return guarded([&] {
        xlm_session & open = checked(session);
        Draft draft(*open.client, CommandKind::close_session);
        if (!draft) return overloaded();
        draft->session = session;
        open.open.store(false, std::memory_order_release);
        draft.submit();
        return xlm_result(XLM_SUCCESS);
    });
}

xlm_result xlm_session_get_info(const xlm_session * session, xlm_session_info * info) {
    return guarded([&] {
        const xlm_session & open = checked(const_cast<xlm_session *>(session));
        const bool busy = open.answer.load(std::memory_order_relaxed) != 0;
        write_struct(info, {static_cast<std::uint32_t>(sizeof(xlm_session_info)),
                            open.state.load(std::memory_order_relaxed),
                            open.n_ctx,
                            busy,
                            {open.id.data(), open.id.size()}});
        return XLM_SUCCESS;
    });
}

xlm_result xlm_session_say(xlm_session * session, xlm_str text, const xlm_say_options * options, uint64_t * answer) {
    if (answer) *answer = 0;
    return guarded([&] {
        const xlm_say_options defaults = XLM_SAY_OPTIONS_INIT;
        return say(checked(session), text, options ? read_struct(options, defaults) : defaults, answer);
    });
}

xlm_result xlm_session_cancel(xlm_session * session, uint64_t answer) {
    return guarded([&] {
        xlm_session & open = checked(session);
        const std::uint64_t running = open.answer.load(std::memory_order_relaxed);
        if (running == 0 || (answer != 0 && answer != running)) return xlm_result(XLM_SUCCESS); // it has ended
        Draft draft(*open.client, CommandKind::cancel);
        if (!draft) return overloaded();
        draft->session = session;
        draft->answer = running;
        draft.submit();
        return xlm_result(XLM_SUCCESS);
    });
}
