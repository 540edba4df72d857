#include "XlmCore/BrokerProcess.h"

#if defined(_WIN32)
#if __has_include("Windows/AllowWindowsPlatformTypes.h")
#include "Windows/AllowWindowsPlatformTypes.h"
#include "Windows/HideWindowsPlatformTypes.h"
#include <windows.h>
#else
#include <windows.h>
#endif
#else
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
extern char ** environ;
#endif

namespace xlm {

#if defined(_WIN32)

struct BrokerProcess::Handle {
    HANDLE job = nullptr;
    HANDLE process = nullptr;

    Handle() = default;
    Handle(const Handle &) = delete;
    Handle & operator=(const Handle &) = delete;
    ~Handle() {
        if (process != nullptr) CloseHandle(process);
        if (job != nullptr) CloseHandle(job);
    }
};

namespace {

std::wstring widen(const std::string & text) {
    const int bytes = static_cast<int>(text.size());
    std::wstring wide(static_cast<size_t>(MultiByteToWideChar(CP_UTF8, 0, text.data(), bytes, nullptr, 0)), L'\0');
    MultiByteToWideChar(CP_UTF8, 0, text.data(), bytes, &wide[0], static_cast<int>(wide.size()));
    return wide;
}

// What CommandLineToArgvW undoes: backslashes count only before a quote.
std::wstring quote(const std::wstring & word) {
    std::wstring quoted = L"\"";
    size_t backslashes = 0;
    for (const wchar_t c : word) {
        if (c == L'"') quoted.append(backslashes + 1, L'\\');
        backslashes = c == L'\\' ? backslashes + 1 : 0;
        quoted += c;
    }
    return quoted.append(backslashes, L'\\') + L'"';
}

HANDLE make_job() {
    const HANDLE job = CreateJobObjectW(nullptr, nullptr);
    JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits = {};
    limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
    if (job != nullptr) SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof(limits));
    return job;
}

} // namespace

std::unique_ptr<BrokerProcess> BrokerProcess::start(const std::vector<std::string> & words) {
    std::wstring line;
    for (const std::string & word : words)
        line += (line.empty() ? L"" : L" ") + quote(widen(word));
    auto handle = std::make_unique<Handle>();
    handle->job = make_job();
    STARTUPINFOW startup = {};
    startup.cb = sizeof(startup);
    PROCESS_INFORMATION made = {};
    const DWORD flags = CREATE_NO_WINDOW | CREATE_SUSPENDED; // it runs only once it is in the job
    if (!CreateProcessW(nullptr, &line[0], nullptr, nullptr, FALSE, flags, nullptr, nullptr, &startup, &made))
        return nullptr;
    handle->process = made.hProcess;
    if (handle->job != nullptr) AssignProcessToJobObject(handle->job, made.hProcess);
    ResumeThread(made.hThread);
    CloseHandle(made.hThread);
    return std::unique_ptr<BrokerProcess>(new BrokerProcess(std::move(handle)));
}

bool BrokerProcess::running() {
    DWORD code = 0;
    if (WaitForSingleObject(handle_->process, 0) == WAIT_TIMEOUT) return true;
    if (GetExitCodeProcess(handle_->process, &code)) exit_code_ = static_cast<int>(code);
    return false;
}

BrokerProcess::~BrokerProcess() {
    CloseHandle(handle_->job); // Windows has no polite way to end a program without a window
    handle_->job = nullptr;
    WaitForSingleObject(handle_->process, 4000);
}

#else

struct BrokerProcess::Handle {
    pid_t shell = 0;
    int lifeline = -1; // its other end is the shell's standard input
};

namespace {

// One compound command: the shell has read all of it before it runs. The watcher asks politely, then kills.
constexpr const char * GUARD_BEGIN = "{\nexec 3<&0 </dev/null\n";
constexpr const char * GUARD_END = R"( 3<&- &
broker=$!
{ while read -r line <&3; do :; done
  kill "$broker"; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 0.2; done
  kill -9 "$broker"; } 2>/dev/null &
watcher=$!
exec 3<&-
wait "$broker"; code=$?
kill "$watcher" 2>/dev/null
exit $code
}
)";

std::string quote(const std::string & word) {
    std::string quoted = "'";
    for (const char c : word)
        quoted += c == '\'' ? "'\\''" : std::string(1, c);
    return quoted + "'";
}

std::string script(const std::vector<std::string> & words) {
    std::string text = GUARD_BEGIN;
    for (const std::string & word : words)
        text += quote(word) + " ";
    return text + GUARD_END;
}

// A socket pair, not a pipe: where the shell is gone, send() tells instead of raising SIGPIPE.
bool make_lifeline(int (&ends)[2]) {
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return false;
    for (const int end : ends)
        fcntl(end, F_SETFD, FD_CLOEXEC); // no other child shall hold it open
    return true;
}

pid_t spawn_shell(int standard_input) {
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0) return 0;
    posix_spawn_file_actions_adddup2(&actions, standard_input, STDIN_FILENO);
    char name[] = "sh";
    char * words[] = {name, nullptr};
    pid_t shell = 0;
    const int error = posix_spawn(&shell, "/bin/sh", &actions, nullptr, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    return error == 0 ? shell : 0;
}

bool send_all(int socket, const std::string & text) {
#if defined(MSG_NOSIGNAL)
    const int flags = MSG_NOSIGNAL;
#else
    const int flags = 0;
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
#endif
    for (size_t sent = 0; sent < text.size();) {
        const ssize_t more = send(socket, text.data() + sent, text.size() - sent, flags);
        if (more < 0 && errno != EINTR) return false;
        if (more > 0) sent += static_cast<size_t>(more);
    }
    return true;
}

} // namespace

std::unique_ptr<BrokerProcess> BrokerProcess::start(const std::vector<std::string> & words) {
    int ends[2];
    if (words.empty() || !make_lifeline(ends)) return nullptr;
    auto handle = std::make_unique<Handle>();
    handle->lifeline = ends[0];
    handle->shell = spawn_shell(ends[1]);
    ::close(ends[1]);
    const bool started = handle->shell != 0 && send_all(ends[0], script(words));
    if (handle->shell != 0) {
        std::unique_ptr<BrokerProcess> process(new BrokerProcess(std::move(handle)));
        return started ? std::move(process) : nullptr;
    }
    ::close(ends[0]);
    return nullptr;
}

bool BrokerProcess::running() {
    if (handle_->shell == 0) return false;
    int status = 0;
    if (waitpid(handle_->shell, &status, WNOHANG) == 0) return true;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    handle_->shell = 0;
    return false;
}

BrokerProcess::~BrokerProcess() {
    ::close(handle_->lifeline);
    int status = 0;
    while (handle_->shell != 0 && waitpid(handle_->shell, &status, 0) < 0 && errno == EINTR) {
    }
}

#endif

BrokerProcess::BrokerProcess(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}

} // namespace xlm
