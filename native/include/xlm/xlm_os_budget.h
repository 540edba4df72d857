/* xlm_os_budget.h - turns what the operating system grants the game into the model's cap. Header-only, C99.
 *
 * xlm_vulkan.h and xlm_dxgi.h read the two numbers; this decides. Where the game asks the system itself, it may
 * call xlm_os_budget_update() with them, once a frame.
 *
 * The rule. The system says how much the game may use now (*budget*) and how much it does (*usage*); their
 * difference is the game's *room*. Model and game live in the same memory, so what the model gives back becomes
 * room. With G the budget now granted to the model and H the room to keep:
 *
 *     room < H:             cap = G - (H - room) * 2^n    n: how often in a row that was not enough
 *     room > H + step:      cap = G + (room - H)          after `grow_after` updates in a row
 *
 * A shrink is asked for at once, a growth only after a while, and neither before the last one has been answered;
 * between H and H + step nothing happens; and after a growth that the model did not use, none follows until it
 * does. So it does not oscillate, and reaches any cap in a few steps.
 */
#ifndef XLM_OS_BUDGET_H
#define XLM_OS_BUDGET_H

#include <xlm/xlm.h>

/** Settings, then the helper's own notes. One for each client; use it on one thread. */
typedef struct xlm_os_budget {
    uint32_t struct_size;
    uint32_t grow_after;      /* updates in a row that leave room before the cap is raised; default 30 */
    uint64_t headroom_bytes;  /* room the game shall have; default 256 MiB */
    uint64_t grow_step_bytes; /* the least that is worth a change; default 64 MiB */
    uint64_t max_cap_bytes;   /* never more than this for the model; default XLM_NO_CAP */
    uint64_t deadline_ns;     /* of a shrink; default 16 ms */
    uint64_t asked_bytes;     /* notes: the last cap asked for; XLM_NO_CAP: none */
    uint32_t n_shrinks;       /* notes: in a row */
    uint32_t n_calm;          /* notes: updates in a row with room to spare */
    uint64_t grown_bytes;     /* notes: the room at the last growth; XLM_NO_CAP: none, or a shrink since */
} xlm_os_budget;
#define XLM_OS_BUDGET_INIT \
    { XLM_SIZE_OF(xlm_os_budget), 30, UINT64_C(256) << 20, UINT64_C(64) << 20, XLM_NO_CAP, 16000000, XLM_NO_CAP, \
      0, 0, XLM_NO_CAP }

/** The cap that follows, or XLM_NO_CAP where nothing is to be changed. Pure, but for the notes in `state`.
 *
 *  Ownership: nothing. Threads: one at a time. Blocking: never. Since: 0.1.0 */
static inline uint64_t xlm_os_budget_decide(xlm_os_budget *state, uint64_t granted_bytes, uint64_t budget_bytes,
                                            uint64_t usage_bytes) {
    const uint64_t room = budget_bytes > usage_bytes ? budget_bytes - usage_bytes : 0;
    const uint64_t spare = room > state->headroom_bytes ? room - state->headroom_bytes : 0;
    const uint64_t left = state->max_cap_bytes > granted_bytes ? state->max_cap_bytes - granted_bytes : 0;
    const int unused = state->grown_bytes != XLM_NO_CAP && room + state->grow_step_bytes > state->grown_bytes;
    if (room < state->headroom_bytes) {
        uint64_t less = state->headroom_bytes - room;
        uint32_t doublings = state->n_shrinks;
        state->n_calm = 0;
        state->n_shrinks++;
        state->grown_bytes = XLM_NO_CAP;
        for (; doublings > 0 && less < granted_bytes; doublings--) less = less > UINT64_MAX / 2 ? UINT64_MAX : 2 * less;
        return granted_bytes == 0 ? XLM_NO_CAP : less < granted_bytes ? granted_bytes - less : 0;
    }
    state->n_shrinks = 0;
    if (spare < state->grow_step_bytes || left == 0 || unused) state->n_calm = 0;
    else state->n_calm++;
    if (state->n_calm == 0 || state->n_calm < state->grow_after) return XLM_NO_CAP;
    state->n_calm = 0;
    state->grown_bytes = room;
    return granted_bytes + (spare < left ? spare : left);
}

/** Relays the game's memory budget, once a frame.
 *
 *  @param budget_bytes  what the system lets the game use now
 *  @param usage_bytes   what the game uses of it
 *  @return 1: a new cap was asked for; 0: none was needed, or the last one is not answered yet; or an error of
 *          xlm_client_set_budget()
 *
 *  Ownership: nothing. Threads: one at a time. Blocking: never. Since: 0.1.0 */
static inline xlm_result xlm_os_budget_update(xlm_client *client, xlm_os_budget *state, uint64_t budget_bytes,
                                              uint64_t usage_bytes) {
    xlm_lease lease = XLM_LEASE_INIT;
    xlm_budget wanted = XLM_BUDGET_INIT;
    uint64_t cap;
    xlm_result result = xlm_client_get_lease(client, &lease);
    if (result != XLM_SUCCESS) return result;
    if (state->asked_bytes != XLM_NO_CAP && lease.cap_bytes != state->asked_bytes &&
        xlm_client_get_state(client) == XLM_CLIENT_READY)
        return 0;
    cap = xlm_os_budget_decide(state, lease.granted_bytes, budget_bytes, usage_bytes);
    if (cap == XLM_NO_CAP || cap == lease.cap_bytes) return 0;
    wanted.cap_bytes = cap;
    wanted.deadline_ns = cap < lease.granted_bytes ? state->deadline_ns : XLM_NO_DEADLINE;
    result = xlm_client_set_budget(client, &wanted, NULL);
    if (result == XLM_SUCCESS) state->asked_bytes = cap;
    return result == XLM_SUCCESS ? 1 : result;
}

#endif /* XLM_OS_BUDGET_H */
