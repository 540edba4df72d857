// A connection without sockets, threads or clocks: what it is told, and what came of it.
#pragma once

#include <atomic>
#include <deque>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include <msgpack.hpp>

#include "check.hpp"
#include "client/connection.hpp"

namespace xlm::test {

using namespace xlm::client;

constexpr Nanoseconds ms = 1'000'000;
inline const Failure gone(XLM_ERROR_BROKER_GONE, "gone");

inline std::pmr::memory_resource * memory() {
    return std::pmr::get_default_resource();
}

/// Notes what it is told; the frames as JSON.
struct Recorder final : Shell {
    void dial() override { dials++; }
    void send(std::string_view frame) override {
        std::pmr::string json;
        to_json(frame, "", json);
        sent.emplace_back(json);
    }
    void publish(Event & event) override { events.push_back(event); }
    void recycle(Command & command) override { recycled.push_back(command.id); }
    void phase_changed(Phase phase, bool now_takes, const Failure &) override {
        phases.push_back(phase);
        takes = now_takes;
    }
    void lease_changed(const xlm_lease & changed) override { lease = changed; }
    void log(xlm_log_level, std::string_view) override {}

    std::vector<xlm_event_kind> kinds() const {
        std::vector<xlm_event_kind> out;
        for (const Event & event : events)
            out.push_back(event.kind);
        return out;
    }
    std::size_t count(const char * type) const {
        std::size_t n = 0;
        for (const std::string & one : sent)
            n += one.find(std::string("\"t\":\"") + type + "\"") != std::string::npos;
        return n;
    }

    int dials = 0;
    std::vector<std::string> sent;
    std::vector<Event> events;
    std::vector<std::uint64_t> recycled;
    std::vector<Phase> phases;
    bool takes = true;
    xlm_lease lease = XLM_LEASE_INIT;
};

struct Fixture {
    Recorder shell;
    std::atomic<std::uint64_t> ids{1};
    Connection connection{memory(), Identity{"test", "test", 1}, ids, shell};
    std::deque<Command> commands;
    std::deque<xlm_session> slots;

    Command & command(CommandKind kind, xlm_session * session = nullptr) {
        Command & made = commands.emplace_back(0, memory());
        made.kind = kind;
        made.id = ids++;
        made.session = session;
        return made;
    }
    xlm_session & slot() { return slots.emplace_back(memory()); }
    std::uint64_t last_id() const { return ids - 1; }

    template <typename Fill>
    void reply(std::uint32_t n_keys, Fill && fill, Nanoseconds now = 0) {
        msgpack::sbuffer buffer;
        msgpack::packer<msgpack::sbuffer> packer(buffer);
        packer.pack_map(n_keys);
        fill([&](const char * key, const auto & value) {
            packer.pack(std::string(key));
            packer.pack(value);
        });
        connection.receive({buffer.data(), buffer.size()}, now);
    }
    void welcome(Nanoseconds now = 0, std::uint64_t hello = 0) {
        if (hello == 0) hello = last_id();
        reply(
            6,
            [&](auto add) {
                add("t", std::string("welcome"));
                add("id", hello);
                add("version", 1);
                add("lease_id", std::string("lease"));
                add("heartbeat_ms", 1000.0);
                add("ttl_ms", 3000.0);
            },
            now);
    }
    void opened(std::uint64_t id, bool resumed, const char * name = "s-1") {
        reply(4, [&](auto add) {
            add("t", std::string("session"));
            add("id", id);
            add("session_id", std::string(name));
            add("resumed", resumed);
        });
    }
    void tokens(std::uint64_t id, int seq, const char * text) {
        reply(4, [&](auto add) {
            add("t", std::string("tokens"));
            add("id", id);
            add("seq", seq);
            add("text", std::string(text));
        });
    }
    void refused(std::uint64_t id, const char * code) {
        reply(4, [&](auto add) {
            add("t", std::string("error"));
            add("id", id);
            add("code", std::string(code));
            add("message", std::string("because"));
        });
    }
    void make_ready() {
        connection.start(0);
        welcome();
        shell.events.clear();
        shell.sent.clear();
    }
    std::uint64_t begin_opening(xlm_session & session) {
        connection.submit(command(CommandKind::open_session, &session));
        return last_id();
    }
    xlm_session & open_session() {
        xlm_session & session = slot();
        opened(begin_opening(session), false);
        shell.events.clear();
        shell.sent.clear();
        return session;
    }
};

} // namespace xlm::test
