// BrokerProcess.h - an xlm-broker that ends with this process, however this process ends. No Unreal in here.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace xlm {

/// On Linux and macOS a shell between the two waits for the end of a pipe that the system closes; on Windows a job
/// object does it. So a crash, a kill or the stop button of an editor leaves nothing behind. Not thread-safe.
class BrokerProcess {
public:
    /// Starts `words[0]`, a path or a name in PATH, with the other words (UTF-8). Null: it cannot be started.
    static std::unique_ptr<BrokerProcess> start(const std::vector<std::string> & words);

    BrokerProcess(const BrokerProcess &) = delete;
    BrokerProcess & operator=(const BrokerProcess &) = delete;

    /// Ends it and waits for it: for four seconds at most where it does not listen, then it is killed.
    ~BrokerProcess();

    bool running();

    /// Once it is not running: as the broker's (see xlm-broker --help). 127: no such executable. 3: another broker has
    /// the endpoint already, and the game uses that one.
    int exit_code() const { return exit_code_; }

private:
    struct Handle;
    explicit BrokerProcess(std::unique_ptr<Handle> handle);

    std::unique_ptr<Handle> handle_;
    int exit_code_ = -1;
};

} // namespace xlm
