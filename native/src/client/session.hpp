// The handle the game holds. Slots live as long as the client and are used again; see api_session.cpp for the cycle.
#pragma once

#include <atomic>
#include <memory_resource>
#include <string>

#include <xlm/xlm.h>

struct xlm_session {
    explicit xlm_session(std::pmr::memory_resource * memory) : id(memory) { id.reserve(64); }

    xlm_client * client = nullptr;
    std::uint32_t index = 0;
    std::atomic<std::uint32_t> state{XLM_SESSION_OPENING};
    std::atomic<bool> open{false};        // between xlm_session_open() and _close(): events are delivered
    std::atomic<std::uint64_t> answer{0}; // the one under way; 0: none
    xlm_event_fn on_event = nullptr;      // set before the command that opens it
    void * user_data = nullptr;
    // of the poll thread, written as events are handed out
    std::pmr::string id;
    std::uint32_t n_ctx = 0;
};
