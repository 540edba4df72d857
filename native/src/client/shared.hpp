// What a client's threads share, and nothing else: queues, pools and a few atomics.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "command.hpp"
#include "event.hpp"
#include "rings.hpp"
#include "session.hpp"
#include "waker.hpp"

namespace xlm::client {

inline constexpr std::uint32_t n_commands = 256; // under way between the game and the I/O thread
inline constexpr std::uint32_t n_events = 512;   // waiting for a poll before they go to an overflow
inline constexpr std::uint32_t n_frames = 256;

/// The lease as of the last answer, for any thread at any time: a sequence lock over atomics.
class LeaseSnapshot {
public:
    void store(const xlm_lease & lease) noexcept { // the I/O thread
        const std::uint64_t words[] = {lease.deadline_met,      lease.granted_bytes, lease.used_bytes,
                                       lease.device_used_bytes, lease.cap_bytes,     lease.reserved_bytes,
                                       lease.release_ns};
        const std::uint64_t turn = turn_.load(std::memory_order_relaxed);
        turn_.store(turn + 1, std::memory_order_relaxed);
        for (std::size_t i = 0; i < words_.size(); i++)
            words_[i].store(words[i], std::memory_order_release); // none may be seen before the odd turn is
        turn_.store(turn + 2, std::memory_order_release);
    }

    xlm_lease load() const noexcept {
        std::array<std::uint64_t, 7> words;
        for (;;) {
            const std::uint64_t turn = turn_.load(std::memory_order_acquire);
            for (std::size_t i = 0; i < words_.size(); i++)
                words[i] = words_[i].load(std::memory_order_acquire);
            if (turn % 2 == 0 && turn_.load(std::memory_order_relaxed) == turn) break;
        }
        return {static_cast<std::uint32_t>(sizeof(xlm_lease)),
                static_cast<std::uint32_t>(words[0]),
                words[1],
                words[2],
                words[3],
                words[4],
                words[5],
                words[6]};
    }

private:
    std::atomic<std::uint64_t> turn_{0};
    std::array<std::atomic<std::uint64_t>, 7> words_{};
};

struct FrameSample {
    std::uint64_t frame_ns, target_ns, gpu_ns;
    xlm_pacing pacing;
};

struct Shared {
    Shared(Memory * memory, std::uint32_t max_sessions)
        : commands(memory), free_commands(n_commands, memory), requests(n_commands, memory), sessions(memory),
          free_sessions(max_sessions, memory), events(n_events, memory), lent(n_commands, memory),
          frames(n_frames, memory) {
        for (std::uint32_t i = 0; i < n_commands; i++)
            commands.emplace_back(i, memory);
        for (std::uint32_t i = 0; i < max_sessions; i++)
            sessions.emplace_back(memory).index = i;
    }

    // game -> I/O
    std::pmr::deque<Command> commands;
    FreeList free_commands;
    MpscQueue<std::uint32_t> requests; // never full: it holds as many as there are commands
    std::pmr::deque<xlm_session> sessions;
    FreeList free_sessions;
    std::atomic<std::uint64_t> next_id{1};
    Waker waker;
    std::atomic<bool> stopping{false};

    // I/O -> game
    SpscRing<Event> events;
    MpscQueue<std::uint32_t> lent;        // commands whose images go back to the game; never full
    std::atomic<bool> overflowing{false}; // the I/O thread waits for room in `events`
    std::atomic<xlm_client_state> state{XLM_CLIENT_CONNECTING};
    std::atomic<bool> takes{true}; // requests; false: `absence` says why not
    std::atomic<xlm_result> absence{XLM_ERROR_NOT_READY};
    LeaseSnapshot lease;

    // frames, summed up by the I/O thread
    MpscQueue<FrameSample> frames;
    std::atomic<std::uint64_t> unreported_ns{0};

    // for the *_wait functions alone; the I/O thread holds it for a moment, the game's frame never does
    std::mutex mutex;
    std::condition_variable changed;
    Failure why; // of the state, under the mutex
};

} // namespace xlm::client
