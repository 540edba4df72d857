// Everything that lies in device memory: resident sub-layers, state copies, the
// ring and the scratch. All of it are copies; dropping any of it costs time only.
//
// Owned by the holder of the device gate.
#pragma once

#include "registry.hpp"
#include "ring.hpp"
#include "schedule.hpp"
#include "stats.hpp"

namespace xlm {

class Cache {
public:
    Cache(Inner & inner, Ledger & ledger, Registry & registry, Stats & stats)
        : ring(inner, stats), window(inner), inner_(inner), ledger_(ledger), registry_(registry), stats_(stats) {}

    // Rises whenever something a plan relied on changed.
    uint64_t epoch() const { return epoch_; }
    void changed() { epoch_++; }

    // Memory for a copy; not filled yet. False: the budget or the device refuses.
    bool place_resident(SubLayer & sublayer, uint64_t reserve_bytes);
    bool place_state(State & state, uint64_t reserve_bytes);
    bool place_scratch(uint64_t bytes);
    bool place_ring(uint64_t bytes, uint64_t largest_piece_bytes);
    // Slots for the schedule's number of experts, or for as many as there is memory for. False: for none.
    bool place_slots(SubLayer & sublayer, uint64_t reserve_bytes);
    bool place_window(uint64_t bytes, uint64_t largest_expert_bytes);

    // The upload stream was given all of a copy. Whoever computes with it has the device wait for that first.
    bool on_its_way(SubLayer & sublayer);
    bool await(SubLayer & sublayer);

    // Points the shadows of a placed sub-layer at its copy, which is to be filled now.
    bool point_at_copy(SubLayer & sublayer);

    // Drops copies in the fixed order until used <= budget. Nothing is in flight and nothing
    // on the device is newer than the host.
    void shrink_to_budget();
    void drop_resident(SubLayer & sublayer); // its slots too
    void drop_copy(SubLayer & sublayer);
    void drop_slots(SubLayer & sublayer);
    void drop_state(State & state);
    void drop_scratch(); // while no graph runs
    // Drops copies and caches that this tier does without, then others, last ranks first, until so much is free. While
    // no graph runs.
    void take_back(uint64_t reserve_bytes, uint32_t tier);
    // Drops the resident copy that matters least, the small groups excepted; false: there is none.
    bool drop_least();
    void drop_all();
    // The ring and the scratch, of whichever phase.
    void drop_workspace();
    // The language model's copies, last ranks first, until `need_bytes` for the vision phase fit under the budget
    // and under the larger of `need_bytes` and `bound_bytes`. Nothing uses the device.
    void give_way(uint64_t need_bytes, uint64_t bound_bytes);
    void drop_vision_residents();
    // Weights changed on the host: copies are stale.
    void drop_weights();

    uint64_t budget_bytes() const { return ledger_.view().budget_bytes; }
    const DeviceBuffer & scratch() const { return scratch_; }
    Ring ring;
    ExpertWindow window;
    bool vision_phase = false; // then the language model's copies are the first to go
    struct LastImage {
        uint32_t tier = 0;
        uint64_t need_bytes = 0, scratch_bytes = 0; // 0: none yet, or not all of the tower was on the device
    } last_image;
    uint64_t n_schedules = 0;    // taken over so far
    bool ahead_of_image = false; // the tower's copies may be there already, for an image that looks like the last one

private:
    uint64_t room_beside_reserve(uint64_t reserve_bytes) const;
    uint32_t slots_that_fit(const SubLayer & sublayer, uint64_t room_bytes) const;
    bool fits_beside_reserve(uint64_t bytes, uint64_t reserve_bytes) const;
    void note_refusal();
    std::vector<SubLayer *> eviction_order();

    Inner & inner_;
    Ledger & ledger_;
    Registry & registry_;
    Stats & stats_;
    DeviceBuffer scratch_;
    uint64_t epoch_ = 1;
};

// Highest rank first; the small groups, which everything else needs, come last. Pure.
void sort_for_eviction(std::vector<SubLayer *> & sublayers);

} // namespace xlm
