// The shortest game in C++: a budget, one question, the answer as it comes. Compare samples/c/hello.c.
//
//     c++ -std=c++17 hello.cpp $(pkg-config --cflags --libs xlm) -o hello
//     ../../.venv/bin/xlm-broker --model demo --budget-from-game &
//     ./hello "Can you repair my sword?"
#include <iostream>

#include <xlm/xlm.hpp>

namespace {

int complain(const xlm::Error & error) {
    std::cerr << error.name << ": " << error.message << " (" << error.hint << ")\n";
    return 1;
}

} // namespace

int main(int argc, char ** argv) {
    using namespace std::chrono_literals;
    auto client = xlm::Client::create({"hello"}, [](const xlm::Event & event) {
        if (event.kind() == XLM_EVENT_LEASE && event.lease())
            std::cout << "[the model may use " << (event.lease()->granted_bytes >> 20) << " MiB]\n";
    });
    if (!client) return complain(client.error());
    if (!client->ready_wait(5s)) return complain(xlm::Error::last());
    client->set_budget(std::uint64_t(256) << 20, 16ms);

    int result = -1; // not yet
    auto greta = client->open_session({"You are Greta, a blacksmith. Answer in one short sentence."},
                                      [&](const xlm::Event & event) {
                                          if (event.kind() == XLM_EVENT_TOKENS) std::cout << event.text() << std::flush;
                                          if (event.kind() == XLM_EVENT_DONE) result = 0;
                                          if (event.error()) result = complain(xlm::Error(*event.error()));
                                      });
    if (!greta) return complain(greta.error());
    if (!greta->say(argc > 1 ? argv[1] : "Can you repair my sword?")) return complain(xlm::Error::last());

    while (result < 0) {           // a game has its frame here
        client->event_wait(100ms); // and does not wait
        client->poll(1ms);
    }
    std::cout << '\n';
    return result;
}
