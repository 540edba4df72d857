#include "faults.hpp"

namespace xlm::sim {

using Lock = std::lock_guard<std::mutex>;

void LossFault::arm(uint32_t after_submissions) {
    const Lock lock(mutex_);
    armed_ = true;
    left_ = after_submissions;
}

void LossFault::restore() {
    const Lock lock(mutex_);
    armed_ = false;
}

bool LossFault::lost() const {
    const Lock lock(mutex_);
    return armed_ && left_ == 0;
}

bool LossFault::armed() const {
    const Lock lock(mutex_);
    return armed_;
}

bool LossFault::accept_graph() {
    const Lock lock(mutex_);
    if (!armed_) return true;
    if (left_ == 0) return false;
    left_--;
    return true;
}

} // namespace xlm::sim
