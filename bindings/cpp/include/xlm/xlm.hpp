// xlm.hpp - xlm.h for C++17: handles that close themselves, string_view, no exceptions of its own.
//
//     auto client = xlm::Client::create({"tavern"});
//     if (!client) return report(client.error());
//     auto greta = client->open_session({"You are Greta, a blacksmith."}, [](const xlm::Event & event) { ... });
//     greta->say("Can you repair my sword?");
//     client->poll();                                      // once a frame: handlers run in here, nowhere else
//
// Header-only; link libxlm. What xlm.h says of threads, blocking and strings holds here too.
// Handlers may close and destroy their own Session. A Client must not be destroyed within a handler.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <xlm/xlm.h>

namespace xlm {

inline xlm_str lend(std::string_view text) noexcept {
    return {text.data(), text.size()};
}
inline std::string_view view(xlm_str text) noexcept {
    return text.len ? std::string_view(text.data, text.len) : std::string_view();
}

/// An error that keeps its words: code, whose fault, whether a retry can help, and what to do.
struct Error {
    xlm_result result = XLM_SUCCESS;
    xlm_fault fault = XLM_FAULT_NONE;
    bool retryable = false;
    std::string name, message, hint;
    std::uint64_t minimum_bytes = 0;

    Error() = default;
    explicit Error(const xlm_error & error)
        : result(error.result), fault(error.fault), retryable(error.retryable != 0), name(view(error.name)),
          message(view(error.message)), hint(view(error.hint)), minimum_bytes(error.minimum_bytes) {}

    /// Of this thread's last call that failed.
    static Error last() {
        xlm_error error = XLM_ERROR_INIT;
        xlm_last_error(&error);
        return Error(error);
    }
};

/// A value, or why there is none. Like std::expected of C++23, as far as it is needed here.
template <typename T>
class Expected {
public:
    Expected(T value) : value_(std::move(value)) {}
    Expected(Error error) : error_(std::move(error)) {}

    explicit operator bool() const noexcept { return value_.has_value(); }
    T & operator*() & { return *value_; }
    T && operator*() && { return std::move(*value_); }
    T * operator->() { return &*value_; }
    const Error & error() const noexcept { return error_; }

private:
    std::optional<T> value_;
    Error error_;
};

/// Success, or a code. Cheap: the words are fetched with Error::last(), before the next failing call.
class Result {
public:
    Result(xlm_result code) noexcept : code_(code) {}
    explicit operator bool() const noexcept { return code_ >= 0; }
    xlm_result code() const noexcept { return code_; }
    /// There is no connection now. Nothing is wrong: a cap or a reservation was kept.
    bool disconnected() const noexcept { return xlm_is_disconnected(code_) != 0; }

private:
    xlm_result code_;
};

/// A view of an event; as short-lived as the event itself.
class Event {
public:
    explicit Event(const xlm_event & event) noexcept : event_(event) {}

    xlm_event_kind kind() const noexcept { return event_.kind; }
    std::uint64_t id() const noexcept { return event_.id; }
    xlm_session * session() const noexcept { return event_.session; }
    std::string_view text() const noexcept { return view(event_.text); }
    std::string_view detail() const noexcept { return view(event_.detail); }
    xlm_client_state state() const noexcept { return event_.state; }
    xlm_finish_reason finish_reason() const noexcept { return event_.finish_reason; }
    xlm_notice_kind notice() const noexcept { return event_.notice; }
    const xlm_lease * lease() const noexcept { return event_.lease; }
    const xlm_usage * usage() const noexcept { return event_.usage; }
    const xlm_status_info * status() const noexcept { return event_.status; }
    const xlm_error * error() const noexcept { return event_.error; }
    const xlm_event & raw() const noexcept { return event_; }

private:
    const xlm_event & event_;
};

using Handler = std::function<void(const Event &)>;

namespace detail {

/// A handler that may lose its owner while it runs: then the call frees it when it returns.
class Callback {
public:
    explicit Callback(Handler handler) : handler_(std::move(handler)) {}

