#include <charconv>
#include <cmath>
#include <cstdio>

#include <msgpack.hpp>

#include "codec.hpp"

namespace xlm::client {

namespace {

void append_escaped(std::pmr::string & out, std::string_view text) {
    out += '"';
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", byte);
            out += escape;
        } else {
            out += c;
        }
    }
    out += '"';
}

/// Writes while it is within the wanted value; commas come before every item but the first of its container.
class JsonWriter : public msgpack::null_visitor {
public:
    JsonWriter(std::string_view key, std::pmr::string & out) : key_(key), out_(out), on_(key.empty()) {}

    bool visit_nil() { return put("null"); }
    bool visit_boolean(bool value) { return put(value ? "true" : "false"); }
    bool visit_positive_integer(std::uint64_t value) { return number(value); }
    bool visit_negative_integer(std::int64_t value) { return number(value); }
    bool visit_float32(float value) { return visit_float64(value); }
    bool visit_float64(double value) {
        if (!std::isfinite(value)) return put("null");
        char digits[32];
        // 17 digits give back the same double; the C locale's point is not promised, so it is put right
        const int length = std::snprintf(digits, sizeof digits, "%.17g", value);
        for (char & c : digits)
            if (c == ',') c = '.';
        return put({digits, static_cast<std::size_t>(length)});
    }
    bool visit_str(const char * data, std::uint32_t size) {
        const std::string_view text(data, size);
        if (in_key_ && depth_ == 1 && !key_.empty()) wanted_ = text == key_;
        if (on_) append_escaped(out_, text);
        return true;
    }
    bool visit_bin(const char *, std::uint32_t) { return put("null"); }
    bool visit_ext(const char *, std::uint32_t) { return put("null"); }
    bool start_array(std::uint32_t) { return open('['); }
    bool start_array_item() { return item(); }
    bool end_array() { return close(']'); }
    bool start_map(std::uint32_t) { return open('{'); }
    bool start_map_key() {
        in_key_ = true;
        return item();
    }
    bool end_map_key() {
        in_key_ = false;
        if (depth_ == 1 && !key_.empty()) {
            on_ = wanted_;
            if (on_) out_.clear(); // a key that comes twice: the last one counts
        } else if (on_) {
            out_ += ':';
        }
        return true;
    }
    bool end_map_value() {
        if (depth_ == 1 && !key_.empty()) on_ = false;
        return true;
    }
    bool end_map() { return close('}'); }

private:
    bool put(std::string_view text) {
        if (on_) out_ += text;
        return true;
    }
    template <typename T>
    bool number(T value) {
        char digits[24];
        const auto end = std::to_chars(digits, digits + sizeof digits, value);
        return put({digits, static_cast<std::size_t>(end.ptr - digits)});
    }
    bool open(char bracket) {
        depth_++;
        return put({&bracket, 1});
    }
    bool close(char bracket) {
        depth_--;
        return put({&bracket, 1});
    }
    bool item() {
        if (on_ && !out_.empty() && out_.back() != '[' && out_.back() != '{') out_ += ',';
        return true;
    }

    std::string_view key_;
    std::pmr::string & out_;
    int depth_ = 0;
    bool on_;
    bool in_key_ = false;
    bool wanted_ = false;
};

} // namespace

void to_json(std::string_view frame, std::string_view key, std::pmr::string & out) {
    JsonWriter writer(key, out);
    std::size_t used = 0;
    msgpack::parse(frame.data(), frame.size(), used, writer);
}

} // namespace xlm::client
