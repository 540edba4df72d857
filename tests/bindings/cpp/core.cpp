// The engine-free part of bindings/unreal, played with a broker by test_unreal.py: `core NAME ENDPOINT`. A scenario
// writes lines and waits for words of the test on standard input, so nothing depends on a clock.
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "XlmCore/BrokerProcess.h"
#include "XlmCore/Sentences.h"
#include "XlmCore/Talker.h"

namespace {

using namespace std::chrono_literals;

[[noreturn]] void fail(const std::string & what) {
    std::cerr << what << std::endl;
    std::exit(1);
}

void tell(const std::string & line) {
    std::cout << line << std::endl;
}

void hear(const std::string & expected) {
    std::string word;
    if (!std::getline(std::cin, word) || word != expected) fail("heard " + word + " for " + expected);
}

xlm::Client connect(const std::string & endpoint) {
    auto client = xlm::Client::create({"unreal", endpoint});
    if (!client) fail(client.error().message);
    if (!client->ready_wait(60s)) fail(xlm::Error::last().message);
    return *std::move(client);
}

void poll_until(xlm::Client & client, const std::function<bool()> & condition) {
    while (!condition()) {
        if (!client.event_wait(60s)) fail("no event came");
        client.poll(1ms);
    }
}

/// What a listener was told, as one line.
struct Notes {
    std::string line;
    std::function<void(const std::string &)> also = [](const std::string &) {};

    xlm::TalkListener listener() {
        const auto note = [this](const char * kind) {
            return [this, kind](std::string_view text) { add(std::string(kind) + std::string(text)); };
        };
        return {note("+"), note("s:"), note("done:"), [this](const xlm::Error & error) { add("error:" + error.name); }};
    }
    void add(const std::string & what) {
        line += "[" + what + "]";
        also(what);
    }
    bool has(const std::string & what) const { return line.find("[" + what) != line.npos; }
};

void sentences(const std::string & path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::string text;
        for (size_t i = 0; i < line.size(); i++) {
            if (line.compare(i, 2, "\\n") == 0)
                text += '\n', i++;
            else if (line[i] != '|')
                text += line[i];
        }
        for (const size_t size : {size_t(1), size_t(5), text.size() + 1}) { // in characters
            xlm::Sentences cutter;
            std::vector<std::string> found;
            size_t begin = 0, characters = 0;
            for (size_t i = 1; i <= text.size(); i++) {
                if (i < text.size() && (text[i] & 0xc0) == 0x80) continue;
                if (++characters % size != 0 && i < text.size()) continue;
                cutter.feed(std::string_view(text).substr(begin, i - begin), found);
                begin = i;
            }
            cutter.finish(found);
            std::string joined;
            for (const std::string & one : found)
                joined += (joined.empty() ? "" : "|") + one;
            tell(joined);
        }
    }
}

// Bytes that are no UTF-8 must not be read past.
void garbage(const std::string &) {
    std::string noise;
    unsigned random = 1;
    for (int round = 0; round < 20000; round++) {
        random = random * 1103515245u + 12345u;
        noise += static_cast<char>(random >> 16);
        if (round % 3 == 0) noise += ". ";
    }
    xlm::Sentences cutter;
    std::vector<std::string> found;
    for (size_t at = 0; at < noise.size(); at += 7)
        cutter.feed(std::string_view(noise).substr(at, 7), found);
    cutter.finish(found);
    tell(found.size() > 100 ? "many" : "few");
}

void talk(const std::string & endpoint) {
    auto client = connect(endpoint);
    Notes notes;
    xlm::Talker greta("Grüße von Greta", XLM_OVERFLOW_SHIFT, notes.listener());
    xlm::TalkOptions options;
    options.numbers.max_tokens = 99;
    options.numbers.temperature = 0.25;
    options.stop = {"Ende", "旅"};
    options.json_schema = "{}";
    tell("turn " + std::to_string(greta.say(client, "Hallo ⚔", options)));
    poll_until(client, [&] { return !greta.talking(); });
    tell(notes.line);
}

void interrupt(const std::string & endpoint) {
    auto client = connect(endpoint);
    Notes notes;
    xlm::Talker greta("", XLM_OVERFLOW_SHIFT, notes.listener());
    greta.say(client, "Long");
    poll_until(client, [&] { return notes.has("+"); });
    {
        xlm::TalkOptions options; // gone before the question is said
        options.stop = {"a stop text that is too long for the small string of a library"};
        greta.say(client, "Never said", options);
        tell("turns " + std::to_string(greta.say(client, "Short", options)) + " " + std::to_string(greta.turn()));
    }
    poll_until(client, [&] { return notes.has("done"); });
    tell("talking " + std::to_string(greta.talking()) + " " + std::to_string(greta.turn()));
    tell("released");
    poll_until(client, [&] { return !greta.talking(); });
    tell(notes.line);
}

