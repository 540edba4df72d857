// What happened, on its way from the I/O thread to the game. Buffers are kept from event to event.
#pragma once

#include <memory_resource>
#include <string>
#include <vector>

#include "errors.hpp"
#include "memory.hpp"

namespace xlm::client {

/// Event kinds the game never sees: they only pass through its queue, in order.
inline constexpr xlm_event_kind event_session_gone = 1u << 31; // the slot is free for another session
inline constexpr xlm_event_kind event_log = event_session_gone + 1;

struct StatusNumbers {
    xlm_engine_state engine_state = XLM_ENGINE_UNKNOWN;
    std::uint32_t engine_restarts = 0;
    bool device_lost = false;
    std::uint64_t device_total_bytes = 0;
    std::uint64_t device_used_bytes = 0;
    std::uint64_t budget_bytes = 0;
    std::uint64_t minimum_bytes = 0;
    std::uint64_t demand_bytes = 0;
    std::uint64_t resident_bytes = 0;
    double tokens_per_s = 0.0;
};

struct Event {
    explicit Event(Memory * memory)
        : text(memory), detail(memory), device_kind(memory), model_name(memory), schedule_summary(memory),
          token_ids(memory) {
        text.reserve(96);
        token_ids.reserve(16);
    }

    /// For the next use: every field as new, buffers kept.
    void reset(xlm_event_kind new_kind, xlm_session * of, std::uint64_t new_id) {
        kind = new_kind;
        session = of;
        id = new_id;
        state = XLM_CLIENT_CONNECTING;
        finish_reason = XLM_FINISH_NONE;
        notice = XLM_NOTICE_OTHER;
        number = 0;
        has_lease = false;
        failure = {};
        for (auto * text_field : {&text, &detail, &device_kind, &model_name, &schedule_summary})
            text_field->clear();
        token_ids.clear();
    }

    xlm_event_kind kind = XLM_EVENT_NONE;
    xlm_session * session = nullptr;
    std::uint64_t id = 0;
    xlm_client_state state = XLM_CLIENT_CONNECTING;
    xlm_finish_reason finish_reason = XLM_FINISH_NONE;
    xlm_notice_kind notice = XLM_NOTICE_OTHER;
    std::uint32_t number = 0; // SESSION_*: n_ctx; log: level
    bool has_lease = false;
    xlm_lease lease = XLM_LEASE_INIT;
    xlm_usage usage = XLM_USAGE_INIT;
    StatusNumbers status;
    Failure failure;
    std::pmr::string text;
    std::pmr::string detail; // NOTICE: JSON of its detail; STATUS: JSON of the message
    std::pmr::string device_kind, model_name, schedule_summary;
    std::pmr::vector<std::int32_t> token_ids;
};

} // namespace xlm::client
