// Endpoints and key files: the rules that the SDK has for them.
#include <cstdlib>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

#include "check.hpp"
#include "client/endpoint.hpp"
#include "client/errors.hpp"

using namespace xlm::client;

namespace {

xlm_result code_of(const std::string & text) {
    try {
        parse_endpoint(text);
        return XLM_SUCCESS;
    } catch (const Failed & error) {
        return error.failure.result;
    }
}

/// A folder for this test alone, and the environment that points into it.
struct Folder {
    std::string path;
    Folder() {
        char name[] = "/tmp/xlm-test-XXXXXX";
        path = mkdtemp(name);
        unsetenv("XLM_ENDPOINT");
        unsetenv("XLM_SERVER_KEY");
        setenv("XDG_CONFIG_HOME", path.c_str(), 1);
        setenv("XDG_RUNTIME_DIR", path.c_str(), 1);
    }
    ~Folder() { [[maybe_unused]] const int rc = std::system(("rm -r " + path).c_str()); }
    std::string write(const std::string & name, const std::string & text, mode_t mode = 0600) {
        const std::string file = path + "/" + name;
        std::ofstream(file) << text;
        chmod(file.c_str(), mode);
        return file;
    }
};

xlm_result key_code(const std::string & given, const char * endpoint = "tcp://127.0.0.1:1") {
    try {
        find_server_key(parse_endpoint(endpoint), given);
        return XLM_SUCCESS;
    } catch (const Failed & error) {
        return error.failure.result;
    }
}

const std::string key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"; // of RFC 32's example

} // namespace

TEST(good_endpoints) {
    CHECK_EQ(parse_endpoint("ipc:///run/x.sock").url, "ipc:///run/x.sock");
    CHECK_EQ(parse_endpoint("tcp://LOCALHOST:80").url, "tcp://127.0.0.1:80");
    CHECK_EQ(parse_endpoint("tcp://127.3.2.1:65535").url, "tcp://127.3.2.1:65535");
    const Endpoint six = parse_endpoint("tcp://[::1]:9");
    CHECK_EQ(six.url, "tcp://[::1]:9");
    CHECK(six.is_ipv6 && six.is_tcp);
}

TEST(bad_endpoints_say_why) {
    for (const char * text : {"x", "udp://127.0.0.1:1", "ipc://", "ipc://*", "ipc://@name", "ipc://relative",
                              "ipc:///folder/", "tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:0",
                              "tcp://127.0.0.1:65536", "tcp://127.0.0.1:*", "tcp://127.0.0.1:+1", "tcp://:80"})
        CHECK_EQ(code_of(text), XLM_ERROR_ENDPOINT_INVALID);
    for (const char * text :
         {"tcp://0.0.0.0:1", "tcp://192.168.0.1:1", "tcp://example.org:1", "tcp://*:1", "tcp://[::]:1", "tcp://::1:1"})
        CHECK_EQ(code_of(text), XLM_ERROR_ENDPOINT_NOT_LOCAL);
    CHECK_EQ(code_of("ipc:///" + std::string(106, 'a')), XLM_SUCCESS);
    CHECK_EQ(code_of("ipc:///" + std::string(107, 'a')), XLM_ERROR_ENDPOINT_TOO_LONG);
    CHECK_EQ(code_of(std::string("ipc:///a\0b", 10)), XLM_ERROR_ENDPOINT_INVALID);
}

TEST(the_default_is_the_environment_or_the_runtime_folder) {
    Folder folder;
    CHECK_EQ(parse_endpoint("").url, "ipc://" + folder.path + "/xlm/broker.sock");
    chmod(folder.path.c_str(), 0755); // others can enter it: not used
    CHECK(parse_endpoint("").url != "ipc://" + folder.path + "/xlm/broker.sock");
    setenv("XLM_ENDPOINT", "tcp://127.0.0.1:7", 1);
    CHECK_EQ(parse_endpoint("").url, "tcp://127.0.0.1:7");
}

TEST(server_keys) {
    Folder folder;
    const Endpoint tcp = parse_endpoint("tcp://127.0.0.1:1");
    CHECK_EQ(find_server_key(tcp, ""), "");
    CHECK_EQ(find_server_key(tcp, key), key);
    CHECK_EQ(find_server_key(tcp, folder.write("k", key + "\n")), key);
    mkdir((folder.path + "/xlm").c_str(), 0700);
    mkdir((folder.path + "/xlm/curve").c_str(), 0700);
    folder.write("xlm/curve/server.key", key);
    CHECK_EQ(find_server_key(tcp, ""), key);
    CHECK_EQ(key_code(folder.write("open", key, 0644)), XLM_ERROR_ENDPOINT_FORBIDDEN);
    CHECK_EQ(key_code(folder.write("short", "abc")), XLM_ERROR_ENDPOINT_FORBIDDEN);
    CHECK_EQ(key_code(folder.path + "/absent"), XLM_ERROR_ENDPOINT_FORBIDDEN);
    CHECK_EQ(key_code(key, "ipc:///x"), XLM_ERROR_ENDPOINT_INVALID);
    setenv("XLM_SERVER_KEY", (folder.path + "/absent").c_str(), 1);
    CHECK_EQ(key_code(""), XLM_ERROR_ENDPOINT_FORBIDDEN);
    unsetenv("XLM_SERVER_KEY");
}

XLM_TEST_MAIN
