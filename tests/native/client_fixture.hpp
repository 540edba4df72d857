// A fake broker in a process of its own, and a client that keeps what it was told.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <xlm/xlm.h>

#include "check.hpp"

namespace xlm::test {

constexpr std::uint64_t long_ns = 600'000'000'000; // only bounds a failure
constexpr const char * long_ms = "60000";          // between heartbeats: no starved process makes a broker look gone
constexpr std::uint32_t long_goodbye_ms = 60'000;  // a goodbye that is late is no lost one

inline std::string text_of(xlm_str text) {
    return text.len ? std::string(text.data, text.len) : std::string();
}

/// tests/native/fake_broker.py. Its commands are that file's.
class FakeBroker {
public:
    explicit FakeBroker(const std::string & heartbeat_ms = long_ms, const std::string & version = "1") {
        int in[2], out[2];
        if (pipe(in) != 0 || pipe(out) != 0) throw RequirementFailed();
        pid_ = fork();
        if (pid_ == 0) become_broker(in, out, heartbeat_ms, version);
        close(in[0]);
        close(out[1]);
        to_ = in[1];
        from_ = fdopen(out[0], "r");
        endpoint = read_line();
    }
    ~FakeBroker() {
        close(to_);
        fclose(from_);
        int status = 0;
        waitpid(pid_, &status, 0);
    }
    FakeBroker(const FakeBroker &) = delete;
    FakeBroker & operator=(const FakeBroker &) = delete;

    std::string operator()(const std::string & command) {
        const std::string line = command + "\n";
        if (write(to_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) throw RequirementFailed();
        return read_line();
    }

    std::string endpoint;

private:
    [[noreturn]] static void become_broker(int (&in)[2], int (&out)[2], const std::string & heartbeat_ms,
                                           const std::string & version) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        for (const int end : {in[0], in[1], out[0], out[1]})
            close(end);
        setenv("PYTHONPATH", XLM_SDK_FOLDER, 1);
        unsetenv("LD_PRELOAD");
        execl(XLM_PYTHON, XLM_PYTHON, XLM_FAKE_BROKER, heartbeat_ms.c_str(), version.c_str(),
              static_cast<char *>(nullptr));
        _exit(127);
    }
    std::string read_line() {
        std::string line;
        for (int c = fgetc(from_); c != '\n'; c = fgetc(from_)) {
            if (c == EOF) throw RequirementFailed();
            line += static_cast<char>(c);
        }
        return line;
    }

    pid_t pid_ = -1;
    int to_ = -1;
    FILE * from_ = nullptr;
};

/// A copy of an event that lives on.
struct Seen {
    xlm_event_kind kind = XLM_EVENT_NONE;
    xlm_session * session = nullptr;
    std::uint64_t id = 0;
    xlm_client_state state = XLM_CLIENT_CONNECTING;
    xlm_finish_reason finish_reason = XLM_FINISH_NONE;
    xlm_notice_kind notice = XLM_NOTICE_OTHER;
    xlm_result result = XLM_SUCCESS;
    std::string text, detail, message;
    std::vector<std::int32_t> token_ids;
    xlm_lease lease = XLM_LEASE_INIT;
    bool has_lease = false;
    xlm_usage usage = XLM_USAGE_INIT;

    explicit Seen(const xlm_event & event)
        : kind(event.kind), session(event.session), id(event.id), state(event.state),
          finish_reason(event.finish_reason), notice(event.notice), text(text_of(event.text)),
          detail(text_of(event.detail)), token_ids(event.token_ids, event.token_ids + event.n_token_ids) {
        if (event.error) {
            result = event.error->result;
            message = text_of(event.error->message);
        }
        has_lease = event.lease != nullptr;
        if (event.lease) lease = *event.lease;
        if (event.usage) usage = *event.usage;
    }
};

/// A client that is polled with event_wait, and a log of its events.
class Game {
public:
    using Also = std::function<void(const xlm_event &)>;

    explicit Game(const std::string & endpoint, Also also = {}, xlm_client_options options = XLM_CLIENT_OPTIONS_INIT)
        : also_(std::move(also)) {
        options.name = xlm_str_from("test");
        options.endpoint = xlm_str_from(endpoint.c_str());
        options.on_event = [](void * self, const xlm_event * event) { static_cast<Game *>(self)->take(*event); };
        options.user_data = this;
        options.goodbye_ms = long_goodbye_ms;
        if (xlm_client_create(&options, &client) != XLM_SUCCESS) throw RequirementFailed();
    }
    ~Game() { xlm_client_destroy(client); }
    Game(const Game &) = delete;
    Game & operator=(const Game &) = delete;

    /// Polls until `count` events of that kind have been seen; false: never.
    bool until(xlm_event_kind kind, std::size_t count = 1) {
        return until([&] { return of(kind).size() >= count; });
    }
    bool until(const std::function<bool()> & condition) {
        while (!condition()) {
            if (xlm_client_event_wait(client, long_ns) != XLM_SUCCESS) return false;
            if (xlm_client_poll(client, UINT64_MAX) < 0) return false;
        }
        return true;
    }
    /// A machine too busy for a hello within a second is told so first. Forgotten here: few tests are about that.
    bool ready() {
        const bool came = in_state(XLM_CLIENT_READY);
        const auto late = std::remove_if(seen.begin(), seen.end(), [](const Seen & one) {
            return one.kind == XLM_EVENT_STATE && one.result == XLM_ERROR_NOT_READY;
        });
        was_late = late != seen.end();
        seen.erase(late, seen.end());
        return came;
    }
    bool in_state(xlm_client_state state) {
        return until([&] { return in(state); });
    }
    std::vector<Seen> of(xlm_event_kind kind) const {
        std::vector<Seen> found;
        for (const Seen & one : seen)
            if (one.kind == kind) found.push_back(one);
        return found;
    }
    std::string spoken() const {
        std::string all;
        for (const Seen & piece : of(XLM_EVENT_TOKENS))
            all += piece.text;
        return all;
    }
    xlm_session * open(const char * system = "You are Greta.") {
        xlm_session_options options = XLM_SESSION_OPTIONS_INIT;
        options.system = xlm_str_from(system);
        xlm_session * session = nullptr;
        if (xlm_session_open(client, &options, &session) != XLM_SUCCESS) throw RequirementFailed();
        return session;
    }
    std::uint64_t say(xlm_session * session, const char * text = "Hello?") {
        std::uint64_t answer = 0;
        if (xlm_session_say(session, xlm_str_from(text), nullptr, &answer) != XLM_SUCCESS) throw RequirementFailed();
        return answer;
    }

    xlm_client * client = nullptr;
    std::vector<Seen> seen;
    bool was_late = false; // see ready()

private:
    bool in(xlm_client_state state) const { // as the game was told last
        const auto states = of(XLM_EVENT_STATE);
        return !states.empty() && states.back().state == state;
    }
    void take(const xlm_event & event) {
        seen.emplace_back(event);
        if (also_) also_(event);
    }
    Also also_;
};

} // namespace xlm::test
