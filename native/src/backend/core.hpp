// The one cache device of the process, and who may do what when:
//   exec_mutex  held while a graph runs, and by whatever needs that none does;
//   gate        held while the device is touched; open while a graph computes on the CPU,
//               so that a reclaim gets in. Always taken after exec_mutex.
#pragma once

#include "cache.hpp"
#include "gate.hpp"
#include "lending.hpp"
#include "pace.hpp"
#include "registry.hpp"
#include "rests.hpp"
#include "schedule.hpp"
#include "stats.hpp"
#include "trace.hpp"
#include "work_ahead.hpp"

#include <memory>
#include <mutex>

namespace xlm {

struct Core {
    Core();

    Stats stats;
    Trace trace;
    Ledger ledger;
    Inner inner{ledger, trace};
    Registry registry{inner};
    Cache cache{inner, ledger, registry, stats};
    Gate gate;
    Rests rests;
    std::mutex exec_mutex;
    std::atomic<bool> opened{false};
    std::atomic<bool> abort_step{false};
    std::atomic<uint32_t> n_threads{0}; // 0: what llama.cpp asks for
    std::atomic<uint32_t> max_in_flight_decode{16}, max_in_flight_prefill{16};
    // What work and copies take; belong to the holder of exec_mutex. The first guess is a slow link.
    StepPaces step_paces, stream_paces; // resident; with weights from the ring
    Pace upload_pace{0.25};

    // Schedule: `next` is handed over under its mutex; `schedule` belongs to the holder of exec_mutex.
    std::mutex schedule_mutex;
    std::unique_ptr<Schedule> next_schedule;
    Schedule schedule;
    std::atomic<uint64_t> schedule_id{0};
    Lending lending;                 // belongs to the holder of exec_mutex, as the next one does
    uint32_t last_tier = 0;          // of the last step
    uint64_t vision_bound_bytes = 0; // what the device held when the vision phase began
    bool output_is_to_come = false;  // since the phase ended

    // The caller holds exec_mutex (and takes the gate where it says so).
    void take_schedule();            // takes the gate
    void enter_vision();             // holds the gate; nothing to do if it is that phase already
    void leave_vision();             // holds the gate
    void begin_vision();             // holds the gate: an image is about to come
    void bring_back();               // holds the gate: the language model's copies, nobody waits for them
    void bring_output();             // holds the gate: what bring_back() left out
    bool settle(uint64_t max_bytes); // takes the gate; true while something is left
    void note_step(uint32_t tier);   // a step of this tier comes next
    uint64_t reserve_bytes() const { // what copies leave free now
        return lending.reserve_bytes(schedule.reserve_of(last_tier), schedule.reserve_bytes);
    }
    void lose_device(); // holds the gate
    void rest();        // as `rests` has it; less where a reclaim or an abort comes

    void forget_buffer(HostBuffer * buffer); // takes both
    void reclaim();                          // the gate's service
    bool met_budget();                       // whether it has nothing left to do; holds the gate

private:
    void apply(Schedule & schedule);
    void apply_experts(Schedule & schedule, const std::vector<SubLayer *> & sublayers);
    bool fill_slots(SubLayer & sublayer, uint64_t max_bytes, uint64_t & uploaded_bytes);
    bool settle_one(SubLayer & sublayer, uint64_t reserve_bytes, WorkAhead & ahead);
    bool whole_without_scratch();
    std::vector<SubLayer *> wanted_copies();
    std::vector<SubLayer *> wanted_for_image();
    bool queue_copies(const std::vector<SubLayer *> & copies, bool output);
    void begin_output(const std::vector<SubLayer *> & copies);
    bool settle_copies(const std::vector<SubLayer *> & wanted, uint64_t reserve_bytes, uint64_t max_bytes,
                       uint64_t & uploaded_bytes);
};

// Never destroyed: llama.cpp may free buffers while the process ends.
Core & core();

} // namespace xlm
