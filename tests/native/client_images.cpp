// Images in libxlm: copied, named, uploaded in the background, and what goes wrong with them.
#include <atomic>
#include <cstddef>
#include <cstring>
#include <thread>

#include "client/errors.hpp"
#include "client/picture.hpp"
#include "client/sha256.hpp"
#include "client_fixture.hpp"

using namespace xlm::test;
using xlm::client::Failed;
using xlm::client::Picture;
using xlm::client::Sha256;

namespace {

std::pmr::memory_resource * memory() {
    return std::pmr::get_default_resource();
}

std::string sha256(std::string_view text, std::size_t step = SIZE_MAX) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += step) {
        hash.add(text.substr(at, step));
        if (step == SIZE_MAX) break;
    }
    const auto hex = hash.hex();
    return {hex.data(), hex.size()};
}

xlm_image encoded(const std::string & bytes) {
    xlm_image image = XLM_IMAGE_INIT;
    image.data = bytes.data();
    image.size_bytes = bytes.size();
    return image;
}

xlm_image pixels(const std::string & bytes, xlm_image_format format, std::uint32_t width, std::uint32_t height,
                 std::size_t stride = 0) {
    xlm_image image = encoded(bytes);
    image.format = format;
    image.width = width;
    image.height = height;
    image.stride_bytes = stride;
    return image;
}

xlm_result copied(const xlm_image & image) {
    Picture out(memory());
    try {
        xlm::client::take_image(image, out);
    } catch (const Failed & error) {
        return error.failure.result;
    }
    return XLM_SUCCESS;
}

std::string hex(std::string_view bytes) {
    std::string out;
    for (const char c : bytes) {
        out += "0123456789abcdef"[static_cast<unsigned char>(c) >> 4];
        out += "0123456789abcdef"[static_cast<unsigned char>(c) & 15];
    }
    return out;
}

xlm_result say(xlm_session * session, const std::vector<xlm_image> & images, std::uint64_t * answer = nullptr) {
    xlm_say_options options = XLM_SAY_OPTIONS_INIT;
    options.images = images.data();
    options.n_images = static_cast<std::uint32_t>(images.size());
    return xlm_session_say(session, xlm_str_from("What do you see?"), &options, answer);
}

struct Talk { // a game in a conversation
    FakeBroker broker;
    Game game{broker.endpoint};
    xlm_session * npc = nullptr;

    Talk() {
        REQUIRE(game.ready());
        npc = game.open();
        REQUIRE(game.until(XLM_EVENT_SESSION_OPENED));
    }
};

} // namespace

