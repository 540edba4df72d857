#include "faults.hpp"

namespace xlm::sim {

using Lock = std::lock_guard<std::mutex>;

void LossFault::arm(uint32_t after_submissions) {
    const Lock lock(mutex_);
    armed_ = true;
    left_ = after_submissions;
    count();
}

void LossFault::restore() {
    const Lock lock(mutex_);
    armed_ = false;
    count();
}

bool LossFault::lost() const {
    const Lock lock(mutex_);
    return armed_ && left_ == 0;
}

bool LossFault::disarm() {
    const Lock lock(mutex_);
    if (!armed_ || left_ == 0) return false;
    armed_ = false;
    return true;
}

bool LossFault::accept_graph() {
    const Lock lock(mutex_);
    if (!armed_) return true;
    if (left_ == 0) return false;
    left_--;
    count();
    return true;
}

uint64_t LossFault::losses() const {
    const Lock lock(mutex_);
    return losses_;
}

void LossFault::count() {
    const bool lost = armed_ && left_ == 0;
    losses_ += lost && !counted_;
    counted_ = lost;
}

} // namespace xlm::sim
