// The I/O thread: one socket, and a Connection that decides. No code of the game ever runs on it, but its allocator.
#pragma once

#include <deque>
#include <string>
#include <thread>

#include "connection.hpp"
#include "shared.hpp"
#include "socket.hpp"

namespace xlm::client {

struct IoOptions {
    Endpoint endpoint;
    std::string server_key;
    std::string name;
    int goodbye_ms = 200;
    bool wants_log = false;
    xlm_log_level log_level = XLM_LOG_INFO;
};

class Io final : Shell {
public:
    Io(Memory * memory, Shared & shared, IoOptions options); // throws Failed
    ~Io() override { stop(); }

    void start();                        // throws std::system_error
    void stop();                         // says goodbye and joins; may be called twice
    void abandon() { thread_.detach(); } // after fork(): there is no thread here

private:
    void run() noexcept;
    void loop();
    void turn();
    void take_requests();
    void take_frames(Nanoseconds now);
    bool receive();
    void watch();
    void flush_outbox();
    void flush_overflow();
    void announce();
    void end();
    long timeout_ms() const;
    void give_up(const Failure & why) noexcept;

    // Shell
    void dial() override;
    void send(std::string_view frame) override;
    void publish(Event & event) override;
    void recycle(Command & command) override;
    void phase_changed(Phase phase, bool takes, const Failure & why) override;
    void lease_changed(const xlm_lease & lease) override { shared_.lease.store(lease); }
    void log(xlm_log_level level, std::string_view line) override;

    Memory * memory_;
    Shared & shared_;
    IoOptions options_;
    Socket socket_;
    Connection connection_;
    std::pmr::deque<Frame> outbox_;
    std::pmr::deque<Event> overflow_;
    Event log_event_;
    FrameReport frames_;
    Nanoseconds last_report_ = 0;
    bool peer_there_ = false; // a broker took the connection: it may have read HELLO
    bool news_ = false;       // something was published in this turn
    std::thread thread_;
};

} // namespace xlm::client