    static void call(void * self, const xlm_event * event) {
        const Running running(static_cast<Callback *>(self));
        if (running.callback->handler_) running.callback->handler_(Event(*event));
    }
    struct Release {
        void operator()(Callback * callback) const noexcept {
            if (callback->depth_ == 0)
                delete callback;
            else
                callback->orphaned_ = true;
        }
    };

private:
    struct Running { // also where the handler throws
        explicit Running(Callback * running) : callback(running) { callback->depth_++; }
        ~Running() {
            if (--callback->depth_ == 0 && callback->orphaned_) delete callback;
        }
        Callback * callback;
    };

    Handler handler_;
    int depth_ = 0;
    bool orphaned_ = false;
};
using CallbackPointer = std::unique_ptr<Callback, Callback::Release>;

/// Tells sessions that outlive their client that the handle has gone with it.
struct Life {
    bool over = false;
};

} // namespace detail

/// What the model is shown. A view: the bytes must live until say() returns, which copies them; or, where they are
/// lent, until they are given back.
struct Image : xlm_image {
    Image() : xlm_image(XLM_IMAGE_INIT) {}

    /// The bytes of a PNG, JPEG, WebP, BMP or GIF file.
    static Image encoded(const void * data, std::size_t size_bytes) {
        Image image;
        image.data = data;
        image.size_bytes = size_bytes;
        return image;
    }
    /// Raw pixels. `stride_bytes` 0: rows without padding; `bottom_up`: the first row in memory is the lowest.
    static Image pixels(xlm_image_format format, const void * data, std::size_t size_bytes, std::uint32_t width,
                        std::uint32_t height, std::size_t stride_bytes = 0, bool bottom_up = false) {
        Image image = encoded(data, size_bytes);
        image.format = format;
        image.width = width;
        image.height = height;
        image.stride_bytes = stride_bytes;
        image.bottom_up = bottom_up;
        return image;
    }

    /// Lends the bytes instead of having them copied: say() then costs as little as without images. Once it has
    /// succeeded, `give_back` is called once, within poll() or the end of the client, and until then they must not
    /// change. Where say() fails they were never taken.
    Image & lend(xlm_release_fn give_back, void * user_data = nullptr) {
        lent = 1;
        release = give_back;
        release_user_data = user_data;
        return *this;
    }
};
static_assert(sizeof(Image) == sizeof(xlm_image), "arrays of one are arrays of the other");

/// How to answer. `stop`, `grammar`, `json_schema` and `images` are views: they must live until say() returns.
struct SayOptions : xlm_say_options {
    SayOptions() : xlm_say_options(XLM_SAY_OPTIONS_INIT) {}

    /// `first` points to `count` images.
    SayOptions & show(const Image * first, std::size_t count) {
        images = first;
        n_images = static_cast<std::uint32_t>(count);
        return *this;
    }
};

/// A conversation. Closes itself.
class Session {
public:
    Session() = default;
    Session(Session && other) noexcept { swap(other); }
    Session & operator=(Session && other) noexcept {
        Session(std::move(other)).swap(*this);
        return *this;
    }
    Session(const Session &) = delete;
    Session & operator=(const Session &) = delete;
    ~Session() { close(); }

    explicit operator bool() const noexcept { return handle_ != nullptr && !life_->over; }
    xlm_session * handle() const noexcept { return handle_; }

    /// The answer's id; its events carry it.
    Expected<std::uint64_t> say(std::string_view text, const SayOptions & options = {}) {
        std::uint64_t answer = 0;
        if (!*this || xlm_session_say(handle_, lend(text), &options, &answer) != XLM_SUCCESS) return failure();
        return answer;
    }
    /// 0: whatever it is answering.
    Result cancel(std::uint64_t answer = 0) {
        return *this ? xlm_session_cancel(handle_, answer) : XLM_ERROR_INVALID_HANDLE;
    }
    /// To resume the conversation later; empty before it is open.
    std::string id() const { return std::string(view(info().id)); }
    xlm_session_info info() const {
        xlm_session_info info = XLM_SESSION_INFO_INIT;
        if (*this) xlm_session_get_info(handle_, &info);
        return info;
    }
    /// May be called within its own handler. Keeps the handle where the library is too busy to take the request.
    Result close() {
        if (!*this) return forget();
        const xlm_result result = xlm_session_close(handle_);
        return result == XLM_ERROR_OVERLOADED ? Result(result) : forget();
    }

private:
    friend class Client;

