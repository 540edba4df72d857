// One pass over the frame, without a tree: values at known paths are written straight into the Reply. So a frame
// that claims four billion elements costs nothing, and one nested too deeply ends at the limit.
#include "codec.hpp"

#include <cmath>
#include <limits>

#include <msgpack.hpp>

#include "utf8.hpp"

namespace xlm::client {

namespace {

constexpr int max_depth = 64;

using Text = std::string_view Reply::*;
using Whole = std::int64_t Reply::*;
using Real = double Reply::*;
using Flag = bool Reply::*;
enum class Need { optional, required };

/// A value's place. `outer` is a key of the message; `inner` one of the map there, if it is one.
struct Field {
    ReplyType type;
    std::string_view outer, inner;
    Need need = Need::optional;
    Text text = nullptr;
    Whole whole = nullptr;
    Real real = nullptr;
    Flag flag = nullptr;
    bool nullable = false;
    bool lenient = false; // a wrong type is ignored: maps for people, whose keys may change
};

constexpr Field text(ReplyType type, std::string_view key, Text member, Need need = Need::optional) {
    return {type, key, "", need, member};
}
constexpr Field whole(ReplyType type, std::string_view key, Whole member, Need need = Need::optional,
                      bool nullable = false) {
    return {type, key, "", need, nullptr, member, nullptr, nullptr, nullable};
}
constexpr Field real(ReplyType type, std::string_view key, Real member, Need need = Need::optional) {
    return {type, key, "", need, nullptr, nullptr, member};
}
constexpr Field flag(ReplyType type, std::string_view key, Flag member) {
    return {type, key, "", Need::optional, nullptr, nullptr, nullptr, member};
}
constexpr Field within(ReplyType type, std::string_view outer, std::string_view inner, Text t, Whole w, Real r, Flag f,
                       bool lenient) {
    return {type, outer, inner, Need::optional, t, w, r, f, false, lenient};
}
constexpr Field usage_whole(std::string_view key, Whole member) {
    return within(ReplyType::done, "usage", key, nullptr, member, nullptr, nullptr, false);
}
constexpr Field usage_real(std::string_view key, Real member) {
    return within(ReplyType::done, "usage", key, nullptr, nullptr, member, nullptr, false);
}
constexpr Field status_text(std::string_view map, std::string_view key, Text member) {
    return within(ReplyType::status, map, key, member, nullptr, nullptr, nullptr, true);
}
constexpr Field status_whole(std::string_view map, std::string_view key, Whole member) {
    return within(ReplyType::status, map, key, nullptr, member, nullptr, nullptr, true);
}

constexpr Field fields[] = {
    whole(ReplyType::welcome, "version", &Reply::version, Need::required),
    text(ReplyType::welcome, "lease_id", &Reply::lease_id, Need::required),
    real(ReplyType::welcome, "heartbeat_ms", &Reply::heartbeat_ms, Need::required),
    real(ReplyType::welcome, "ttl_ms", &Reply::ttl_ms, Need::required),
    text(ReplyType::welcome, "broker_version", &Reply::broker_version),
    flag(ReplyType::welcome, "resumed", &Reply::resumed),
    text(ReplyType::error, "code", &Reply::code, Need::required),
    text(ReplyType::error, "message", &Reply::message, Need::required),
    text(ReplyType::error, "fault", &Reply::fault),
    flag(ReplyType::error, "retryable", &Reply::retryable),
    text(ReplyType::error, "hint", &Reply::hint),
    whole(ReplyType::error, "minimum_bytes", &Reply::minimum_bytes, Need::optional, true),
    whole(ReplyType::lease, "granted_bytes", &Reply::granted_bytes, Need::required),
    whole(ReplyType::lease, "used_bytes", &Reply::used_bytes, Need::required),
    whole(ReplyType::lease, "device_used_bytes", &Reply::device_used_bytes, Need::required),
    whole(ReplyType::lease, "cap_bytes", &Reply::cap_bytes, Need::optional, true),
    whole(ReplyType::lease, "reserved_bytes", &Reply::reserved_bytes),
    real(ReplyType::lease, "release_ms", &Reply::release_ms),
    flag(ReplyType::lease, "deadline_met", &Reply::deadline_met),
    text(ReplyType::session, "session_id", &Reply::session_id, Need::required),
    flag(ReplyType::session, "resumed", &Reply::resumed),
    whole(ReplyType::session, "n_ctx", &Reply::n_ctx),
    whole(ReplyType::tokens, "seq", &Reply::seq, Need::required),
    text(ReplyType::tokens, "text", &Reply::text, Need::required),
    text(ReplyType::done, "finish_reason", &Reply::finish_reason, Need::required),
    usage_whole("prompt_tokens", &Reply::prompt_tokens),
    usage_whole("cached_tokens", &Reply::cached_tokens),
    usage_whole("completion_tokens", &Reply::completion_tokens),
    usage_real("ttft_ms", &Reply::ttft_ms),
    usage_real("tpot_ms", &Reply::tpot_ms),
    text(ReplyType::image, "key", &Reply::key, Need::required),
    whole(ReplyType::image, "received_bytes", &Reply::received_bytes),
    flag(ReplyType::image, "ready", &Reply::ready),
    text(ReplyType::notice, "kind", &Reply::kind, Need::required),
    text(ReplyType::notice, "text", &Reply::text),
    within(ReplyType::notice, "detail", "granted_bytes", nullptr, &Reply::notice_granted_bytes, nullptr, nullptr, true),
    status_text("engine", "state", &Reply::engine_state),
    status_whole("engine", "restarts", &Reply::engine_restarts),
    status_text("device", "kind", &Reply::device_kind),
    status_whole("device", "total_bytes", &Reply::device_total_bytes),
    status_whole("device", "used_bytes", &Reply::ledger_bytes),
    status_whole("device", "resident_bytes", &Reply::resident_bytes),
    within(ReplyType::status, "device", "lost", nullptr, nullptr, nullptr, &Reply::device_lost, true),
    status_whole("budget", "effective_bytes", &Reply::effective_bytes),
    status_whole("budget", "minimum_bytes", &Reply::least_bytes),
    status_whole("budget", "demand_bytes", &Reply::demand_bytes),
    status_text("schedule", "summary", &Reply::schedule_summary),
    within(ReplyType::status, "throughput", "tokens_per_s", nullptr, nullptr, &Reply::tokens_per_s, nullptr, true),
};
constexpr std::size_t n_fields = std::size(fields);
static_assert(n_fields <= 64, "one bit a field");

struct TypeName {
    ReplyType type;
    std::string_view name;
};
constexpr TypeName type_names[] = {
    {ReplyType::welcome, "welcome"}, {ReplyType::ok, "ok"},       {ReplyType::pong, "pong"},
    {ReplyType::error, "error"},     {ReplyType::lease, "lease"}, {ReplyType::session, "session"},
    {ReplyType::tokens, "tokens"},   {ReplyType::done, "done"},   {ReplyType::notice, "notice"},
    {ReplyType::status, "status"},   {ReplyType::image, "image"},
};

ReplyType find_type(std::string_view name) {
    for (const TypeName & known : type_names)
        if (known.name == name) return known.type;
    return ReplyType::unknown;
}

/// Keeps where in the message the parser is. Only maps have a path; within arrays there is none.
class Path {
public:
    bool enter(bool is_map) {
        if (++depth_ > max_depth) return false;
        in_array_ |= !is_map && depth_ <= 3 ? 1 << depth_ : 0;
        return true;
    }
    void leave() {
        in_array_ &= ~(1 << depth_);
        depth_--;
    }
    void key_begins() { expect_key_ = true; }
    void key_ends() { expect_key_ = false; }
    bool expects_key() const { return expect_key_; }
    void key(std::string_view name) {
        if (depth_ <= 3) keys_[depth_] = name;
    }
    int depth() const { return depth_; }
    bool in_array() const { return in_array_ != 0; }
    std::string_view outer() const { return keys_[1]; }
    std::string_view inner() const { return keys_[2]; }
    std::string_view innermost() const { return keys_[3]; }

private:
    int depth_ = 0;
    int in_array_ = 0;
    bool expect_key_ = false;
    std::string_view keys_[4];
};

class Decoder : public msgpack::null_visitor {
public:
    explicit Decoder(Reply & reply) : reply_(reply) {}

