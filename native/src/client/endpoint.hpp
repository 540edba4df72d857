// Where a broker listens, and the key it may ask for: the rules of sdk/xlm/protocol/{endpoints,keys}.py.
#pragma once

#include <string>
#include <string_view>

namespace xlm::client {

struct Endpoint {
    std::string url; // as ZeroMQ takes it
    bool is_tcp = false;
    bool is_ipv6 = false;
};

/// Empty: $XLM_ENDPOINT, else the broker's default. Opens nothing. Throws Failed (ENDPOINT_*).
Endpoint parse_endpoint(std::string_view text);

/// The broker's public key (40 characters of Z85), or "": a plain connection. `given` is the key or its file; only
/// tcp has one. Throws Failed (ENDPOINT_FORBIDDEN, ENDPOINT_INVALID).
std::string find_server_key(const Endpoint & endpoint, std::string_view given);

} // namespace xlm::client
