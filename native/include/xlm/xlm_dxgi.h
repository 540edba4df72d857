/* xlm_dxgi.h - the game's memory budget from DXGI (Windows 10 and later), relayed to xlm. Header-only, C99 or C++.
 *
 *     xlm_dxgi relay = XLM_DXGI_INIT;
 *     xlm_dxgi_open(&relay, adapter3);          // IDXGIAdapter3 of the game's device
 *     // once a frame:
 *     xlm_dxgi_update(client, &relay);
 *     // at the end:
 *     xlm_dxgi_close(&relay);
 *
 * Windows changes a process's budget when others come and go, and signals an event; a signalled event is looked
 * into at once, and otherwise the numbers are read every `read_every` frames, for growth. Link dxguid. Compiled
 * with mingw-w64, unrun: no Windows machine was at hand.
 */
#ifndef XLM_DXGI_H
#define XLM_DXGI_H

#include <dxgi1_4.h>
#include <windows.h>

#include <xlm/xlm_os_budget.h>

typedef struct xlm_dxgi {
    uint32_t       struct_size;
    uint32_t       read_every; /* frames between two looks without an event; default 10 */
    xlm_os_budget  relay;
    IDXGIAdapter3 *adapter; /* notes, as all that follows */
    HANDLE         changed; /* signalled by Windows */
    DWORD          cookie;
    uint32_t       n_frames;
} xlm_dxgi;
#define XLM_DXGI_INIT { XLM_SIZE_OF(xlm_dxgi), 10, XLM_OS_BUDGET_INIT, NULL, NULL, 0, 0 }

#ifdef __cplusplus
#  define XLM_DXGI_CALL(object, method, ...) (object)->method(__VA_ARGS__)
#  define XLM_DXGI_CALL0(object, method) (object)->method()
#else
#  define XLM_DXGI_CALL(object, method, ...) (object)->lpVtbl->method((object), __VA_ARGS__)
#  define XLM_DXGI_CALL0(object, method) (object)->lpVtbl->method((object))
#endif

/** Begins to watch. Takes a reference to the adapter.
 *
 *  @return XLM_ERROR_INVALID_ARGUMENT, _DEVICE_NOT_FOUND (Windows gives no event for this adapter)
 *
 *  Ownership: end it with xlm_dxgi_close(). Threads: one at a time. Blocking: never. Since: 0.1.0 */
static inline xlm_result xlm_dxgi_open(xlm_dxgi *state, IDXGIAdapter3 *adapter) {
    if (state == NULL || adapter == NULL) return XLM_ERROR_INVALID_ARGUMENT;
    state->changed = CreateEventW(NULL, FALSE, TRUE, NULL); /* set: the first update reads */
    if (state->changed == NULL) return XLM_ERROR_DEVICE_NOT_FOUND;
    if (FAILED(XLM_DXGI_CALL(adapter, RegisterVideoMemoryBudgetChangeNotificationEvent, state->changed,
                             &state->cookie))) {
        CloseHandle(state->changed);
        state->changed = NULL;
        return XLM_ERROR_DEVICE_NOT_FOUND;
    }
    XLM_DXGI_CALL0(adapter, AddRef);
    state->adapter = adapter;
    return XLM_SUCCESS;
}

/** Reads where there is reason to, and relays; as xlm_os_budget_update(). Call it once a frame.
 *
 *  Ownership: nothing. Threads: one at a time. Blocking: as long as the driver takes. Since: 0.1.0 */
static inline xlm_result xlm_dxgi_update(xlm_client *client, xlm_dxgi *state) {
    DXGI_QUERY_VIDEO_MEMORY_INFO info;
    const int signalled = state->changed != NULL && WaitForSingleObject(state->changed, 0) == WAIT_OBJECT_0;
    if (state->adapter == NULL) return XLM_ERROR_INVALID_ARGUMENT;
    if (++state->n_frames < state->read_every && !signalled) return 0;
    state->n_frames = 0;
    if (FAILED(XLM_DXGI_CALL(state->adapter, QueryVideoMemoryInfo, 0, DXGI_MEMORY_SEGMENT_GROUP_LOCAL, &info)))
        return XLM_ERROR_DEVICE_LOST;
    return xlm_os_budget_update(client, &state->relay, info.Budget, info.CurrentUsage);
}

/** Ends watching. May be called twice.
 *
 *  Ownership: the reference to the adapter is given back. Threads: one at a time. Blocking: never. Since: 0.1.0 */
static inline void xlm_dxgi_close(xlm_dxgi *state) {
    if (state->adapter != NULL) {
        XLM_DXGI_CALL(state->adapter, UnregisterVideoMemoryBudgetChangeNotification, state->cookie);
        XLM_DXGI_CALL0(state->adapter, Release);
    }
    if (state->changed != NULL) CloseHandle(state->changed);
    state->adapter = NULL;
    state->changed = NULL;
}

#endif /* XLM_DXGI_H */