    const char * problem() const { return problem_; }
    bool has(std::size_t field) const { return (seen_ >> field) & 1; }
    bool wrong(std::size_t field) const { return (wrong_ >> field) & 1; }
    bool token_ids_wrong() const { return token_ids_wrong_; }

    bool visit_nil() {
        return scalar([](const Field & field) { return field.nullable; });
    }
    bool visit_boolean(bool value) {
        return scalar([&](const Field & field) { return assign(field.flag, value); });
    }
    bool visit_positive_integer(std::uint64_t value) {
        const bool fits = value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
        if (top_key("id")) return take_id(value);
        if (in_token_ids()) return take_token(fits ? static_cast<std::int64_t>(value) : -1);
        return scalar([&](const Field & field) {
            if (field.real) return assign(field.real, static_cast<double>(value));
            return fits && assign(field.whole, static_cast<std::int64_t>(value));
        });
    }
    bool visit_negative_integer(std::int64_t value) {
        if (top_key("id")) return stop("the id is negative");
        if (in_token_ids()) return take_token(value);
        // nothing in the protocol counts below zero; where a float is asked for, an integer may stand
        return scalar([&](const Field & field) { return assign(field.real, static_cast<double>(value)); });
    }
    bool visit_float32(float value) { return visit_float64(value); }
    bool visit_float64(double value) {
        if (in_token_ids()) return token_ids_wrong_ = true;
        return scalar([&](const Field & field) { return std::isfinite(value) && assign(field.real, value); });
    }
    bool visit_str(const char * data, std::uint32_t size) {
        const std::string_view value(data, size);
        if (!utf8::valid(value)) return stop("a text is no UTF-8");
        if (path_.expects_key()) return path_.key(value), true;
        if (top_key("t")) return take_type(value);
        if (in_token_ids()) return token_ids_wrong_ = true;
        if (path_.depth() == 3 && !path_.in_array()) return deep(value);
        return scalar([&](const Field & field) { return assign(field.text, value); });
    }
    bool visit_bin(const char *, std::uint32_t) { return other(); }
    bool visit_ext(const char *, std::uint32_t) { return other(); }
    bool start_array(std::uint32_t) {
        if (path_.depth() == 0) return stop("the message is no map");
        if (path_.expects_key()) return stop("a key is no text");
        if (top_key("token_ids")) reply_.token_ids.clear(); // a key that comes twice: the last one counts
        other();
        return path_.enter(false) || stop("the message is nested too deeply");
    }
    bool end_array() { return path_.leave(), true; }
    bool start_map(std::uint32_t) {
        if (path_.expects_key()) return stop("a key is no text");
        if (path_.depth() > 0) other();
        return path_.enter(true) || stop("the message is nested too deeply");
    }
    bool end_map() { return path_.leave(), true; }
    bool start_map_key() { return path_.key_begins(), true; }
    bool end_map_key() { return path_.key_ends(), true; }

private:
    bool stop(const char * problem) {
        problem_ = problem;
        return false;
    }
    bool top_key(std::string_view name) const {
        return path_.depth() == 1 && !path_.in_array() && !path_.expects_key() && path_.outer() == name;
    }
    bool in_token_ids() const { return path_.depth() == 2 && path_.in_array() && path_.outer() == "token_ids"; }

