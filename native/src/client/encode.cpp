#include "codec.hpp"

#include <msgpack.hpp>

namespace xlm::client {

namespace {

/// What msgpack writes to.
struct Sink {
    Frame & frame;
    void write(const char * bytes, std::size_t count) { frame.append(bytes, count); }
};

class Map {
public:
    Map(Frame & frame, std::string_view type, std::uint64_t id, std::uint32_t n_more) : sink_{frame}, packer_(sink_) {
        packer_.pack_map(2 + n_more);
        text("t", type);
        whole("id", id);
    }

    void text(std::string_view key, std::string_view value) {
        string(key);
        string(value);
    }
    void whole(std::string_view key, std::uint64_t value) {
        string(key);
        packer_.pack_uint64(value);
    }
    void real(std::string_view key, double value) {
        string(key);
        packer_.pack_double(value);
    }
    void nil(std::string_view key) {
        string(key);
        packer_.pack_nil();
    }
    void integer(std::string_view key, std::int64_t value) {
        string(key);
        packer_.pack_int64(value);
    }
    void flag(std::string_view key, bool value) {
        string(key);
        value ? packer_.pack_true() : packer_.pack_false();
    }
    void binary(std::string_view key, std::string_view bytes) {
        string(key);
        packer_.pack_bin(static_cast<std::uint32_t>(bytes.size()));
        packer_.pack_bin_body(bytes.data(), static_cast<std::uint32_t>(bytes.size()));
    }
    void map(std::string_view key, std::uint32_t count) {
        string(key);
        packer_.pack_map(count);
    }
    void array(std::string_view key, std::uint32_t count) {
        string(key);
        packer_.pack_array(count);
    }
    void string(std::string_view value) {
        packer_.pack_str(static_cast<std::uint32_t>(value.size()));
        packer_.pack_str_body(value.data(), static_cast<std::uint32_t>(value.size()));
    }
    void deadline(std::uint64_t deadline_ns) {
        if (deadline_ns == XLM_NO_DEADLINE)
            nil("deadline_ms");
        else
            real("deadline_ms", static_cast<double>(deadline_ns) / 1e6);
    }

private:
    Sink sink_;
    msgpack::packer<Sink> packer_;
};

void sampling(Map & map, const Command & command) {
    const xlm_say_options & say = command.say;
    map.map("sampling", 9);
    map.real("temperature", say.temperature);
    map.whole("top_k", say.top_k);
    map.real("top_p", say.top_p);
    map.real("min_p", say.min_p);
    map.real("repeat_penalty", say.repeat_penalty);
    map.whole("repeat_last_n", say.repeat_last_n);
    if (say.seed == XLM_RANDOM_SEED)
        map.nil("seed");
    else
        map.whole("seed", say.seed);
    map.text("grammar", command.grammar);
    map.text("json_schema", command.json_schema);
}

void stops(Map & map, const Command & command) {
    map.array("stop", command.say.n_stop);
    std::size_t at = 0;
    for (std::uint32_t i = 0; i < command.say.n_stop; i++) {
        map.string(std::string_view(command.stops).substr(at, command.stop_bytes[i]));
        at += command.stop_bytes[i];
    }
}

double mean_ms(std::uint64_t sum_ns, std::uint64_t count) {
    return count ? static_cast<double>(sum_ns) / static_cast<double>(count) / 1e6 : 0.0;
}

std::string_view pacing_name(xlm_pacing pacing) {
    return pacing == XLM_PACING_SHRINK ? "shrink" : pacing == XLM_PACING_STEPS ? "steps" : "off";
}

} // namespace

void encode_hello(Frame & frame, std::uint64_t id, const Identity & identity, std::string_view lease_id) {
    Map map(frame, "hello", id, 6);
    map.whole("version_min", protocol_version_min);
    map.whole("version_max", protocol_version_max);
    map.text("name", identity.name);
    map.integer("pid", identity.pid);
    map.text("sdk", identity.sdk);
    map.text("lease_id", lease_id);
}

void encode_plain(Frame & frame, std::uint64_t id, std::string_view type) {
    Map(frame, type, id, 0);
}

void encode_budget(Frame & frame, std::uint64_t id, std::uint64_t cap_bytes, std::uint64_t deadline_ns,
                   xlm_require require) {
    Map map(frame, "set_budget", id, 3);
    if (cap_bytes == XLM_NO_CAP)
        map.nil("cap_bytes");
    else
        map.whole("cap_bytes", cap_bytes);
    map.deadline(deadline_ns);
    map.text("require", require == XLM_REQUIRE_DEVICE ? "device" : "any");
}

void encode_reserve(Frame & frame, std::uint64_t id, std::uint64_t bytes, std::uint64_t deadline_ns) {
    Map map(frame, "reserve", id, 2);
    map.whole("bytes", bytes);
    map.deadline(deadline_ns);
}

void encode_open(Frame & frame, std::uint64_t id, std::string_view system, xlm_overflow overflow,
                 std::string_view resume) {
    Map map(frame, "open_session", id, 3);
    map.text("system", system);
    map.text("overflow", overflow == XLM_OVERFLOW_SHIFT ? "shift" : "error");
    map.text("resume", resume);
}

void encode_close(Frame & frame, std::uint64_t id, std::string_view session_id) {
    Map(frame, "close_session", id, 1).text("session_id", session_id);
}

void encode_say(Frame & frame, const Command & command, std::string_view session_id) {
    Map map(frame, "say", command.id, command.pictures.empty() ? 6 : 7);
    map.text("session_id", session_id);
    map.text("text", command.text);
    map.whole("max_tokens", command.say.max_tokens);
    sampling(map, command);
    stops(map, command);
    map.integer("priority", command.say.priority);
    if (command.pictures.empty()) return;
    map.array("images", static_cast<std::uint32_t>(command.pictures.size()));
    for (const Picture & picture : command.pictures)
        map.string(picture.key_view());
}

void encode_image_begin(Frame & frame, std::uint64_t id, const Picture & picture) {
    Map map(frame, "image_begin", id, 7);
    map.text("key", picture.key_view());
    map.whole("total_bytes", picture.size_bytes());
    map.text("encoding", encoding_name(picture.format));
    map.whole("width", picture.width);
    map.whole("height", picture.height);
    map.whole("stride", picture.stride());
    map.flag("bottom_up", picture.bottom_up);
}

void encode_image_chunk(Frame & frame, std::uint64_t id, std::string_view key, std::uint64_t offset,
                        std::string_view data) {
    Map map(frame, "image_chunk", id, 3);
    map.text("key", key);
    map.whole("offset", offset);
    map.binary("data", data);
}

void encode_image_end(Frame & frame, std::uint64_t id, std::string_view key) {
    Map(frame, "image_end", id, 1).text("key", key);
}

void encode_cancel(Frame & frame, std::uint64_t id, std::uint64_t say_id) {
    Map(frame, "cancel", id, 1).whole("say_id", say_id);
}

void encode_report(Frame & frame, std::uint64_t id, const FrameReport & report) {
    Map map(frame, "frame", id, 7);
    map.whole("frames", report.frames);
    map.real("mean_ms", mean_ms(report.frame_sum_ns, report.frames));
    map.real("max_ms", static_cast<double>(report.frame_max_ns) / 1e6);
    map.real("gpu_ms", mean_ms(report.gpu_sum_ns, report.frames));
    map.real("target_ms", static_cast<double>(report.target_ns) / 1e6);
    map.whole("over_target", report.over_target);
    map.text("pacing", pacing_name(report.pacing));
}

} // namespace xlm::client
