// The wire protocol (docs/protocol.md): frames to replies and requests to frames. Pure functions; any thread.
#pragma once

#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "command.hpp"
#include "event.hpp"

namespace xlm::client {

inline constexpr std::uint64_t protocol_version_min = 1;
inline constexpr std::uint64_t protocol_version_max = 1;
inline constexpr std::size_t max_frame_bytes = std::size_t(1) << 20;
inline constexpr std::size_t max_text_characters = std::size_t(512) * 1024;
inline constexpr std::size_t max_name_characters = 256;
inline constexpr std::uint64_t max_size_bytes = (std::uint64_t(1) << 62) - 1;
inline constexpr std::uint64_t longest_deadline_ns = std::uint64_t(86'400) * 1'000'000'000;
inline constexpr std::uint64_t max_id = (std::uint64_t(1) << 53) - 1;

using Frame = std::pmr::string;

struct Identity {
    std::string_view name;
    std::string_view sdk;
    std::int64_t pid = 0;
};

/// How the frames since the last report went.
struct FrameReport {
    std::uint64_t frames = 0;
    std::uint64_t frame_sum_ns = 0;
    std::uint64_t frame_max_ns = 0;
    std::uint64_t gpu_sum_ns = 0;
    std::uint64_t target_ns = 0;
    std::uint64_t over_target = 0; // frames that took longer
    xlm_pacing pacing = XLM_PACING_OFF;
};

// -- requests; each appends to an empty frame -------------------------------------------------------------------

void encode_hello(Frame & frame, std::uint64_t id, const Identity & identity, std::string_view lease_id);
void encode_plain(Frame & frame, std::uint64_t id, std::string_view type); // ping, goodbye, get_status
void encode_budget(Frame & frame, std::uint64_t id, std::uint64_t cap_bytes, std::uint64_t deadline_ns,
                   xlm_require require);
void encode_reserve(Frame & frame, std::uint64_t id, std::uint64_t bytes, std::uint64_t deadline_ns);
void encode_open(Frame & frame, std::uint64_t id, std::string_view system, xlm_overflow overflow,
                 std::string_view resume);
void encode_close(Frame & frame, std::uint64_t id, std::string_view session_id);
void encode_say(Frame & frame, const Command & command, std::string_view session_id);
void encode_cancel(Frame & frame, std::uint64_t id, std::uint64_t say_id);
void encode_image_begin(Frame & frame, std::uint64_t id, const Picture & picture);
void encode_image_chunk(Frame & frame, std::uint64_t id, std::string_view key, std::uint64_t offset,
                        std::string_view data);
void encode_image_end(Frame & frame, std::uint64_t id, std::string_view key);
void encode_report(Frame & frame, std::uint64_t id, const FrameReport & report);

// -- replies -----------------------------------------------------------------------------------------------------

enum class ReplyType { none, welcome, ok, pong, error, lease, session, tokens, done, notice, status, image, unknown };

/// A decoded frame; texts are views into it. Which fields count depends on the type.
struct Reply {
    explicit Reply(Memory * memory) : token_ids(memory) {}

    ReplyType type = ReplyType::none;
    std::string_view type_name;
    std::uint64_t id = 0;
    // welcome
    std::int64_t version = 0;
    std::string_view lease_id, broker_version;
    double heartbeat_ms = 0, ttl_ms = 0;
    bool resumed = false;
    // error
    std::string_view code, message, fault, hint;
    bool retryable = false;
    std::int64_t minimum_bytes = 0;
    // lease
    std::int64_t granted_bytes = 0, used_bytes = 0, device_used_bytes = 0, reserved_bytes = 0;
    std::int64_t cap_bytes = -1; // none
    double release_ms = 0;
    bool deadline_met = true;
    // session
    std::string_view session_id;
    std::int64_t n_ctx = 0;
    // tokens, notice
    std::int64_t seq = 0;
    std::string_view text, kind;
    std::pmr::vector<std::int32_t> token_ids;
    std::int64_t notice_granted_bytes = -1; // of budget_changed
    // done
    std::string_view finish_reason;
    std::int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
    double ttft_ms = 0, tpot_ms = 0;
    // status
    std::string_view engine_state, model_name, device_kind, schedule_summary;
    std::int64_t engine_restarts = 0, device_total_bytes = 0, ledger_bytes = 0, effective_bytes = 0;
    std::int64_t least_bytes = 0, demand_bytes = 0, resident_bytes = 0;
    bool device_lost = false;
    double tokens_per_s = 0;
    // image
    std::string_view key;
    std::int64_t received_bytes = 0;
    bool ready = false;
};

/// Fills `reply`, fresh. A failure (BAD_REQUEST, UNKNOWN_TYPE, FRAME_TOO_LARGE) leaves its id where that was read.
Failure decode(std::string_view frame, Reply & reply);

/// Appends a frame's map as JSON, or, where `key` is given, the value of that key; nothing where there is none.
/// What JSON has no word for (binary, NaN) becomes null. The frame has been decoded before.
void to_json(std::string_view frame, std::string_view key, std::pmr::string & out);

} // namespace xlm::client