    bool take_id(std::uint64_t value) {
        if (value > max_id) return stop("the id is too large");
        reply_.id = value;
        return true;
    }
    bool take_type(std::string_view name) {
        reply_.type_name = name;
        reply_.type = find_type(name);
        return true;
    }
    bool take_token(std::int64_t value) {
        if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) return token_ids_wrong_ = true;
        reply_.token_ids.push_back(static_cast<std::int32_t>(value));
        return true;
    }
    bool deep(std::string_view value) { // engine.model.name is the one known text at this depth
        if (path_.outer() == "engine" && path_.inner() == "model" && path_.innermost() == "name")
            reply_.model_name = value;
        return true;
    }
    /// A container, or what no field takes.
    bool other() {
        if (top_key("token_ids")) return true;
        return scalar([](const Field & field) { return !field.inner.empty(); });
    }

    template <typename Member, typename Value>
    bool assign(Member member, Value value) {
        if (member == nullptr) return false;
        reply_.*member = value;
        return true;
    }

    template <typename Store>
    bool scalar(Store && store) {
        if (path_.depth() == 0) return stop("the message is no map");
        if (path_.expects_key()) return stop("a key is no text");
        if (path_.in_array() || path_.depth() > 2) return true;
        for (std::size_t i = 0; i < n_fields; i++) {
            const Field & field = fields[i];
            if (field.outer != path_.outer() || field.inner.empty() != (path_.depth() == 1)) continue;
            if (!field.inner.empty() && field.inner != path_.inner()) continue;
            mark(i, store(field));
        }
        return true;
    }
    void mark(std::size_t field, bool stored) {
        const std::uint64_t bit = std::uint64_t(1) << field;
        seen_ |= bit;
        wrong_ = stored ? wrong_ & ~bit : wrong_ | bit;
    }

