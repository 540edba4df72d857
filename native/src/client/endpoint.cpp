#include "endpoint.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#ifdef _WIN32
#include <winsock2.h>
#include <ws2tcpip.h>
#else
#include <arpa/inet.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include <zmq.h>

#include "errors.hpp"

namespace xlm::client {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_path_bytes = 107; // sockaddr_un.sun_path holds 108 with its final NUL: man 7 unix
constexpr std::size_t key_characters = 40;  // 32 bytes in Z85: https://rfc.zeromq.org/spec/32/
#ifdef _WIN32
constexpr const char * default_tcp = "tcp://127.0.0.1:17861"; // as xlm.protocol.endpoints.DEFAULT_TCP_PORT
#endif

std::string environment(const char * name) {
    const char * value = std::getenv(name);
    return value ? value : "";
}

[[noreturn]] void refuse(xlm_result code, std::string_view text, const char * problem) {
    std::string message("'");
    message.append(text.substr(0, 200)).append("' ").append(problem);
    throw Failed(code, message);
}

#ifndef _WIN32
/// As platformdirs has it: a real folder of this user's alone.
bool is_private_folder(const std::string & path) {
    struct stat info {};
    return !path.empty() && lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == getuid() &&
           (info.st_mode & 0777) == 0700;
}

std::string runtime_folder() {
#ifdef __APPLE__
    return environment("HOME") + "/Library/Caches/TemporaryItems";
#else
    const std::string user = std::to_string(getuid());
    for (const std::string & candidate : {environment("XDG_RUNTIME_DIR"), "/run/user/" + user})
        if (is_private_folder(candidate)) return candidate;
    std::error_code ignored;
    return (fs::temp_directory_path(ignored) / ("runtime-" + user)).string();
#endif
}
#endif

std::string default_endpoint() {
    if (std::string named = environment("XLM_ENDPOINT"); !named.empty()) return named;
#ifdef _WIN32
    return default_tcp;
#else
    return "ipc://" + runtime_folder() + "/xlm/broker.sock";
#endif
}

Endpoint parse_ipc(std::string_view text, std::string_view path) {
    const bool has_nul = path.find('\0') != std::string_view::npos;
    // "*", "@name" (abstract: no file permissions) and relative paths end here too
    if (has_nul || path.empty() || path.front() != '/' || path.back() == '/')
        refuse(XLM_ERROR_ENDPOINT_INVALID, text, "does not name a socket file by its absolute path");
    if (path.size() > max_path_bytes) refuse(XLM_ERROR_ENDPOINT_TOO_LONG, text, "has too long a path");
    return {"ipc://" + std::string(path), false, false};
}

int parse_port(std::string_view text) { // 0: none
    int port = 0;
    if (text.empty() || text.size() > 5) return 0;
    for (const char c : text) {
        if (c < '0' || c > '9') return 0;
        port = port * 10 + (c - '0');
    }
    return port < 65536 ? port : 0;
}

bool is_loopback_v4(const std::string & host) {
    in_addr address{};
    return inet_pton(AF_INET, host.c_str(), &address) == 1 && (ntohl(address.s_addr) >> 24) == 127;
}

bool is_loopback_v6(const std::string & host) {
    in6_addr address{};
    return inet_pton(AF_INET6, host.c_str(), &address) == 1 && IN6_IS_ADDR_LOOPBACK(&address);
}

bool is_localhost(std::string host) {
    for (char & c : host)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return host == "localhost";
}

Endpoint parse_tcp(std::string_view text, std::string_view rest) {
    const std::size_t colon = rest.rfind(':');
    if (colon == std::string_view::npos || colon == 0) refuse(XLM_ERROR_ENDPOINT_INVALID, text, "has no port");
    std::string host(rest.substr(0, colon));
    if (is_localhost(host)) host = "127.0.0.1"; // one meaning on every machine, whatever its resolver prefers
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    const bool local = bracketed ? is_loopback_v6(host.substr(1, host.size() - 2)) : is_loopback_v4(host);
    if (!local) refuse(XLM_ERROR_ENDPOINT_NOT_LOCAL, text, "names another host than this machine");
    const int port = parse_port(rest.substr(colon + 1));
    if (port == 0) refuse(XLM_ERROR_ENDPOINT_INVALID, text, "has no valid port");
    return {"tcp://" + host + ":" + std::to_string(port), true, bracketed};
}

// -- keys ---------------------------------------------------------------------------------------------------------

bool is_key(const std::string & text) {
    std::uint8_t bytes[32];
    return text.size() == key_characters && zmq_z85_decode(bytes, text.c_str()) != nullptr;
}

fs::path default_key_file() {
#if defined(_WIN32)
    return fs::u8path(environment("LOCALAPPDATA")) / "xlm" / "xlm" / "curve" / "server.key";
#elif defined(__APPLE__)
    return fs::path(environment("HOME")) / "Library/Application Support/xlm/curve/server.key";
#else
    const std::string configured = environment("XDG_CONFIG_HOME");
    const fs::path base = configured.empty() ? fs::path(environment("HOME")) / ".config" : fs::path(configured);
    return base / "xlm/curve/server.key";
#endif
}

bool readable_by_others(const fs::path & path) {
#ifdef _WIN32
    (void)path;
    return false; // the profile folder's access list guards it
#else
    struct stat info {};
    return stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0;
#endif
}

std::string read_key(const fs::path & path) {
    const std::string shown = path.u8string();
    std::ifstream file(path, std::ios::binary);
    std::string text(1024, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!file && !file.eof()) refuse(XLM_ERROR_ENDPOINT_FORBIDDEN, shown, "is a key file that cannot be read");
    text.resize(static_cast<std::size_t>(file.gcount()));
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
        text.pop_back();
    if (readable_by_others(path))
        refuse(XLM_ERROR_ENDPOINT_FORBIDDEN, shown, "is a key file that others can read: chmod 600");
    if (!is_key(text)) refuse(XLM_ERROR_ENDPOINT_FORBIDDEN, shown, "holds no key of 40 Z85 characters");
    return text;
}

} // namespace

Endpoint parse_endpoint(std::string_view given) {
    const std::string text = given.empty() ? default_endpoint() : std::string(given);
    const std::string_view view(text);
    if (view.substr(0, 6) == "ipc://") return parse_ipc(view, view.substr(6));
    if (view.substr(0, 6) == "tcp://") return parse_tcp(view, view.substr(6));
    refuse(XLM_ERROR_ENDPOINT_INVALID, view, "is not an endpoint");
}

std::string find_server_key(const Endpoint & endpoint, std::string_view given) {
    if (!endpoint.is_tcp) {
        if (!given.empty())
            throw Failed(XLM_ERROR_ENDPOINT_INVALID, "a server key is for tcp; an ipc socket is private already");
        return {};
    }
    const std::string named = given.empty() ? environment("XLM_SERVER_KEY") : std::string(given);
    if (!named.empty()) return is_key(named) ? named : read_key(fs::u8path(named));
    const fs::path file = default_key_file();
    std::error_code ignored;
    return fs::exists(file, ignored) ? read_key(file) : std::string();
}

} // namespace xlm::client
