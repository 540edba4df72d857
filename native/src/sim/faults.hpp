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
    // Takes back a loss that has not come to pass; false when there is none such.
    bool disarm();
    // How often it was lost, also where the loss was undone since.
    uint64_t losses() const;
    // Called once a graph: false when the device is lost.
    bool accept_graph();

private:
    void count(); // under the mutex, after left_ or armed_ changed

    mutable std::mutex mutex_;
    bool armed_ = false;
    bool counted_ = false; // the present loss is among the losses
    uint32_t left_ = 0;
    uint64_t losses_ = 0;
};

} // namespace xlm::sim