    Error failure() const {
        if (*this) return Error::last();
        Error error;
        error.result = XLM_ERROR_INVALID_HANDLE;
        error.fault = XLM_FAULT_CALLER;
        error.name = "invalid_handle";
        error.message = "the session is closed, or its client has ended";
        return error;
    }
    Result forget() {
        handle_ = nullptr;
        callback_.reset();
        return XLM_SUCCESS;
    }
    void swap(Session & other) noexcept {
        std::swap(handle_, other.handle_);
        std::swap(callback_, other.callback_);
        std::swap(life_, other.life_);
    }

    xlm_session * handle_ = nullptr;
    detail::CallbackPointer callback_;
    std::shared_ptr<detail::Life> life_ = std::make_shared<detail::Life>();
};

struct ClientOptions {
    std::string_view name;
    std::string_view endpoint = {};
    std::string_view server_key = {};
    std::uint32_t max_sessions = 64;
    std::uint32_t goodbye_ms = 200;
    xlm_log_fn on_log = nullptr;
    void * log_user_data = nullptr;
    const xlm_allocator * allocator = nullptr;
};

struct SessionOptions {
    std::string_view system = {};
    xlm_overflow overflow = XLM_OVERFLOW_ERROR;
    std::string_view resume = {};
};

/// A game's connection. Says goodbye at its end, which may take ClientOptions::goodbye_ms.
class Client {
public:
    Client() = default;
    Client(Client && other) noexcept { swap(other); }
    Client & operator=(Client && other) noexcept {
        Client(std::move(other)).swap(*this);
        return *this;
    }
    Client(const Client &) = delete;
    Client & operator=(const Client &) = delete;
    ~Client() { destroy(); }

    /// `handler` gets the client's own events, and those of sessions without a handler.
    static Expected<Client> create(const ClientOptions & given, Handler handler = {}) {
        Client client;
        client.callback_.reset(new detail::Callback(std::move(handler)));
        client.life_ = std::make_shared<detail::Life>();
        xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
        options.name = lend(given.name);
        options.endpoint = lend(given.endpoint);
        options.server_key = lend(given.server_key);
        options.max_sessions = given.max_sessions;
        options.goodbye_ms = given.goodbye_ms;
        options.on_log = given.on_log;
        options.log_user_data = given.log_user_data;
        options.allocator = given.allocator;
        options.on_event = detail::Callback::call;
        options.user_data = client.callback_.get();
        if (xlm_client_create(&options, &client.handle_) != XLM_SUCCESS) return Error::last();
        return Expected<Client>(std::move(client));
    }

    explicit operator bool() const noexcept { return handle_ != nullptr; }
    xlm_client * handle() const noexcept { return handle_; }
    xlm_client_state state() const noexcept { return xlm_client_get_state(handle_); }
    bool ready() const noexcept { return state() == XLM_CLIENT_READY; }

    /// Runs the handlers of what has arrived: a count, or an error below zero.
    std::int32_t poll(std::chrono::nanoseconds max_time = std::chrono::microseconds(200)) {
        return xlm_client_poll(handle_, static_cast<std::uint64_t>(max_time.count()));
    }
    std::int32_t poll_all() { return xlm_client_poll(handle_, UINT64_MAX); }