void stop(const std::string & endpoint) {
    auto client = connect(endpoint);
    Notes notes;
    xlm::Talker greta("", XLM_OVERFLOW_SHIFT, notes.listener());
    greta.say(client, "Long");
    poll_until(client, [&] { return notes.has("+"); });
    greta.say(client, "dropped by stop");
    greta.stop();
    poll_until(client, [&] { return !greta.talking(); });
    tell(notes.line);
}

/// Within each of its events in turn, the talker is destroyed, closed, or says something more.
void within(const std::string & endpoint) {
    auto client = connect(endpoint);
    for (const std::string event : {"+", "s:", "done:"}) {
        Notes notes;
        auto greta = std::make_unique<xlm::Talker>("", XLM_OVERFLOW_SHIFT, notes.listener());
        notes.also = [&](const std::string & what) {
            if (what.rfind(event, 0) == 0) greta.reset();
        };
        greta->say(client, "Destroyed");
        poll_until(client, [&] { return greta == nullptr; });
        tell(event + " " + notes.line);

        Notes more;
        xlm::Talker finn("", XLM_OVERFLOW_SHIFT, more.listener());
        bool closed = false;
        more.also = [&](const std::string & what) {
            if (closed || what.rfind(event, 0) != 0) return;
            closed = true;
            finn.close();
            finn.say(client, "Again");
        };
        finn.say(client, "Closed");
        poll_until(client, [&] { return closed && !finn.talking(); });
        tell("again " + more.line);
    }
}

void errors(const std::string & endpoint) {
    auto client = connect(endpoint);
    Notes notes;
    xlm::Talker greta("", XLM_OVERFLOW_ERROR, notes.listener());
    greta.say(client, "Too long");
    poll_until(client, [&] { return notes.has("error"); });
    xlm::TalkOptions wrong;
    wrong.numbers.temperature = -1;
    greta.say(client, "Wrong", wrong);
    tell(notes.line + " " + std::to_string(greta.turn()));
    tell("kill");
    poll_until(client, [&] { return client.state() != XLM_CLIENT_READY; });
    notes.line.clear();
    greta.say(client, "Nobody there");
    tell(notes.line);
    poll_until(client, [&] { return client.ready(); });
    greta.say(client, "Back");
    poll_until(client, [&] { return !greta.talking(); });
    client = connect(endpoint); // another client: another conversation
    greta.say(client, "New");
    poll_until(client, [&] { return !greta.talking(); });
    tell(notes.line);
}

void process(const std::string & endpoint) {
    const std::vector<std::string> words = {std::getenv("XLM_TEST_BROKER"), "--endpoint", endpoint,
                                            "it's \"quoted\" $HOME `ls` \\ *"};
    auto broker = xlm::BrokerProcess::start(words);
    if (broker == nullptr) fail("not started");
    tell("started");
    hear("stop");
    tell("running " + std::to_string(broker->running()));
    broker.reset();
    auto missing = xlm::BrokerProcess::start({"/no/such/program"});
    while (missing->running())
        usleep(10000);
    tell("missing " + std::to_string(missing->exit_code()));
}

} // namespace

// A question with a frame waits until the answer before it has stopped, and owns its pixels until the broker has them.
void image(const std::string & endpoint) {
    std::weak_ptr<const std::string> freed;
    xlm::Client client = connect(endpoint);
    Notes told;
    xlm::Talker talker("", XLM_OVERFLOW_SHIFT, told.listener());
    talker.say(client, "Count");
    poll_until(client, [&] { return told.has("+a"); });
    {
        xlm::TalkOptions options;
        auto frame = std::make_shared<xlm::TalkImage>();
        const auto bytes = std::make_shared<const std::string>("BGRxbgrx");
        frame->owner = bytes;
        frame->data = bytes->data();
        frame->size_bytes = bytes->size();
        freed = bytes;
        frame->format = XLM_IMAGE_BGRX8;
        frame->width = 1;
        frame->height = 2;
        options.images.push_back(std::move(frame));
        talker.say(client, "What do you see?", options);
    }
    poll_until(client, [&] { return told.has("done:ab"); });
    tell(told.line + (freed.expired() ? " freed" : " kept"));
}

int main(int count, char ** words) {
    const std::map<std::string, void (*)(const std::string &)> scenarios = {
        {"sentences", sentences}, {"garbage", garbage}, {"talk", talk},     {"interrupt", interrupt},
        {"stop", stop},           {"within", within},   {"errors", errors}, {"process", process},
        {"image", image}};
    if (count != 3 || scenarios.count(words[1]) == 0) return 2;
    scenarios.at(words[1])(words[2]);
    tell("end");
}