    Reply & reply_;
    Path path_;
    std::uint64_t seen_ = 0, wrong_ = 0;
    bool token_ids_wrong_ = false;
    const char * problem_ = nullptr;
};

Failure bad(std::string_view why) {
    return Failure(XLM_ERROR_BAD_REQUEST, why);
}

Failure check_ranges(const Reply & reply) {
    const std::int64_t sizes[] = {reply.granted_bytes, reply.used_bytes, reply.device_used_bytes, reply.reserved_bytes,
                                  reply.cap_bytes};
    for (const std::int64_t size : sizes)
        if (size > static_cast<std::int64_t>(max_size_bytes)) return bad("a size is out of its range");
    for (const double millis : {reply.heartbeat_ms, reply.ttl_ms})
        if (millis < 0.0 || millis > 86'400'000.0) return bad("a time is out of its range");
    return {};
}

Failure check(const Decoder & decoder, const Reply & reply) {
    if (reply.type == ReplyType::none) return bad("the message has no type");
    if (reply.type == ReplyType::unknown) return Failure(XLM_ERROR_UNKNOWN_TYPE, "an unknown type of message");
    for (std::size_t i = 0; i < n_fields; i++) {
        if (fields[i].type != reply.type) continue;
        if (fields[i].need == Need::required && !decoder.has(i)) return bad("a key is missing");
        if (decoder.wrong(i) && !fields[i].lenient) return bad("a value has the wrong type");
    }
    if (reply.type == ReplyType::tokens && decoder.token_ids_wrong()) return bad("a token id is no token id");
    return check_ranges(reply);
}

} // namespace

Failure decode(std::string_view frame, Reply & reply) {
    if (frame.size() > max_frame_bytes) return Failure(XLM_ERROR_FRAME_TOO_LARGE, "a frame is too large");
    Decoder decoder(reply);
    std::size_t used = 0;
    try {
        const bool whole_frame = msgpack::parse(frame.data(), frame.size(), used, decoder);
        if (decoder.problem()) return bad(decoder.problem());
        if (!whole_frame) return bad("the frame is no MessagePack, or cut short");
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & error) {
        return bad(error.what());
    }
    if (used != frame.size()) return bad("bytes follow the message");
    return check(decoder, reply);
}

} // namespace xlm::client