    Result set_budget(std::uint64_t cap_bytes, std::optional<std::chrono::nanoseconds> deadline = {},
                      std::uint64_t * ticket = nullptr, xlm_require require = XLM_REQUIRE_ANY) {
        const xlm_budget budget = make_budget(cap_bytes, deadline, require);
        return xlm_client_set_budget(handle_, &budget, ticket);
    }
    /// For tools: blocks until the bytes are released.
    Expected<xlm_lease> set_budget_wait(std::uint64_t cap_bytes, std::chrono::nanoseconds timeout,
                                        std::optional<std::chrono::nanoseconds> deadline = {},
                                        xlm_require require = XLM_REQUIRE_ANY) {
        const xlm_budget budget = make_budget(cap_bytes, deadline, require);
        xlm_lease lease = XLM_LEASE_INIT;
        if (xlm_client_set_budget_wait(handle_, &budget, count(timeout), &lease) != XLM_SUCCESS) return Error::last();
        return lease;
    }
    Result reserve(std::uint64_t bytes, std::optional<std::chrono::nanoseconds> deadline = {},
                   std::uint64_t * ticket = nullptr) {
        return xlm_client_reserve(handle_, bytes, deadline ? count(*deadline) : XLM_NO_DEADLINE, ticket);
    }
    Expected<xlm_lease> reserve_wait(std::uint64_t bytes, std::chrono::nanoseconds timeout) {
        xlm_lease lease = XLM_LEASE_INIT;
        if (xlm_client_reserve_wait(handle_, bytes, XLM_NO_DEADLINE, count(timeout), &lease) != XLM_SUCCESS)
            return Error::last();
        return lease;
    }
    xlm_lease lease() const {
        xlm_lease lease = XLM_LEASE_INIT;
        xlm_client_get_lease(handle_, &lease);
        return lease;
    }
    Result request_status(std::uint64_t * ticket = nullptr) { return xlm_client_request_status(handle_, ticket); }
    Result frame(std::chrono::nanoseconds took, std::chrono::nanoseconds target, xlm_pacing pacing = XLM_PACING_STEPS) {
        xlm_frame_info info = XLM_FRAME_INFO_INIT;
        info.frame_ns = count(took);
        info.target_ns = count(target);
        info.pacing = pacing;
        return xlm_frame(handle_, &info);
    }
    /// For tools.
    Result ready_wait(std::chrono::nanoseconds timeout) { return xlm_client_ready_wait(handle_, count(timeout)); }
    Result event_wait(std::chrono::nanoseconds timeout) { return xlm_client_event_wait(handle_, count(timeout)); }

    /// Without a handler the session's events go to the client's.
    Expected<Session> open_session(const SessionOptions & given = {}, Handler handler = {}) {
        Session session;
        xlm_session_options options = XLM_SESSION_OPTIONS_INIT;
        options.system = lend(given.system);
        options.overflow = given.overflow;
        options.resume = lend(given.resume);
        if (handler) {
            session.callback_.reset(new detail::Callback(std::move(handler)));
            options.on_event = detail::Callback::call;
            options.user_data = session.callback_.get();
        }
        session.life_ = life_;
        if (xlm_session_open(handle_, &options, &session.handle_) != XLM_SUCCESS) return Error::last();
        return Expected<Session>(std::move(session));
    }

    /// XLM_ERROR_IN_CALLBACK within a handler: nothing has happened then.
    Result destroy() {
        if (handle_ == nullptr) return XLM_SUCCESS;
        const xlm_result result = xlm_client_destroy(handle_);
        if (result != XLM_SUCCESS) {
            (void)callback_.release(); // the library still has it: better lost than freed under it
        } else {
            callback_.reset();
        }
        if (life_) life_->over = true;
        handle_ = nullptr;
        return result;
    }

private:
    static std::uint64_t count(std::chrono::nanoseconds time) noexcept {
        return time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : 0;
    }
    static xlm_budget make_budget(std::uint64_t cap_bytes, std::optional<std::chrono::nanoseconds> deadline,
                                  xlm_require require) {
        xlm_budget budget = XLM_BUDGET_INIT;
        budget.cap_bytes = cap_bytes;
        if (deadline) budget.deadline_ns = count(*deadline);
        budget.require = require;
        return budget;
    }
    void swap(Client & other) noexcept {
        std::swap(handle_, other.handle_);
        std::swap(callback_, other.callback_);
        std::swap(life_, other.life_);
    }

    xlm_client * handle_ = nullptr;
    detail::CallbackPointer callback_;
    std::shared_ptr<detail::Life> life_;
};

} // namespace xlm
