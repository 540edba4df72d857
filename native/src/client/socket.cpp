#include "socket.hpp"

#include <cerrno>
#include <cstring>
#include <utility>

#include "errors.hpp"

namespace xlm::client {

namespace {

constexpr int reconnect_ms = 20; // how often ZeroMQ looks whether the broker is back: first, and at most
constexpr int reconnect_max_ms = 500;
constexpr int watched = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

[[noreturn]] void broken(const char * what) {
    std::string message(what);
    message.append(": ").append(zmq_strerror(zmq_errno()));
    throw Failed(XLM_ERROR_INTERNAL, message);
}

} // namespace

Socket::Socket(Endpoint endpoint, std::string server_key)
    : endpoint_(std::move(endpoint)), server_key_(std::move(server_key)), context_(zmq_ctx_new()) {
    if (context_ == nullptr) broken("no ZeroMQ context");
    if (!server_key_.empty() && !zmq_has("curve")) {
        zmq_ctx_term(context_);
        throw Failed(XLM_ERROR_ENDPOINT_INVALID, "this libzmq was built without CURVE, and the broker has a key");
    }
}

void Socket::dial() {
    hang_up(0);
    dealer_ = zmq_socket(context_, ZMQ_DEALER);
    if (dealer_ == nullptr) broken("no ZeroMQ socket");
    set(ZMQ_LINGER, 0);
    set(ZMQ_IPV6, endpoint_.is_ipv6);
    set(ZMQ_RECONNECT_IVL, reconnect_ms);
    set(ZMQ_RECONNECT_IVL_MAX, reconnect_max_ms);
    set(ZMQ_MAXMSGSIZE, 16 << 20); // a larger frame ends the connection before it fills memory; int64 below
    if (!server_key_.empty()) encrypt();
    watch_over();
    if (zmq_connect(dealer_, endpoint_.url.c_str()) != 0) broken("cannot connect");
}

void Socket::watch_over() {
    // a name of its own each time: the last monitor's may still be in use until ZeroMQ has reaped it
    const std::string address = "inproc://monitor-" + std::to_string(++n_dials_);
    if (zmq_socket_monitor(dealer_, address.c_str(), watched) != 0) return; // then only silence tells
    monitor_ = zmq_socket(context_, ZMQ_PAIR);
    if (monitor_) zmq_connect(monitor_, address.c_str());
}

void Socket::set(int option, int value) {
    const std::int64_t wide = value;
    const bool is_wide = option == ZMQ_MAXMSGSIZE;
    if (is_wide)
        zmq_setsockopt(dealer_, option, &wide, sizeof wide);
    else
        zmq_setsockopt(dealer_, option, &value, sizeof value);
}

void Socket::encrypt() {
    char public_key[41], secret_key[41]; // made anew for every connection
    if (zmq_curve_keypair(public_key, secret_key) != 0) broken("no CURVE keys");
    zmq_setsockopt(dealer_, ZMQ_CURVE_PUBLICKEY, public_key, 40);
    zmq_setsockopt(dealer_, ZMQ_CURVE_SECRETKEY, secret_key, 40);
    zmq_setsockopt(dealer_, ZMQ_CURVE_SERVERKEY, server_key_.c_str(), 40);
}

bool Socket::send(std::string_view frame) {
    return zmq_send(dealer_, frame.data(), frame.size(), ZMQ_DONTWAIT) >= 0;
}

bool Socket::receive(Received & frame) {
    if (dealer_ == nullptr || zmq_msg_recv(frame.raw(), dealer_, ZMQ_DONTWAIT) < 0) return false;
    while (zmq_msg_more(frame.raw()))
        if (zmq_msg_recv(frame.raw(), dealer_, ZMQ_DONTWAIT) < 0) return false;
    return true;
}

Sight Socket::watch() {
    Received event, address;
    if (monitor_ == nullptr || zmq_msg_recv(event.raw(), monitor_, ZMQ_DONTWAIT) < 0) return Sight::nothing;
    if (zmq_msg_more(event.raw())) zmq_msg_recv(address.raw(), monitor_, ZMQ_DONTWAIT);
    std::uint16_t number = 0; // man zmq_socket_monitor: 16 bits of event, 32 of value
    if (event.view().size() >= sizeof number) std::memcpy(&number, event.view().data(), sizeof number);
    switch (number) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED: return Sight::connected;
    case ZMQ_EVENT_DISCONNECTED: return Sight::disconnected;
    default: return Sight::handshake_failed;
    }
}

const char * Socket::no_handshake() const {
    if (endpoint_.url.compare(0, 6, "ipc://") == 0)
        return "it ended in the handshake: the broker ends, has no place for another one, or is no xlm-broker";
    return "the encrypted handshake failed; is the server key right?";
}

void Socket::poll(const Waker & waker, long timeout_ms, bool writable) {
    zmq_pollitem_t items[3] = {};
    int count = 0;
    items[count].fd = waker.handle();
    items[count++].events = ZMQ_POLLIN;
    if (dealer_) {
        items[count].socket = dealer_;
        items[count++].events = static_cast<short>(ZMQ_POLLIN | (writable ? ZMQ_POLLOUT : 0));
    }
    if (monitor_) {
        items[count].socket = monitor_;
        items[count++].events = ZMQ_POLLIN;
    }
    zmq_poll(items, count, timeout_ms);
}

void Socket::close(int linger_ms) {
    hang_up(linger_ms);
    while (context_ && zmq_ctx_term(context_) != 0 && zmq_errno() == EINTR) {
    }
    context_ = nullptr;
}

void Socket::hang_up(int linger_ms) {
    if (dealer_) {
        zmq_socket_monitor(dealer_, nullptr, 0);
        zmq_setsockopt(dealer_, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        zmq_close(dealer_);
    }
    if (monitor_) {
        const int none = 0;
        zmq_setsockopt(monitor_, ZMQ_LINGER, &none, sizeof none);
        zmq_close(monitor_);
    }
    dealer_ = monitor_ = nullptr;
}

} // namespace xlm::client
