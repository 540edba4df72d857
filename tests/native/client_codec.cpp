// Frames to replies and back, and whatever else may come over a wire.
#include <random>

#include <msgpack.hpp>

#include "check.hpp"
#include "client/codec.hpp"

using namespace xlm::client;

namespace {

std::pmr::memory_resource * memory() {
    return std::pmr::get_default_resource();
}

/// A message built by hand: pack("t", "lease", "id", 3, ...) gives a map.
struct Builder {
    msgpack::sbuffer buffer;
    msgpack::packer<msgpack::sbuffer> packer{buffer};

    explicit Builder(std::uint32_t n_keys) { packer.pack_map(n_keys); }
    template <typename T>
    Builder & add(const char * key, const T & value) {
        packer.pack(std::string(key));
        packer.pack(value);
        return *this;
    }
    Builder & key(const char * key) {
        packer.pack(std::string(key));
        return *this;
    }
    std::string_view view() const { return {buffer.data(), buffer.size()}; }
};

xlm_result code_of(std::string_view frame) {
    Reply reply(memory());
    return decode(frame, reply).result;
}

std::string json_of(std::string_view frame, std::string_view key = "") {
    std::pmr::string out;
    to_json(frame, key, out);
    return std::string(out);
}

} // namespace

TEST(a_lease_with_everything) {
    Builder frame(9);
    frame.add("t", std::string("lease")).add("id", 7).add("granted_bytes", std::uint64_t(1) << 40);
    frame.add("used_bytes", 2).add("device_used_bytes", 3).add("cap_bytes", 4).add("release_ms", 1.5);
    frame.add("deadline_met", false).add("a_later_key", std::string("ignored"));
    Reply reply(memory());
    const Failure failure = decode(frame.view(), reply);
    CHECK_EQ(failure.message_view(), "");
    CHECK(reply.type == ReplyType::lease);
    CHECK_EQ(reply.id, 7u);
    CHECK_EQ(reply.granted_bytes, std::int64_t(1) << 40);
    CHECK_EQ(reply.cap_bytes, 4);
    CHECK_EQ(reply.release_ms, 1.5);
    CHECK(!reply.deadline_met);
}

TEST(an_integer_may_stand_for_a_float_and_nil_for_none) {
    Builder frame(6);
    frame.add("t", std::string("lease")).add("granted_bytes", 1).add("used_bytes", 2).add("device_used_bytes", 3);
    frame.add("release_ms", 5);
    frame.key("cap_bytes").packer.pack_nil();
    Reply reply(memory());
    CHECK(!decode(frame.view(), reply));
    CHECK_EQ(reply.release_ms, 5.0);
    CHECK_EQ(reply.cap_bytes, -1);
}

