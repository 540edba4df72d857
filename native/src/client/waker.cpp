#include "waker.hpp"

#include "errors.hpp"

#ifdef _WIN32
#include <winsock2.h>
#include <ws2tcpip.h>
#else
#include <fcntl.h>
#include <unistd.h>
#endif
#ifdef __linux__
#include <sys/eventfd.h>
#endif

namespace xlm::client {

namespace {

[[noreturn]] void no_descriptor() {
    throw Failed(XLM_ERROR_INTERNAL, "the system gives no descriptor to wake the I/O thread with");
}

} // namespace

#if defined(_WIN32)

// A UDP socket connected to itself: what Windows can poll beside other sockets.
Waker::Waker() {
    WSADATA data;
    if (WSAStartup(MAKEWORD(2, 2), &data) != 0) no_descriptor();
    const SOCKET s = socket(AF_INET, SOCK_DGRAM, IPPROTO_UDP);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int length = sizeof address;
    auto * const plain = reinterpret_cast<sockaddr *>(&address);
    u_long nonblocking = 1;
    if (s == INVALID_SOCKET || bind(s, plain, length) != 0 || getsockname(s, plain, &length) != 0 ||
        connect(s, plain, length) != 0 || ioctlsocket(s, FIONBIO, &nonblocking) != 0) {
        if (s != INVALID_SOCKET) closesocket(s);
        WSACleanup();
        no_descriptor();
    }
    reader_ = writer_ = s;
}

Waker::~Waker() {
    closesocket(reader_);
    WSACleanup();
}

void Waker::write() noexcept {
    const char byte = 0;
    (void)send(writer_, &byte, 1, 0);
}

void Waker::clear() noexcept {
    char bytes[64];
    while (recv(reader_, bytes, sizeof bytes, 0) > 0) {
    }
    pending_.exchange(false, std::memory_order_acq_rel);
}

#elif defined(__linux__)

Waker::Waker() {
    reader_ = writer_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (reader_ < 0) no_descriptor();
}

Waker::~Waker() {
    close(reader_);
}

void Waker::write() noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(writer_, &one, sizeof one); // full: it is awake already
}

void Waker::clear() noexcept {
    std::uint64_t count;
    [[maybe_unused]] const ssize_t n = read(reader_, &count, sizeof count);
    pending_.exchange(false, std::memory_order_acq_rel);
}

#else

Waker::Waker() {
    int ends[2];
    if (pipe(ends) != 0) no_descriptor();
    reader_ = ends[0];
    writer_ = ends[1];
    for (const int end : ends) {
        fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK);
        fcntl(end, F_SETFD, FD_CLOEXEC);
    }
}

Waker::~Waker() {
    close(reader_);
    close(writer_);
}

void Waker::write() noexcept {
    const char byte = 0;
    [[maybe_unused]] const ssize_t n = ::write(writer_, &byte, 1);
}

void Waker::clear() noexcept {
    char bytes[64];
    while (read(reader_, bytes, sizeof bytes) > 0) {
    }
    pending_.exchange(false, std::memory_order_acq_rel);
}

#endif

} // namespace xlm::client
