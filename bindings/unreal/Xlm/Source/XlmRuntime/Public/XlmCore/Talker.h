// Talker.h - a character's side of a conversation, over xlm.hpp. No Unreal in here: compiled and tested by itself.
//
// Opens its session when it first speaks, and again where the client is a new one or the session was lost; cuts
// sentences; a new question interrupts the answer under way. Everything is called on the thread that polls the
// client, and listeners may do anything but poll or destroy the client: close or destroy the talker, talk again.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "Sentences.h"
#include <xlm/xlm.hpp>

namespace xlm {

struct TalkListener {
    std::function<void(std::string_view)> token;    // the next piece, whole characters
    std::function<void(std::string_view)> sentence; // without white space around it
    std::function<void(std::string_view)> done;     // all of it, also where it was stopped
    std::function<void(const Error &)> error;
};

/// An image that keeps its bytes alive. Never changed once made, so that waiting questions can share it, and the
/// library can read it without a copy of its own.
struct TalkImage {
    std::shared_ptr<const void> owner; // of the bytes, in whatever form they came
    const void * data = nullptr;
    std::size_t size_bytes = 0;
    xlm_image_format format = XLM_IMAGE_ENCODED;
    std::uint32_t width = 0, height = 0; // of raw pixels, in rows without padding
    bool bottom_up = false;

    Image view() const {
        return Image::pixels(format, data, size_bytes, width, height, 0, bottom_up);
    }
};

/// How to answer. Owns its texts: a question may have to wait until the answer before it has stopped.
struct TalkOptions {
    SayOptions numbers; // its texts are ignored for the ones below
    std::string grammar, json_schema;
    std::vector<std::string> stop;
    std::vector<std::shared_ptr<const TalkImage>> images;
};

class Talker {
public:
    Talker(std::string persona, xlm_overflow overflow, TalkListener listener) : state_(std::make_shared<State>()) {
        state_->persona = std::move(persona);
        state_->overflow = overflow;
        state_->listener = std::move(listener);
    }
    ~Talker() { close(); }
    Talker(const Talker &) = delete;
    Talker & operator=(const Talker &) = delete;

    /// Says something; where an answer is under way, stops that and then says it, unless another say() came first.
    /// The number of this turn, from 1 on, also where the listener was told an error.
    std::uint64_t say(Client & client, std::string_view text, const TalkOptions & options = {}) {
        const std::shared_ptr<State> state = state_; // the listener may destroy this talker
        const std::uint64_t turn = ++state->turns;
        if (!state->talking()) {
            state->start(state, turn, client, text, options);
            return turn;
        }
        state->next = [weak = std::weak_ptr<State>(state), turn, &client, text = std::string(text), options] {
            if (const auto alive = weak.lock()) alive->start(alive, turn, client, text, options);
        };
        state->session.cancel();
        return turn;
    }

    /// Stops the answer under way; done() gets what was said.
    void stop() {
        state_->next = nullptr;
        if (state_->talking()) state_->session.cancel();
    }

    /// Ends the conversation. No listener is called from here on, until the next say().
    void close() { state_->close(); }

    bool talking() const { return state_->talking(); }

    /// The turn whose answer is under way, or was the last: that which the listener is told of.
    std::uint64_t turn() const { return state_->turn; }

private:
    struct State {
        std::string persona;
        xlm_overflow overflow = XLM_OVERFLOW_SHIFT;
        TalkListener listener;
        Session session;
        std::uint64_t answer = 0; // 0: none
        std::uint64_t turns = 0;
        std::uint64_t turn = 0;
        std::uint64_t life = 0; // counts closes: a listener may close, and talk again
        std::function<void()> next;
        Sentences sentences;

        bool talking() const { return answer != 0 && session; }

        void start(const std::shared_ptr<State> & self, std::uint64_t number, Client & client, std::string_view text,
                   const TalkOptions & options) {
            turn = number;
            if (!session && !open(self, client)) return tell(Error::last());
            auto said = say(text, options);
            answer = said ? *said : 0;
            if (!said) tell(said.error());
        }

        Expected<std::uint64_t> say(std::string_view text, const TalkOptions & options) {
            std::vector<xlm_str> stop;
            for (const std::string & one : options.stop)
                stop.push_back(xlm::lend(one));
            SayOptions lent = options.numbers;
            lent.grammar = xlm::lend(options.grammar);
            lent.json_schema = xlm::lend(options.json_schema);
            lent.stop = stop.data();
            lent.n_stop = static_cast<std::uint32_t>(stop.size());
            std::vector<Image> images;
            for (const auto & image : options.images)
                images.push_back(lend(image));
            lent.show(images.data(), images.size());
            auto said = session.say(text, lent);
            if (!said) // then nothing was taken
                for (const Image & image : images)
                    give_back(image.release_user_data, image.data);
            return said;
        }

        using Kept = std::shared_ptr<const TalkImage>;

        static Image lend(const Kept & image) { return image->view().lend(give_back, new Kept(image)); }
        static void give_back(void * kept, const void *) { delete static_cast<Kept *>(kept); }

        bool open(const std::shared_ptr<State> & self, Client & client) {
            close(); // a session of a client that is gone
            auto opened =
                client.open_session({persona, overflow}, [weak = std::weak_ptr<State>(self)](const Event & event) {
                    if (const auto alive = weak.lock()) alive->take(event);
                });
            if (!opened) return false;
            session = *std::move(opened);
            return true;
        }

        void tell(const Error & error) {
            if (listener.error) listener.error(error);
        }

        // What an event's strings point to lives until this returns, whatever a listener does.
        void take(const Event & event) {
            if (event.kind() == XLM_EVENT_SESSION_LOST) {
                const Session lost = std::move(session); // the next say() opens another
                if (answer != 0) end(event);
                return;
            }
            if (event.id() == 0 || event.id() != answer) return;
            if (event.kind() == XLM_EVENT_TOKENS) hear(event.text());
            if (event.kind() == XLM_EVENT_DONE || event.kind() == XLM_EVENT_FAILED) end(event);
        }

        void hear(std::string_view piece) {
            if (piece.empty()) return; // tokens whose characters are not whole yet
            const std::uint64_t now = life;
            if (listener.token) listener.token(piece);
            if (life != now) return;
            std::vector<std::string> complete;
            sentences.feed(piece, complete);
            tell_sentences(complete);
        }

        void end(const Event & event) {
            answer = 0;
            const std::uint64_t now = life;
            std::vector<std::string> rest;
            sentences.finish(rest);
            tell_sentences(rest);
            if (life != now) return;
            if (event.error() != nullptr)
                tell(Error(*event.error()));
            else if (listener.done)
                listener.done(event.text());
            if (life == now && !talking() && next) std::exchange(next, nullptr)();
        }

        void tell_sentences(const std::vector<std::string> & complete) {
            const std::uint64_t now = life;
            for (const std::string & sentence : complete)
                if (life == now && listener.sentence) listener.sentence(sentence);
        }

        void close() {
            life++;
            answer = 0;
            next = nullptr;
            sentences = Sentences();
            session = Session();
        }
    };

    std::shared_ptr<State> state_;
};

} // namespace xlm
