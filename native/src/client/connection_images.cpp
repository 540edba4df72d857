// Images of answers to come: hashed in slices, uploaded in chunks, one after the other. The shape is that of
// sdk/xlm/_uploads.py; here an answer's images are uploaded before the next answer's turn comes.
#include <algorithm>
#include <utility>

#include "connection.hpp"

namespace xlm::client {

namespace {

constexpr std::size_t hash_slice_bytes = std::size_t(256) * 1024; // under a millisecond
constexpr std::uint32_t max_attempts = 3; // of one image: the broker may drop an unfinished one to make room

bool may_come_right(const Failure & why) {
    return why.result == XLM_ERROR_IMAGE_UNKNOWN || why.result == XLM_ERROR_IMAGE_UPLOAD_INVALID;
}

} // namespace

void Connection::upload_images(Command & command) {
    uploading_.push_back(&command);
    if (uploading_.size() == 1) begin_picture(0);
}

/// The next image of the answer whose turn it is, from the beginning. Does not allocate.
void Connection::begin_picture(std::uint32_t at) {
    upload_ = {};
    upload_.at = at;
    upload_.number = ++n_uploads_;
    add_key_header(picture(), upload_.hash);
}

Picture & Connection::picture() {
    return uploading_.front()->pictures[upload_.at];
}

bool Connection::has_work() const {
    return !uploading_.empty() && !upload_.begun;
}

void Connection::work() {
    if (!has_work()) return;
    Picture & image = picture();
    const std::size_t end = std::min(image.size_bytes(), upload_.hashed + hash_slice_bytes);
    while (upload_.hashed < end) {
        const std::string_view piece = image.piece(upload_.hashed, end - upload_.hashed);
        upload_.hash.add(piece);
        upload_.hashed += piece.size();
    }
    if (upload_.hashed < image.size_bytes()) return;
    image.key = upload_.hash.hex();
    ask_to_begin();
}

void Connection::ask_to_begin() {
    upload_.begun = true;
    const std::uint64_t id = expect_image();
    send([&](Frame & frame) { encode_image_begin(frame, id, picture()); });
}

std::uint64_t Connection::expect_image() {
    const std::uint64_t id = fresh_id();
    expect(id, CommandKind::image, nullptr).upload = upload_.number;
    return id;
}

void Connection::send_chunks() {
    const std::size_t size_bytes = picture().size_bytes();
    while (upload_.unanswered < image_window && upload_.sent < size_bytes) {
        const std::string_view chunk = next_chunk();
        const std::uint64_t id = expect_image();
        send([&](Frame & frame) { encode_image_chunk(frame, id, picture().key_view(), upload_.sent, chunk); });
        upload_.sent += chunk.size();
        upload_.unanswered++;
    }
    if (upload_.sent < size_bytes || std::exchange(upload_.ended, true)) return;
    const std::uint64_t id = expect_image();
    send([&](Frame & frame) { encode_image_end(frame, id, picture().key_view()); });
}

/// In place where the bytes lie together, else gathered row by row.
std::string_view Connection::next_chunk() {
    const std::size_t end = std::min(picture().size_bytes(), upload_.sent + image_chunk_bytes);
    const std::string_view first = picture().piece(upload_.sent, end - upload_.sent);
    if (first.size() == end - upload_.sent) return first;
    chunk_ = first;
    while (upload_.sent + chunk_.size() < end) {
        const std::size_t at = upload_.sent + chunk_.size();
        chunk_ += picture().piece(at, end - at);
    }
    return chunk_;
}

void Connection::image_answered(const Call & call, const Reply & reply) {
    if (uploading_.empty() || call.upload != upload_.number) return; // of an attempt that was given up
    if (reply.ready) return picture_ready();
    if (upload_.told && upload_.unanswered > 0) upload_.unanswered--;
    upload_.told = true;
    send_chunks();
}

void Connection::picture_ready() {
    Command & command = *uploading_.front();
    picture().copy.clear();
    picture().copy.shrink_to_fit();
    if (upload_.at + 1 < command.pictures.size()) return begin_picture(upload_.at + 1);
    uploading_.pop_front();
    if (!uploading_.empty()) begin_picture(0);
    if (Conversation * conversation = find(command.session))
        send_say(command, *conversation);
    else
        shell_.recycle(command);
}

void Connection::image_failed(const Call & call, const Failure & why) {
    if (uploading_.empty() || call.upload != upload_.number) return;
    if (may_come_right(why) && upload_.attempts < max_attempts) {
        const Upload before = upload_;
        upload_ = {};
        upload_.at = before.at;
        upload_.attempts = before.attempts + 1;
        upload_.number = ++n_uploads_;
        return ask_to_begin(); // the key is known
    }
    Command & command = *uploading_.front();
    drop_upload(command);
    const bool old_broker = why.result == XLM_ERROR_UNKNOWN_TYPE;
    refuse_say(command, old_broker ? Failure(XLM_ERROR_VISION_UNAVAILABLE, "this broker takes no images") : why);
}

/// The answer waits no more; its command is the caller's.
void Connection::drop_upload(Command & command) {
    const bool was_first = !uploading_.empty() && uploading_.front() == &command;
    uploading_.erase(std::remove(uploading_.begin(), uploading_.end(), &command), uploading_.end());
    if (was_first && !uploading_.empty()) begin_picture(0);
    if (uploading_.empty()) upload_ = {};
}

Command * Connection::uploading_for(const xlm_session * session) {
    const auto found = std::find_if(uploading_.begin(), uploading_.end(),
                                    [&](const Command * one) { return one->session == session; });
    return found == uploading_.end() ? nullptr : *found;
}

void Connection::fail_uploads(const Failure & why) {
    while (!uploading_.empty()) {
        Command & command = *uploading_.front();
        uploading_.pop_front();
        refuse_say(command, why);
    }
    upload_ = {};
}

} // namespace xlm::client
