// Fault injection: device lost. (Allocation failures belong to the memory ledger.)
#pragma once

#include <cstdint>
#include <mutex>

namespace xlm::sim {

// Work accepted before the loss still completes; what comes after is refused.
// So a test knows exactly which graph is the first to fail. Thread-safe.
class LossFault {
public:
    // Lost after n more accepted graphs; 0 = now.
    void arm(uint32_t after_submissions);
    void restore();
    bool lost() const;
    bool armed() const;
    // Called once a graph: false when the device is lost.
    bool accept_graph();

private:
    mutable std::mutex mutex_;
    bool armed_ = false;
    uint32_t left_ = 0;
};

} // namespace xlm::sim