TEST(tokens_with_their_ids) {
    Builder frame(5);
    frame.add("t", std::string("tokens")).add("id", 9).add("seq", 3).add("text", std::string("🔨"));
    frame.add("token_ids", std::vector<int>{1, 70'000});
    Reply reply(memory());
    REQUIRE(!decode(frame.view(), reply));
    CHECK_EQ(reply.text, "🔨");
    CHECK_EQ(reply.token_ids.size(), 2u);
    CHECK_EQ(reply.token_ids[1], 70'000);
}

TEST(the_type_may_come_last_and_the_last_of_two_keys_counts) {
    Builder frame(5);
    frame.add("seq", 1).add("text", std::string("a")).add("text", std::string("b")).add("id", 5);
    frame.add("t", std::string("tokens"));
    Reply reply(memory());
    REQUIRE(!decode(frame.view(), reply));
    CHECK_EQ(reply.text, "b");
}

TEST(nested_maps_reach_their_fields) {
    Builder frame(4);
    frame.add("t", std::string("status")).add("id", 2);
    frame.key("device").packer.pack_map(3);
    frame.add("kind", std::string("sim")).add("total_bytes", 77).add("lost", true);
    frame.key("engine").packer.pack_map(2);
    frame.add("state", 5); // a type nobody expects: left out, for maps meant for people
    frame.key("model").packer.pack_map(1);
    frame.add("name", std::string("SmolLM2"));
    Reply reply(memory());
    const Failure failure = decode(frame.view(), reply);
    CHECK_EQ(failure.message_view(), "");
    CHECK_EQ(reply.device_kind, "sim");
    CHECK_EQ(reply.device_total_bytes, 77);
    CHECK(reply.device_lost);
    CHECK_EQ(reply.model_name, "SmolLM2");
    CHECK_EQ(reply.engine_state, "");
    CHECK_EQ(json_of(frame.view()), "{\"t\":\"status\",\"id\":2,\"device\":{\"kind\":\"sim\",\"total_bytes\":77,"
                                    "\"lost\":true},\"engine\":{\"state\":5,\"model\":{\"name\":\"SmolLM2\"}}}");
}

TEST(json_of_one_key) {
    Builder frame(3);
    frame.add("t", std::string("notice")).add("kind", std::string("degraded"));
    frame.key("detail").packer.pack_map(3);
    frame.add("say", std::string("\"a\\b\"\n\x01")).add("list", std::vector<double>{0.5, -3});
    frame.key("none").packer.pack_nil();
    CHECK_EQ(json_of(frame.view(), "detail"),
             "{\"say\":\"\\\"a\\\\b\\\"\\u000a\\u0001\",\"list\":[0.5,-3],\"none\":null}");
    CHECK_EQ(json_of(frame.view(), "absent"), "");
}

TEST(refusals_name_what_is_wrong) {
    CHECK_EQ(code_of(""), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of("\xC1"), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of("\x01"), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of("\x80"), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of(Builder(1).add("t", std::string("nope")).view()), XLM_ERROR_UNKNOWN_TYPE);
    CHECK_EQ(code_of(Builder(1).add("t", std::string("tokens")).view()), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of(Builder(1).add("t", 3).view()), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of(Builder(2).add("t", std::string("ok")).add("id", -1).view()), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of(Builder(2).add("t", std::string("ok")).add("id", UINT64_MAX).view()), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of(Builder(2).add("t", std::string("ok")).add("x", std::string("\xFF")).view()),
             XLM_ERROR_BAD_REQUEST);
    const std::string trailing = std::string(Builder(1).add("t", std::string("ok")).view()) + "\x01";
    CHECK_EQ(code_of(trailing), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of(std::string(max_frame_bytes + 1, '\0')), XLM_ERROR_FRAME_TOO_LARGE);
}

TEST(wrong_types_are_refused) {
    const auto tokens = [](auto seq, auto text) {
        Builder frame(3);
        frame.add("t", std::string("tokens")).add("seq", seq).add("text", text);
        return code_of(frame.view());
    };
    CHECK_EQ(tokens(1, std::string("a")), XLM_SUCCESS);
    CHECK_EQ(tokens(1.5, std::string("a")), XLM_ERROR_BAD_REQUEST); // never a float for an integer
    CHECK_EQ(tokens(1, 2), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(tokens(1, std::vector<int>{}), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(tokens(1, std::map<std::string, int>{{"a", 1}}), XLM_ERROR_BAD_REQUEST);
    Builder ids(4);
    ids.add("t", std::string("tokens"))
        .add("seq", 0)
        .add("text", std::string(""))
        .add("token_ids", std::vector<int>{-1});
    CHECK_EQ(code_of(ids.view()), XLM_ERROR_BAD_REQUEST);
    Builder nan(5);
    nan.add("t", std::string("welcome")).add("version", 1).add("lease_id", std::string("x"));
    nan.add("heartbeat_ms", std::numeric_limits<double>::quiet_NaN()).add("ttl_ms", 1.0);
    CHECK_EQ(code_of(nan.view()), XLM_ERROR_BAD_REQUEST);
}

TEST(a_failed_frame_still_tells_its_id) {
    Reply reply(memory());
    CHECK(decode(Builder(2).add("t", std::string("done")).add("id", 42).view(), reply));
    CHECK_EQ(reply.id, 42u);
}

TEST(deep_nesting_and_boasting_lengths_cost_nothing) {
    std::string deep = "\x82\xA1t\xA2ok\xA1x";
    deep.append(100'000, '\x91');
    deep += '\0';
    CHECK_EQ(code_of(deep), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of(std::string("\xDF\xFF\xFF\xFF\xFF", 5)), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of(std::string("\x81\xA1x\xDD\xFF\xFF\xFF\xFF", 8)), XLM_ERROR_BAD_REQUEST);
    CHECK_EQ(code_of(std::string("\x81\xA1x\xDB\xFF\xFF\xFF\xFF", 8)), XLM_ERROR_BAD_REQUEST);
}

TEST(every_cut_and_every_flipped_byte_is_survived) {
    Builder frame(5);
    frame.add("t", std::string("tokens")).add("id", 9).add("seq", 3).add("text", std::string("鍛冶屋"));
    frame.add("token_ids", std::vector<int>{1, 2, 3});
    const std::string whole(frame.view());
    for (std::size_t length = 0; length < whole.size(); length++)
        CHECK_EQ(code_of(whole.substr(0, length)), XLM_ERROR_BAD_REQUEST);
    std::mt19937 random(1);
    for (int i = 0; i < 20'000; i++) {
        std::string broken = whole;
        broken[random() % broken.size()] = static_cast<char>(random());
        Reply reply(memory());
        if (!decode(broken, reply)) json_of(broken);
    }
}

TEST(requests_are_what_was_asked) {
    Frame frame;
    Command command(0, memory());
    command.id = 11;
    command.text = "Hello";
    command.stops = "ENDstop";
    command.say.n_stop = 2;
    command.stop_bytes = {3, 4};
    encode_say(frame, command, "s-1");
    const std::string json = json_of(frame);
    for (const char * part : {"\"t\":\"say\"", "\"id\":11", "\"session_id\":\"s-1\"", "\"text\":\"Hello\"",
                              "\"stop\":[\"END\",\"stop\"]", "\"seed\":null", "\"max_tokens\":256"})
        CHECK(json.find(part) != std::string::npos);
    frame.clear();
    encode_budget(frame, 5, XLM_NO_CAP, 16'500'000, XLM_REQUIRE_DEVICE);
    CHECK_EQ(json_of(frame), "{\"t\":\"set_budget\",\"id\":5,\"cap_bytes\":null,\"deadline_ms\":16.5,"
                             "\"require\":\"device\"}");
    frame.clear();
    FrameReport report;
    report.frames = 4;
    report.frame_sum_ns = 80'000'000;
    report.frame_max_ns = 50'000'000;
    report.target_ns = 16'000'000;
    report.over_target = 1;
    report.pacing = XLM_PACING_SHRINK;
    encode_report(frame, 6, report);
    CHECK_EQ(json_of(frame), "{\"t\":\"frame\",\"id\":6,\"frames\":4,\"mean_ms\":20,\"max_ms\":50,\"gpu_ms\":0,"
                             "\"target_ms\":16,\"over_target\":1,\"pacing\":\"shrink\"}");
}

XLM_TEST_MAIN
