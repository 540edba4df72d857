// The socket of a client: a DEALER and its monitor. For the I/O thread alone.
#pragma once

#include <string>
#include <string_view>

#include <zmq.h>

#include "endpoint.hpp"
#include "waker.hpp"

namespace xlm::client {

/// One received frame; freed at the end.
class Received {
public:
    Received() { zmq_msg_init(&message_); }
    ~Received() { zmq_msg_close(&message_); }
    Received(const Received &) = delete;
    Received & operator=(const Received &) = delete;
    zmq_msg_t * raw() { return &message_; }
    std::string_view view() { return {static_cast<const char *>(zmq_msg_data(&message_)), zmq_msg_size(&message_)}; }

private:
    zmq_msg_t message_;
};

enum class Sight { nothing, connected, disconnected, handshake_failed };

class Socket {
public:
    Socket(Endpoint endpoint, std::string server_key); // throws Failed
    ~Socket() { close(0); }
    Socket(const Socket &) = delete;
    Socket & operator=(const Socket &) = delete;

    void dial();                       // a fresh connection in the making. Throws Failed
    bool send(std::string_view frame); // false: not now, the queue is full
    bool receive(Received & frame);    // false: none. Of several frames, which no broker sends, the last one counts
    const char * no_handshake() const; // for people: why a connection may end before it is one
    Sight watch();                     // the next thing the monitor saw
    void poll(const Waker & waker, long timeout_ms, bool writable);
    void close(int linger_ms); // for good; waits that long for what was sent to leave

private:
    void hang_up(int linger_ms);
    void set(int option, int value);
    void encrypt();
    void watch_over();

    Endpoint endpoint_;
    std::string server_key_;
    void * context_ = nullptr;
    void * dealer_ = nullptr;
    void * monitor_ = nullptr;
    unsigned n_dials_ = 0;
};

} // namespace xlm::client