TEST(sha256_of_the_standard) {
    CHECK_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
             "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    const std::string million(1'000'000, 'a');
    for (const std::size_t step : {std::size_t(1), std::size_t(63), std::size_t(64), std::size_t(65), SIZE_MAX})
        CHECK_EQ(sha256(million, step), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(what_is_no_image_is_refused_before_anything_is_copied) {
    const std::string bytes(64, 'x');
    CHECK_EQ(copied(encoded("")), XLM_ERROR_IMAGE_EMPTY);
    CHECK_EQ(copied(pixels(bytes, 77, 1, 1)), XLM_ERROR_IMAGE_UNSUPPORTED);
    CHECK_EQ(copied(pixels(bytes, XLM_IMAGE_RGBA8, 0, 1)), XLM_ERROR_IMAGE_EMPTY);
    CHECK_EQ(copied(pixels(bytes, XLM_IMAGE_RGBA8, 1, 0)), XLM_ERROR_IMAGE_EMPTY);
    CHECK_EQ(copied(pixels(bytes, XLM_IMAGE_RGBA8, 60'000, 1)), XLM_ERROR_IMAGE_TOO_LARGE);
    CHECK_EQ(copied(pixels(bytes, XLM_IMAGE_RGB8, UINT32_MAX, UINT32_MAX)), XLM_ERROR_IMAGE_TOO_LARGE);
    CHECK_EQ(copied(pixels(bytes, XLM_IMAGE_RGBA8, 16'384, 16'384)), XLM_ERROR_IMAGE_TOO_LARGE);
    CHECK_EQ(copied(pixels(bytes, XLM_IMAGE_RGBA8, 4, 5)), XLM_ERROR_INVALID_ARGUMENT);     // 80 bytes
    CHECK_EQ(copied(pixels(bytes, XLM_IMAGE_RGBA8, 4, 4, 15)), XLM_ERROR_INVALID_ARGUMENT); // a row has 16
    CHECK_EQ(copied(pixels(bytes, XLM_IMAGE_RGBA8, 4, 4, SIZE_MAX)), XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(copied(pixels(bytes, XLM_IMAGE_RGBA8, 4, 2, 40)), XLM_SUCCESS); // the last row needs no padding
    xlm_image image = encoded(bytes);
    image.width = 3;
    CHECK_EQ(copied(image), XLM_ERROR_INVALID_ARGUMENT);
    image = encoded(bytes);
    image.data = nullptr;
    CHECK_EQ(copied(image), XLM_ERROR_INVALID_ARGUMENT);
}

TEST(rows_lose_their_padding) {
    const std::string bytes = "abcdefgh????ijklmnop";
    Picture out(memory());
    xlm::client::take_image(pixels(bytes, XLM_IMAGE_BGRX8, 2, 2, 12), out);
    CHECK_EQ(std::string(out.copy), "abcdefghijklmnop");
    CHECK_EQ(out.stride(), 8u);
}

TEST(images_reach_the_broker_under_the_name_it_computes_too) {
    Talk talk;
    const std::string file = "a file", frame = "RGBARGBARGBARGBA";
    xlm_image flipped = pixels(frame, XLM_IMAGE_RGBX8, 2, 2);
    flipped.bottom_up = 1;
    REQUIRE(say(talk.npc, {encoded(file), flipped, encoded(file)}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE));
    CHECK_EQ(talk.game.of(XLM_EVENT_DONE)[0].text, "Greetings, traveller.");
    CHECK_EQ(talk.broker("images"), hex(file) + " " + hex(frame) + " " + hex(file));
    const std::string begin = talk.broker("last\tImageBegin");
    CHECK(talk.broker("last\tSay").find("images=[") != std::string::npos);
    CHECK_EQ(talk.broker("chunks"), "2 16");
}

TEST(a_frame_goes_in_chunks_while_the_game_polls_and_once) {
    Talk talk;
    std::string frame(std::size_t(1280) * 720 * 4, '\0');
    for (std::size_t i = 0; i < frame.size(); i++)
        frame[i] = static_cast<char>(i * 2654435761u >> 13);
    const xlm_image image = pixels(frame, XLM_IMAGE_BGRX8, 1280, 720);
    REQUIRE(say(talk.npc, {image}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE, 1));
    CHECK_EQ(talk.broker("chunks"), "15 262144");
    REQUIRE(say(talk.npc, {image}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE, 2));
    CHECK_EQ(talk.broker("chunks"), "15 262144"); // the broker has it
    talk.broker("forget");
    REQUIRE(say(talk.npc, {image}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE, 3));
    CHECK_EQ(talk.broker("chunks"), "30 262144");
}

TEST(the_callers_bytes_may_change_after_the_call) {
    Talk talk;
    std::string bytes(1 << 20, 'a');
    REQUIRE(say(talk.npc, {encoded(bytes)}) == XLM_SUCCESS);
    std::fill(bytes.begin(), bytes.end(), 'b');
    REQUIRE(talk.game.until(XLM_EVENT_DONE));
    CHECK_EQ(talk.broker("images").substr(0, 4), "6161");
}

TEST(wrong_arguments_leave_the_session_free) {
    Talk talk;
    CHECK_EQ(say(talk.npc, {encoded("")}), XLM_ERROR_IMAGE_EMPTY);
    CHECK_EQ(say(talk.npc, std::vector<xlm_image>(65, encoded("x"))), XLM_ERROR_TOO_MANY_IMAGES);
    xlm_say_options options = XLM_SAY_OPTIONS_INIT;
    options.n_images = 1;
    CHECK_EQ(xlm_session_say(talk.npc, xlm_str_from("?"), &options, nullptr), XLM_ERROR_INVALID_ARGUMENT);
    xlm_image unset;
    std::memset(&unset, 0, sizeof unset);
    options.images = &unset;
    CHECK_EQ(xlm_session_say(talk.npc, xlm_str_from("?"), &options, nullptr), XLM_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(say(talk.npc, {encoded("x")}), XLM_SUCCESS);
    CHECK(talk.game.until(XLM_EVENT_DONE));
}

TEST(a_game_of_before_images_says_what_it_always_said) {
    Talk talk;
    xlm_say_options options = XLM_SAY_OPTIONS_INIT;
    options.struct_size = offsetof(xlm_say_options, images);
    options.images = reinterpret_cast<const xlm_image *>(8); // bytes behind its struct
    options.n_images = 3;
    CHECK_EQ(xlm_session_say(talk.npc, xlm_str_from("?"), &options, nullptr), XLM_SUCCESS);
    CHECK(talk.game.until(XLM_EVENT_DONE));
}

TEST(images_of_a_later_version_are_longer) {
    struct Later {
        xlm_image image;
        char more[24];
    };
    Talk talk;
    const std::string one = "one", two = "two";
    Later images[2] = {};
    images[0].image = encoded(one);
    images[1].image = encoded(two);
    for (Later & later : images)
        later.image.struct_size = sizeof(Later);
    xlm_say_options options = XLM_SAY_OPTIONS_INIT;
    options.images = &images[0].image;
    options.n_images = 2;
    REQUIRE(xlm_session_say(talk.npc, xlm_str_from("?"), &options, nullptr) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE));
    CHECK_EQ(talk.broker("images"), hex(one) + " " + hex(two));
}

TEST(a_refusal_at_any_step_fails_the_answer_alone) {
    Talk talk;
    std::size_t failed = 0, done = 0;
    for (const char * step : {"image_begin", "image_chunk", "image_end", "say"}) {
        talk.broker("fail\t" + std::string(step) + "\timage_store_full");
        REQUIRE(say(talk.npc, {encoded("one"), encoded("two")}) == XLM_SUCCESS);
        REQUIRE(talk.game.until(XLM_EVENT_FAILED, ++failed));
        CHECK_EQ(talk.game.of(XLM_EVENT_FAILED).back().result, XLM_ERROR_IMAGE_STORE_FULL);
        REQUIRE(say(talk.npc, {encoded("three")}) == XLM_SUCCESS);
        REQUIRE(talk.game.until(XLM_EVENT_DONE, ++done));
        talk.broker("forget");
    }
}

TEST(an_old_broker_takes_no_images) {
    Talk talk;
    talk.broker("fail\timage_begin\tunknown_type");
    REQUIRE(say(talk.npc, {encoded("x")}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_FAILED));
    CHECK_EQ(talk.game.of(XLM_EVENT_FAILED)[0].result, XLM_ERROR_VISION_UNAVAILABLE);
}

TEST(an_upload_dropped_for_room_is_tried_again) {
    Talk talk;
    talk.broker("fail\timage_chunk\timage_unknown");
    talk.broker("fail\timage_end\timage_upload_invalid");
    REQUIRE(say(talk.npc, {encoded("x")}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE));
    CHECK_EQ(talk.broker("images"), hex("x"));
    for (int i = 0; i < 3; i++)
        talk.broker("fail\timage_begin\timage_unknown");
    REQUIRE(say(talk.npc, {encoded("y")}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_FAILED));
    CHECK_EQ(talk.game.of(XLM_EVENT_FAILED)[0].result, XLM_ERROR_IMAGE_UNKNOWN);
}

TEST(cancelled_closed_or_cut_off_while_an_image_is_under_way) {
    Talk talk;
    const std::string bytes(8 << 20, 'x');
    talk.broker("freeze");
    std::uint64_t answer = 0;
    REQUIRE(say(talk.npc, {encoded(bytes)}, &answer) == XLM_SUCCESS);
    CHECK_EQ(say(talk.npc, {encoded("y")}), XLM_ERROR_SESSION_BUSY);
    REQUIRE(xlm_session_cancel(talk.npc, answer) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE));
    CHECK_EQ(talk.game.of(XLM_EVENT_DONE)[0].finish_reason, XLM_FINISH_CANCELLED);
    xlm_session * other = talk.game.open();
    REQUIRE(say(other, {encoded(bytes)}) == XLM_SUCCESS);
    REQUIRE(xlm_session_close(other) == XLM_SUCCESS);
    REQUIRE(say(talk.npc, {encoded(bytes)}) == XLM_SUCCESS);
    talk.broker("kill");
    REQUIRE(talk.game.until(XLM_EVENT_FAILED));
    CHECK_EQ(talk.game.of(XLM_EVENT_FAILED)[0].result, XLM_ERROR_BROKER_GONE);
    talk.broker("thaw");
    talk.broker("restart");
    REQUIRE(talk.game.in_state(XLM_CLIENT_READY));
    REQUIRE(say(talk.npc, {encoded("z")}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE, 2));
}

TEST(a_client_is_destroyed_with_images_under_way) {
    Talk talk;
    const std::string bytes(4 << 20, 'x');
    REQUIRE(say(talk.npc, {encoded(bytes), encoded("y")}) == XLM_SUCCESS);
    REQUIRE(say(talk.game.open(), {encoded(bytes)}) == XLM_SUCCESS);
}

// -- lent: the library reads the game's own bytes, and gives them back ------------------------------------------------

namespace {

/// Bytes that know how often they were given back.
struct Lent {
    std::string bytes;
    int returned = 0;

    xlm_image image() {
        xlm_image image = encoded(bytes);
        image.release = [](void * self, const void * data) {
            auto & lent = *static_cast<Lent *>(self);
            lent.returned += data == lent.bytes.data();
        };
        image.release_user_data = this;
        return image;
    }
};

} // namespace

TEST(lent_bytes_arrive_and_are_given_back_once) {
    Talk talk;
    Lent one{"one"}, two{"two"};
    REQUIRE(say(talk.npc, {one.image(), encoded("copied"), two.image()}) == XLM_SUCCESS);
    REQUIRE(talk.game.until([&] { return one.returned && two.returned; }));
    REQUIRE(talk.game.until(XLM_EVENT_DONE));
    CHECK_EQ(talk.broker("images"), hex("one") + " " + hex("copied") + " " + hex("two"));
    CHECK_EQ(one.returned + two.returned, 2);
    CHECK(talk.game.of(XLM_EVENT_IMAGES_RELEASED).empty());
}

TEST(rows_with_padding_are_sent_without_it_though_nothing_was_copied) {
    Talk talk;
    constexpr std::uint32_t width = 300, height = 500; // rows of 1200 of 1300 bytes, 600 KB in all: three chunks
    constexpr std::size_t stride = 1300;
    std::string frame(stride * height, '?'), plain;
    for (std::uint32_t y = 0; y < height; y++)
        for (std::size_t x = 0; x < std::size_t(4) * width; x++)
            plain += frame[y * stride + x] = static_cast<char>((y * 131 + x) * 2654435761u >> 11);
    xlm_image image = pixels(frame, XLM_IMAGE_BGRX8, width, height, stride);
    image.lent = 1;
    REQUIRE(say(talk.npc, {image}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE));
    CHECK_EQ(talk.broker("images"), hex(plain));
    CHECK_EQ(talk.broker("chunks"), "3 262144");
    REQUIRE(say(talk.npc, {pixels(plain, XLM_IMAGE_BGRX8, width, height)}) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_DONE, 2));
    CHECK_EQ(talk.broker("chunks"), "3 262144"); // the same name
}

TEST(without_a_release_an_event_tells) {
    Talk talk;
    const std::string bytes = "lent";
    xlm_image image = encoded(bytes);
    image.lent = 1;
    std::uint64_t answer = 0;
    REQUIRE(say(talk.npc, {image, image}, &answer) == XLM_SUCCESS);
    REQUIRE(talk.game.until(XLM_EVENT_IMAGES_RELEASED));
    REQUIRE(talk.game.until(XLM_EVENT_DONE));
    REQUIRE(talk.game.of(XLM_EVENT_IMAGES_RELEASED).size() == 1);
    CHECK_EQ(talk.game.of(XLM_EVENT_IMAGES_RELEASED)[0].id, answer);
    CHECK(talk.game.of(XLM_EVENT_IMAGES_RELEASED)[0].session == nullptr);
    REQUIRE(say(talk.npc, {image}, &answer) == XLM_SUCCESS); // and to who takes events one by one
    xlm_event event = XLM_EVENT_INIT;
    do {
        REQUIRE(xlm_client_event_wait(talk.game.client, long_ns) == XLM_SUCCESS);
    } while (xlm_client_next_event(talk.game.client, &event) != 1 || event.kind != XLM_EVENT_IMAGES_RELEASED);
    CHECK_EQ(event.id, answer);
}

TEST(a_call_that_fails_takes_nothing) {
    Talk talk;
    Lent lent{"lent"};
    CHECK_EQ(say(talk.npc, {lent.image(), encoded("")}), XLM_ERROR_IMAGE_EMPTY);
    talk.broker("freeze");
    REQUIRE(say(talk.npc, {encoded("x")}) == XLM_SUCCESS);
    CHECK_EQ(say(talk.npc, {lent.image()}), XLM_ERROR_SESSION_BUSY);
    talk.broker("thaw");
    REQUIRE(talk.game.until(XLM_EVENT_DONE));
    CHECK_EQ(lent.returned, 0);
}

TEST(lent_bytes_come_back_whatever_becomes_of_the_answer) {
    Talk talk;
    Lent cancelled{std::string(1 << 20, 'a')}, closed{"b"}, refused{"c"}, cut_off{"d"};
    talk.broker("freeze");
    REQUIRE(say(talk.npc, {cancelled.image()}) == XLM_SUCCESS);
    REQUIRE(xlm_session_cancel(talk.npc, 0) == XLM_SUCCESS);
    REQUIRE(talk.game.until([&] { return cancelled.returned; }));
    xlm_session * other = talk.game.open();
    REQUIRE(say(other, {closed.image()}) == XLM_SUCCESS);
    REQUIRE(xlm_session_close(other) == XLM_SUCCESS);
    REQUIRE(talk.game.until([&] { return closed.returned; }));
    talk.broker("thaw");
    talk.broker("fail\timage_end\timage_corrupt"); // which the two above have not come to
    REQUIRE(say(talk.npc, {refused.image()}) == XLM_SUCCESS);
    REQUIRE(talk.game.until([&] { return refused.returned; }));
    REQUIRE(talk.game.until(XLM_EVENT_FAILED));
    talk.broker("freeze");
    REQUIRE(say(talk.npc, {cut_off.image()}) == XLM_SUCCESS);
    talk.broker("kill");
    REQUIRE(talk.game.until([&] { return cut_off.returned; }));
    for (const Lent * one : {&cancelled, &closed, &refused, &cut_off})
        CHECK_EQ(one->returned, 1);
}

TEST(a_client_that_ends_gives_back_what_it_was_lent) {
    Lent first{std::string(4 << 20, 'x')}, second{"y"}, waiting{"z"};
    {
        Talk talk;
        talk.broker("freeze");
        REQUIRE(say(talk.npc, {first.image(), second.image()}) == XLM_SUCCESS);
        REQUIRE(say(talk.game.open(), {waiting.image()}) == XLM_SUCCESS); // its session is not open yet
        CHECK_EQ(first.returned + second.returned + waiting.returned, 0);
    }
    CHECK_EQ(first.returned, 1);
    CHECK_EQ(second.returned, 1);
    CHECK_EQ(waiting.returned, 1);
}

TEST(many_sessions_from_many_threads) {
    Talk talk;
    constexpr int n_threads = 4, n_each = 10;
    std::vector<xlm_session *> sessions;
    for (int i = 0; i < n_threads * n_each; i++)
        sessions.push_back(talk.game.open());
    REQUIRE(talk.game.until(XLM_EVENT_SESSION_OPENED, 1 + sessions.size()));
    std::vector<std::thread> threads;
    std::atomic<int> refused{0};
    std::vector<Lent> lent(sessions.size());
    for (int t = 0; t < n_threads; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < n_each; i++) {
                Lent & one = lent[t * n_each + i];
                one.bytes.assign(1000 + 300'000u * (i % 2), static_cast<char>('a' + t * n_each + i));
                xlm_image image = i % 3 ? one.image() : encoded(one.bytes);
                image.lent = i % 3 == 2;
                refused += say(sessions[t * n_each + i], {image, encoded("the same")}) != XLM_SUCCESS;
            }
        });
    for (std::thread & thread : threads)
        thread.join();
    CHECK_EQ(refused.load(), 0);
    CHECK(talk.game.until(XLM_EVENT_DONE, sessions.size()));
    CHECK(talk.game.of(XLM_EVENT_FAILED).empty());
    for (int i = 0; i < n_threads * n_each; i++)
        CHECK_EQ(lent[i].returned, i % n_each % 3 ? 1 : 0);
}

XLM_TEST_MAIN
