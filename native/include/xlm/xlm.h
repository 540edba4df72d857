/* xlm.h - a game's side of xlm: share the GPU with a language model, and talk to it.
 *
 * Plain C99, no C++ and no engine in it. Link libxlm (`pkg-config --cflags --libs xlm`).
 *
 *     xlm_client_options options = XLM_CLIENT_OPTIONS_INIT;
 *     options.name = xlm_str_from("tavern");
 *     options.on_event = on_event;
 *     xlm_client *client = NULL;
 *     if (xlm_client_create(&options, &client) != XLM_SUCCESS) ...
 *     // every frame:
 *     xlm_client_poll(client, 200000);            // at most 0.2 ms; on_event is called in here, nowhere else
 *
 * THREADS   One thread inside the library does all input and output. Your callbacks run only within
 *           xlm_client_poll(), on the thread that calls it: the *poll thread*. A function whose text says
 *           "any thread" may be called from all threads at once.
 * BLOCKING  Only xlm_client_destroy() and the functions named *_wait block. All others return at once, whether
 *           or not there is a broker, and once warmed up they do not allocate: buffers grow to the longest text
 *           they had to hold and are kept.
 * STRINGS   UTF-8, a pointer and a length in bytes, no final NUL needed and none promised. What you pass in is
 *           copied before the call returns (but for images that are lent). What you are given lives as long as the struct that holds it.
 * STRUCTS   `struct_size` first; start from the *_INIT macro. Later versions add fields at the end and never
 *           change one; a library and a game of different ages work together.
 * ERRORS    An xlm_result: 0 or a count on success, negative on failure. xlm_last_error() tells what happened,
 *           whose fault it is, whether a retry can help, and what to do. Nothing here throws or aborts.
 * HANDLES   Opaque. An xlm_session belongs to its xlm_client and ends with it at the latest.
 * UNITS     In the names: _bytes, _ns (nanoseconds), _ms (milliseconds).
 */
#ifndef XLM_H
#define XLM_H

#include <stddef.h>
#include <stdint.h>

#define XLM_VERSION_MAJOR 0
#define XLM_VERSION_MINOR 1
#define XLM_VERSION_PATCH 0
/** The version of this header, comparable as a number: major * 1000000 + minor * 1000 + patch. */
#define XLM_VERSION (XLM_VERSION_MAJOR * 1000000 + XLM_VERSION_MINOR * 1000 + XLM_VERSION_PATCH)

#if defined(XLM_STATIC)
#  define XLM_API
#elif defined(_WIN32) && defined(XLM_BUILDING)
#  define XLM_API __declspec(dllexport)
#elif defined(_WIN32)
#  define XLM_API __declspec(dllimport)
#elif defined(__GNUC__)
#  define XLM_API __attribute__((visibility("default")))
#else
#  define XLM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** A struct's size as its struct_size takes it; for the *_INIT macros. */
#ifdef __cplusplus
#  define XLM_SIZE_OF(type) static_cast<uint32_t>(sizeof(type))
#else
#  define XLM_SIZE_OF(type) ((uint32_t)sizeof(type))
#endif

/* ---- strings ------------------------------------------------------------------------------------------------- */

/** UTF-8 text of `len` bytes. `data` may be NULL where `len` is 0. */
typedef struct xlm_str {
    const char *data;
    size_t      len;
} xlm_str;

/** The empty string, as an initializer. */
#define XLM_STR_INIT { NULL, 0 }

/** A string literal, as an initializer: `xlm_str name = XLM_STR_LITERAL("tavern");` */
#define XLM_STR_LITERAL(literal) { (literal), sizeof(literal) - 1 }

/** A view of a NUL-terminated string; NULL is the empty string. `text` must outlive the view. */
static inline xlm_str xlm_str_from(const char *text) {
    xlm_str view = XLM_STR_INIT;
    if (text != NULL) {
        view.data = text;
        while (text[view.len] != '\0') view.len++;
    }
    return view;
}

/* ---- results and errors -------------------------------------------------------------------------------------- */

/** 0: success. Negative: one of XLM_ERROR_*. Functions that count answer with the count, which is positive. */
typedef int32_t xlm_result;
enum {
    XLM_SUCCESS = 0,
    /* of this library */
    XLM_ERROR_INVALID_ARGUMENT = -1,  /* a pointer is NULL, a struct_size is 0, a number is out of its range */
    XLM_ERROR_INVALID_UTF8     = -2,
    XLM_ERROR_INVALID_HANDLE   = -3,  /* a session that was closed */
    XLM_ERROR_OUT_OF_MEMORY    = -4,  /* the host's allocator said no */
    XLM_ERROR_WRONG_THREAD     = -5,  /* poll and next_event belong to one thread: xlm_client_attach_thread() */
    XLM_ERROR_IN_CALLBACK      = -6,  /* not from within a callback */
    XLM_ERROR_FORKED           = -7,  /* a client does not survive fork() */
    XLM_ERROR_UNKNOWN_CODE     = -8,  /* a code of a newer broker; the message names it */
    XLM_ERROR_CALLBACK_THREW   = -9,  /* a callback let a C++ exception out; it ended there */
    /* of the protocol */
    XLM_ERROR_BAD_REQUEST      = -100,
    XLM_ERROR_UNKNOWN_TYPE     = -101,
    XLM_ERROR_FRAME_TOO_LARGE  = -102, /* text, grammar, schema and stops together: at most 1 MiB */
    XLM_ERROR_PROTOCOL_VERSION = -103,
    XLM_ERROR_NOT_CONNECTED    = -104,
    XLM_ERROR_LEASE_EXPIRED    = -105, /* the game stood still, as in a debugger; connecting goes on by itself */
    XLM_ERROR_TOO_MANY_CLIENTS = -106,
    XLM_ERROR_OPTION_INVALID   = -107,
    /* budgets */
    XLM_ERROR_BUDGET_INFEASIBLE = -200, /* xlm_error.minimum_bytes: the least that would do */
    XLM_ERROR_BUDGET_INVALID    = -201,
    /* planning; of the broker's own files, not met by a game */
    XLM_ERROR_PROFILE_MISSING = -250,
    XLM_ERROR_PROFILE_CORRUPT = -251,
    XLM_ERROR_PROFILE_STALE   = -252,
    XLM_ERROR_SHAPE_INVALID   = -253,
    XLM_ERROR_MACHINE_INVALID = -254,
    /* sessions and text */
    XLM_ERROR_SESSION_UNKNOWN   = -300, /* the conversation was lost */
    XLM_ERROR_SESSION_BUSY      = -301, /* one answer at a time */
    XLM_ERROR_TOO_MANY_SESSIONS = -302,
    XLM_ERROR_CONTEXT_OVERFLOW  = -303,
    XLM_ERROR_SAMPLING_INVALID  = -304,
    XLM_ERROR_GRAMMAR_INVALID   = -305,
    XLM_ERROR_TEMPLATE_INVALID  = -306,
    XLM_ERROR_CANCELLED         = -307,
    /* endpoints */
    XLM_ERROR_ENDPOINT_IN_USE    = -400,
    XLM_ERROR_ENDPOINT_INVALID   = -401,
    XLM_ERROR_ENDPOINT_TOO_LONG  = -402,
    XLM_ERROR_ENDPOINT_NOT_LOCAL = -403,
    XLM_ERROR_ENDPOINT_FORBIDDEN = -404,
    /* images */
    XLM_ERROR_IMAGE_CORRUPT        = -320, /* the file cannot be decoded */
    XLM_ERROR_IMAGE_EMPTY          = -321,
    XLM_ERROR_IMAGE_TOO_LARGE      = -322,
    XLM_ERROR_IMAGE_ANIMATED       = -323,
    XLM_ERROR_IMAGE_UNSUPPORTED    = -324, /* a format or a colour space that is not taken */
    XLM_ERROR_IMAGE_UNKNOWN        = -325,
    XLM_ERROR_IMAGE_UPLOAD_INVALID = -326,
    XLM_ERROR_IMAGE_HASH_MISMATCH  = -327,
    XLM_ERROR_IMAGE_STORE_FULL     = -328, /* the images of living conversations fill the broker's store */
    XLM_ERROR_TOO_MANY_IMAGES      = -329, /* for one turn, or for the context */
    XLM_ERROR_VISION_UNAVAILABLE   = -330, /* the model takes no images */
    /* model files */
    XLM_ERROR_MODEL_NOT_FOUND            = -500,
    XLM_ERROR_MODEL_IS_DIRECTORY         = -501,
    XLM_ERROR_MODEL_UNREADABLE           = -502,
    XLM_ERROR_MODEL_EMPTY                = -503,
    XLM_ERROR_MODEL_BAD_MAGIC            = -504,
    XLM_ERROR_MODEL_TRUNCATED            = -505,
    XLM_ERROR_MODEL_UNKNOWN_ARCHITECTURE = -506,
    XLM_ERROR_MODEL_MISSING_TOKENIZER    = -507,
    XLM_ERROR_MODEL_TOO_LARGE            = -508,
    XLM_ERROR_MODEL_INVALID              = -509,
    XLM_ERROR_PROJECTOR_NOT_FOUND        = -510,
    XLM_ERROR_PROJECTOR_INVALID          = -511,
    XLM_ERROR_PROJECTOR_MISMATCH         = -512,
    /* devices */
    XLM_ERROR_DEVICE_NOT_FOUND     = -600,
    XLM_ERROR_DEVICE_LOST          = -601,
    XLM_ERROR_DEVICE_OUT_OF_MEMORY = -602,
    XLM_ERROR_ABI_MISMATCH         = -603,
    /* engine and broker */
    XLM_ERROR_ENGINE_STARTING   = -700,
    XLM_ERROR_ENGINE_RESTARTING = -701,
    XLM_ERROR_ENGINE_FAILED     = -702,
    XLM_ERROR_BROKER_GONE       = -703, /* the connection was lost; connecting goes on by itself */
    XLM_ERROR_TIMEOUT           = -704,
    XLM_ERROR_OVERLOADED        = -705, /* too many requests under way */
    XLM_ERROR_INTERNAL          = -706,
    XLM_ERROR_NOT_READY         = -707  /* no broker has answered yet; connecting goes on by itself */
};

/** Whether a result says that there is no connection now: none yet, no more, or none because the game stood still for
 *  longer than its lease lasts (a debugger). Nothing is wrong with the call: connecting goes on by itself, and a cap or
 *  a reservation has been kept. */
static inline int xlm_is_disconnected(xlm_result result) {
    return result == XLM_ERROR_NOT_READY || result == XLM_ERROR_BROKER_GONE || result == XLM_ERROR_LEASE_EXPIRED;
}

/** Whose fault an error is. */
typedef uint32_t xlm_fault;
enum {
    XLM_FAULT_NONE   = 0,
    XLM_FAULT_CALLER = 1, /* the game: change the call */
    XLM_FAULT_BROKER = 2, /* xlm-broker, or the way to it */
    XLM_FAULT_ENGINE = 3, /* the inference process */
    XLM_FAULT_DEVICE = 4, /* GPU or driver */
    XLM_FAULT_MODEL  = 5  /* the model file */
};

/** An error in words. Strings of xlm_last_error() live until the next call that fails on the same thread. */
typedef struct xlm_error {
    uint32_t   struct_size;
    xlm_result result;
    xlm_fault  fault;
    uint32_t   retryable;     /* 1: the same call may succeed later */
    xlm_str    name;          /* as the protocol spells it: "broker_gone" */
    xlm_str    message;       /* what happened; for a log, not for a player */
    xlm_str    hint;          /* what to do next; may be empty */
    uint64_t   minimum_bytes; /* of XLM_ERROR_BUDGET_INFEASIBLE: the least cap that would do; else 0 */
} xlm_error;
#define XLM_ERROR_INIT \
    { XLM_SIZE_OF(xlm_error), XLM_SUCCESS, XLM_FAULT_NONE, 0, XLM_STR_INIT, XLM_STR_INIT, XLM_STR_INIT, 0 }

/* ---- events -------------------------------------------------------------------------------------------------- */

/** The client of one game: a connection that repairs itself, a lease, sessions. */
typedef struct xlm_client xlm_client;
/** A conversation with one character. */
typedef struct xlm_session xlm_session;

/** Whether calls are taken now. */
typedef uint32_t xlm_client_state;
enum {
    XLM_CLIENT_CONNECTING = 0, /* no broker yet, or again. In the first second of a client requests wait for the
                                  connection; then they fail at once, see xlm_is_disconnected() */
    XLM_CLIENT_READY      = 1,
    XLM_CLIENT_FAILED     = 2  /* for good (the broker speaks another protocol version): destroy the client */
};

/** How far a session is. */
typedef uint32_t xlm_session_state;
enum {
    XLM_SESSION_OPENING = 0, /* asked for, or waiting for a broker; say() is taken already, and waits */
    XLM_SESSION_OPEN    = 1,
    XLM_SESSION_LOST    = 2  /* refused: only xlm_session_close() is left */
};

/** What an event tells. Values may be added: ignore those you do not know. */
typedef uint32_t xlm_event_kind;
enum {
    XLM_EVENT_NONE            = 0,
    XLM_EVENT_STATE           = 1,  /* `state`; not READY: `error` says why. Also once where no broker answered in
                                       the first second: CONNECTING, with XLM_ERROR_NOT_READY */
    XLM_EVENT_LEASE           = 2,  /* a budget or reservation ticket `id` is done: `lease`, or `error` */
    XLM_EVENT_STATUS          = 3,  /* a status ticket `id` is done: `status`, or `error` */
    XLM_EVENT_SESSION_OPENED  = 4,  /* `session`; `text` is its id, to resume it in a later connection */
    XLM_EVENT_SESSION_RESUMED = 5,  /* after a reconnection, as the two below behind the STATE that says READY:
                                       nothing was forgotten */
    XLM_EVENT_SESSION_RESET   = 6,  /* after a reconnection: open again, but the broker knew it no more, so it
                                       begins anew with its system text */
    XLM_EVENT_SESSION_LOST    = 7,  /* `error` says why it was refused */
    XLM_EVENT_TOKENS          = 8,  /* `text`: the next piece of answer `id`, whole characters */
    XLM_EVENT_DONE            = 9,  /* answer `id` is complete: `finish_reason`, `usage`, `text` is all of it */
    XLM_EVENT_FAILED          = 10, /* answer `id` ended with `error`; `text` is what there was */
    XLM_EVENT_NOTICE          = 11, /* `notice`: something happened that no request asked for */
    XLM_EVENT_IMAGES_RELEASED = 12  /* the images lent to answer `id` are the game's again; to the client, also where
                                       the session was closed */
};

/** Why an answer ended. */
typedef uint32_t xlm_finish_reason;
enum { XLM_FINISH_NONE = 0, XLM_FINISH_STOP = 1, XLM_FINISH_LENGTH = 2, XLM_FINISH_CANCELLED = 3 };

/** Kinds of notices. Values may be added; a notice of a newer broker is XLM_NOTICE_OTHER. */
typedef uint32_t xlm_notice_kind;
enum {
    XLM_NOTICE_OTHER             = 0,
    XLM_NOTICE_ENGINE_RESTARTING = 1, /* the engine died; it is started again, and conversations go on */
    XLM_NOTICE_ENGINE_READY      = 2, /* the model is loaded, at first or again */
    XLM_NOTICE_ENGINE_FAILED     = 3, /* it died too often in a row */
    XLM_NOTICE_DEVICE_LOST       = 4, /* the GPU is gone; generation goes on on the CPU */
    XLM_NOTICE_DEVICE_RESTORED   = 5,
    XLM_NOTICE_DEGRADED          = 6, /* slower than planned */
    XLM_NOTICE_BUDGET_CHANGED    = 7, /* for another reason than this game's request */
    XLM_NOTICE_LEASE_EXPIRING    = 8, /* the broker misses heartbeats */
    XLM_NOTICE_SHUTDOWN          = 9, /* the broker ends */
    XLM_NOTICE_RESTORE_FAILED    = 10, /* after a reconnection the cap or reservation was refused: `error` */
    XLM_NOTICE_ENGINE_UNRESPONSIVE = 11 /* a budget waits for an engine that does not answer; soon it is killed */
};

/** What holds of the device now. Three counts, because they come from three places and may differ for a moment. */
typedef struct xlm_lease {
    uint32_t struct_size;
    uint32_t deadline_met;      /* 1: the bytes were released before the deadline, or there was none */
    uint64_t granted_bytes;     /* the budget in force for the model, after all clients' wishes */
    uint64_t used_bytes;        /* device memory the model holds, by the engine's ledger */
    uint64_t device_used_bytes; /* the device's own counter */
    uint64_t cap_bytes;         /* this client's cap; XLM_NO_CAP: none */
    uint64_t reserved_bytes;    /* this client's reservation */
    uint64_t release_ns;        /* from the broker's receipt of the request to the bytes released */
} xlm_lease;
#define XLM_LEASE_INIT { XLM_SIZE_OF(xlm_lease), 0, 0, 0, 0, 0, 0, 0 }

/** What an answer cost. */
typedef struct xlm_usage {
    uint32_t struct_size;
    uint32_t prompt_tokens;     /* of this turn, with the conversation before it */
    uint32_t cached_tokens;     /* of those, found in the KV cache */
    uint32_t completion_tokens;
    uint64_t ttft_ns;           /* time to first token */
    uint64_t tpot_ns;           /* mean time per output token after the first */
} xlm_usage;
#define XLM_USAGE_INIT { XLM_SIZE_OF(xlm_usage), 0, 0, 0, 0, 0 }

/** How far the broker's engine is. */
typedef uint32_t xlm_engine_state;
enum {
    XLM_ENGINE_UNKNOWN    = 0,
    XLM_ENGINE_STARTING   = 1,
    XLM_ENGINE_LOADING    = 2,
    XLM_ENGINE_READY      = 3,
    XLM_ENGINE_RESTARTING = 4,
    XLM_ENGINE_FAILED     = 5,
    XLM_ENGINE_STOPPED    = 6
};

/** The broker's state, as far as a game shows it; `json` has everything (docs/protocol.md, "Status"). */
typedef struct xlm_status_info {
    uint32_t         struct_size;
    xlm_engine_state engine_state;
    uint32_t         engine_restarts;
    uint32_t         device_lost;         /* 1: generation is on the CPU */
    uint64_t         device_total_bytes;
    uint64_t         device_used_bytes;   /* by the engine's ledger */
    uint64_t         budget_bytes;        /* in force */
    uint64_t         minimum_bytes;       /* the least budget that runs something on the device */
    uint64_t         demand_bytes;        /* the budget that holds everything */
    double           tokens_per_s;
    xlm_str          device_kind;         /* "cuda", "vulkan", "sim", ... */
    xlm_str          model_name;
    xlm_str          schedule_summary;    /* a line for people */
    xlm_str          json;                /* the whole message, one JSON object */
    uint64_t         resident_bytes;      /* of device_used_bytes: weights and conversations; the rest is scratch */
} xlm_status_info;
#define XLM_STATUS_INFO_INIT \
    { XLM_SIZE_OF(xlm_status_info), XLM_ENGINE_UNKNOWN, 0, 0, 0, 0, 0, 0, 0, 0.0, \
      XLM_STR_INIT, XLM_STR_INIT, XLM_STR_INIT, XLM_STR_INIT, 0 }

/** One event. Pointers and strings in it live until the callback returns, or, where it was taken with
 *  xlm_client_next_event(), until the next call of that or of xlm_client_poll(). */
typedef struct xlm_event {
    uint32_t               struct_size;
    xlm_event_kind         kind;
    xlm_client            *client;
    xlm_session           *session;       /* whose; NULL: the client's */
    uint64_t               id;            /* ticket or answer; 0: none */
    xlm_client_state       state;         /* of STATE */
    xlm_finish_reason      finish_reason; /* of DONE */
    xlm_notice_kind        notice;        /* of NOTICE */
    uint32_t               n_token_ids;
    const int32_t         *token_ids;     /* of TOKENS: the tokens `text` came of, n_token_ids of them */
    xlm_str                text;          /* see the kinds; of NOTICE: a sentence */
    xlm_str                detail;        /* of NOTICE: one JSON object, see docs/protocol.md */
    const xlm_error       *error;         /* NULL: all is well */
    const xlm_lease       *lease;         /* of LEASE, and of NOTICE with BUDGET_CHANGED */
    const xlm_usage       *usage;         /* of DONE */
    const xlm_status_info *status;        /* of STATUS */
} xlm_event;
#define XLM_EVENT_INIT \
    { XLM_SIZE_OF(xlm_event), XLM_EVENT_NONE, NULL, NULL, 0, XLM_CLIENT_CONNECTING, XLM_FINISH_NONE, \
      XLM_NOTICE_OTHER, 0, NULL, XLM_STR_INIT, XLM_STR_INIT, NULL, NULL, NULL, NULL }

/** Called within xlm_client_poll(), on its thread. It may call every function but xlm_client_poll(),
 *  xlm_client_next_event(), xlm_client_destroy() and those named *_wait; closing its own session is fine.
 *  Do not let a C++ exception out of it. */
typedef void (*xlm_event_fn)(void *user_data, const xlm_event *event);

/* ---- hooks --------------------------------------------------------------------------------------------------- */

/** Memory for everything the library keeps. Both functions are called from the game's threads and from the
 *  library's own at once: they must be thread-safe, and must not call the library. `allocate` answers NULL when
 *  there is no memory. `alignment` is a power of two. libzmq, a transient parse stack and the C++ runtime's
 *  threads use malloc. */
typedef struct xlm_allocator {
    uint32_t struct_size;
    void    *user_data;
    void *(*allocate)(void *user_data, size_t size_bytes, size_t alignment);
    void (*release)(void *user_data, void *memory, size_t size_bytes, size_t alignment);
} xlm_allocator;
#define XLM_ALLOCATOR_INIT { XLM_SIZE_OF(xlm_allocator), NULL, NULL, NULL }

/** How much a log line matters. */
typedef uint32_t xlm_log_level;
enum { XLM_LOG_DEBUG = 0, XLM_LOG_INFO = 1, XLM_LOG_WARNING = 2, XLM_LOG_ERROR = 3 };

/** Takes one log line, without a line end. Called, as all callbacks, only within xlm_client_poll() or
 *  xlm_client_next_event(). */
typedef void (*xlm_log_fn)(void *user_data, xlm_log_level level, xlm_str line);

/* ---- client -------------------------------------------------------------------------------------------------- */

typedef struct xlm_client_options {
    uint32_t             struct_size;
    uint32_t             max_sessions;   /* open at once, 1 to 4096; default 64 */
    xlm_str              name;           /* of the game: sessions are resumed by name; 1 to 256 characters */
    xlm_str              endpoint;       /* ipc:///absolute/path or tcp://127.0.0.1:PORT; empty: $XLM_ENDPOINT,
                                            else the broker's default */
    xlm_str              server_key;     /* of a tcp broker: 40 characters or their file; empty: $XLM_SERVER_KEY,
                                            else the default file, else no encryption */
    xlm_event_fn         on_event;       /* events of sessions without a callback of their own come here too */
    void                *user_data;      /* given to on_event */
    xlm_log_fn           on_log;         /* NULL: no log */
    void                *log_user_data;
    xlm_log_level        log_level;      /* the least that matters; default XLM_LOG_INFO */
    uint32_t             goodbye_ms;     /* how long destroy waits for the farewell to leave; default 200 */
    const xlm_allocator *allocator;      /* NULL: the C++ runtime's. Copied; user_data must outlive the client */
} xlm_client_options;
#define XLM_CLIENT_OPTIONS_INIT \
    { XLM_SIZE_OF(xlm_client_options), 64, XLM_STR_INIT, XLM_STR_INIT, XLM_STR_INIT, NULL, NULL, NULL, NULL, \
      XLM_LOG_INFO, 200, NULL }

/** The version of the library that is loaded, as XLM_VERSION.
 *
 *  Ownership: nothing. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API uint32_t xlm_version(void);

/** What went wrong in the calling thread's last call that failed. With none: a success.
 *
 *  @param error  filled in
 *  @return XLM_ERROR_INVALID_ARGUMENT: `error` is NULL or its struct_size 0
 *
 *  Ownership: the strings are the library's, until the next failing call of this thread.
 *  Threads: any thread, each with its own last error. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_last_error(xlm_error *error);

/** The same as one line for a log or a terminal: "not_ready: no broker answers yet (start one: ...)". With none: "".
 *
 *      if (xlm_client_create(&options, &client) != XLM_SUCCESS)
 *          return fprintf(stderr, "%s\n", xlm_last_error_line()), 1;
 *
 *  @return ends with a NUL; never NULL
 *
 *  Ownership: the text is the library's, until the next call of this, or that fails, on this thread.
 *  Threads: any thread, each with its own last error. Blocking: never. Since: 0.1.0 */
XLM_API const char *xlm_last_error_line(void);

/** What a code means in general: name, fault, retryable, hint. A code nobody knows is described as such.
 *
 *  Ownership: the strings are constants. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_result_describe(xlm_result result, xlm_error *error);

/** Starts a client. It connects in the background, and again whenever the broker comes back: with back-off,
 *  taking up its sessions, asking again for its cap and its reservation. XLM_EVENT_STATE tells.
 *
 *  @param options  copied
 *  @param client   receives the handle; NULL on failure
 *  @return XLM_ERROR_INVALID_ARGUMENT, _INVALID_UTF8, _OUT_OF_MEMORY, _ENDPOINT_INVALID, _ENDPOINT_TOO_LONG,
 *          _ENDPOINT_NOT_LOCAL, _ENDPOINT_FORBIDDEN (the key file), _INTERNAL (no thread, no socket)
 *
 *  Ownership: the handle is yours; end it with xlm_client_destroy(). Threads: any thread.
 *  Blocking: never for a broker; it starts threads (about 0.1 ms). Since: 0.1.0 */
XLM_API xlm_result xlm_client_create(const xlm_client_options *options, xlm_client **client);

/** Ends a client: says goodbye, so that its lease, cap, reservation and sessions end at once, and frees it with
 *  all its sessions. Whatever is under way is dropped without an event. NULL is fine.
 *
 *  @return XLM_ERROR_IN_CALLBACK: called within a callback; nothing has happened. XLM_ERROR_FORKED: in a child
 *          process the memory is left as it is
 *
 *  Ownership: `client` and its sessions are gone. Threads: any thread, while no other is in a call of this client.
 *  Blocking: yes, at most options.goodbye_ms and a little. Since: 0.1.0 */
XLM_API xlm_result xlm_client_destroy(xlm_client *client);

/** Calls the callbacks of what has arrived. Call it once a frame.
 *
 *  The first call makes its thread the poll thread. Events without any callback are dropped; to take them one by
 *  one, use xlm_client_next_event() instead.
 *
 *  @param max_time_ns  looks for the next event only while less has passed; the first one always comes.
 *                      UINT64_MAX: everything that is there
 *  @return the number of events handled; or XLM_ERROR_WRONG_THREAD, _IN_CALLBACK, _INVALID_ARGUMENT, _FORKED,
 *          _CALLBACK_THREW
 *
 *  Ownership: nothing. Threads: the poll thread. Blocking: never, but for your callbacks. Since: 0.1.0 */
XLM_API int32_t xlm_client_poll(xlm_client *client, uint64_t max_time_ns);

/** Takes the next event, for programs that want no callbacks. Event callbacks are not called.
 *
 *  @param event  filled in (XLM_EVENT_INIT first); its pointers live until the next call of this or of poll
 *  @return 1: here is one; 0: none; or an error as of xlm_client_poll()
 *
 *  Ownership: what `event` points to is the library's. Threads: the poll thread. Blocking: never. Since: 0.1.0 */
XLM_API int32_t xlm_client_next_event(xlm_client *client, xlm_event *event);

/** Makes the calling thread the poll thread, for engines that move their main loop to another one.
 *
 *  @return XLM_ERROR_IN_CALLBACK, _INVALID_ARGUMENT
 *
 *  Ownership: nothing. Threads: any thread, while no other polls. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_client_attach_thread(xlm_client *client);

/** Whether the client is connected now. A NULL client is XLM_CLIENT_FAILED.
 *
 *  Ownership: nothing. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_client_state xlm_client_get_state(const xlm_client *client);

/** The lease as the broker last told it. All zero before the first answer.
 *
 *  @return XLM_ERROR_INVALID_ARGUMENT
 *
 *  Ownership: `lease` is yours. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_client_get_lease(const xlm_client *client, xlm_lease *lease);

/** For tools: waits until the client is READY.
 *
 *  @return XLM_ERROR_TIMEOUT; XLM_ERROR_IN_CALLBACK; or the error that made it FAILED
 *
 *  Ownership: nothing. Threads: any thread, not within a callback. Blocking: up to `timeout_ns`. Since: 0.1.0 */
XLM_API xlm_result xlm_client_ready_wait(xlm_client *client, uint64_t timeout_ns);

/** For tools: waits until there is an event to poll for. Returns at once if there is one.
 *
 *  @return XLM_ERROR_TIMEOUT, _WRONG_THREAD, _IN_CALLBACK, _INVALID_ARGUMENT, _FORKED
 *
 *  Ownership: nothing. Threads: the poll thread, not within a callback. Blocking: up to `timeout_ns`. Since: 0.1.0 */
XLM_API xlm_result xlm_client_event_wait(xlm_client *client, uint64_t timeout_ns);

/* ---- budget -------------------------------------------------------------------------------------------------- */

/** cap_bytes: no limit of this game's. */
#define XLM_NO_CAP UINT64_MAX
/** deadline_ns: as fast as can be, and deadline_met always 1. */
#define XLM_NO_DEADLINE UINT64_MAX

/** Which caps to take. */
typedef uint32_t xlm_require;
enum {
    XLM_REQUIRE_ANY    = 0, /* any: with too little, or 0, the model runs on the CPU */
    XLM_REQUIRE_DEVICE = 1  /* refuse a cap too small to run anything on the device */
};

/** How much of the device the model may use. */
typedef struct xlm_budget {
    uint32_t    struct_size;
    xlm_require require;
    uint64_t    cap_bytes;   /* XLM_NO_CAP lifts the cap; at most 2^62 - 1 else */
    uint64_t    deadline_ns; /* when the bytes shall be free, from the broker's receipt; at most a day */
} xlm_budget;
#define XLM_BUDGET_INIT { XLM_SIZE_OF(xlm_budget), XLM_REQUIRE_ANY, XLM_NO_CAP, XLM_NO_DEADLINE }

/** Sets this game's cap. The ticket's XLM_EVENT_LEASE comes once the bytes are really released.
 *
 *  The cap is a wish that is kept: where there is no connection now, it is put to the broker as soon as there is one.
 *  A client that has just been created takes it at once: the event comes with the first connection, or says within a
 *  second or so that no broker answers (XLM_ERROR_NOT_READY).
 *
 *  @param ticket  receives the id of the event to come; may be NULL
 *  @return XLM_ERROR_NOT_READY, _BROKER_GONE, _LEASE_EXPIRED (kept, no event comes: xlm_is_disconnected()),
 *          _OVERLOADED (not kept), _BUDGET_INVALID, _INVALID_ARGUMENT, _FORKED
 *
 *  Ownership: nothing. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_client_set_budget(xlm_client *client, const xlm_budget *budget, uint64_t *ticket);

/** For tools: sets the cap and waits until the bytes are released. No event comes for it.
 *
 *  @param lease  what holds then; may be NULL
 *  @return as xlm_client_set_budget(), and XLM_ERROR_TIMEOUT (the cap stays asked for), _BUDGET_INFEASIBLE,
 *          _IN_CALLBACK, or another error of the broker
 *
 *  Ownership: `lease` is yours. Threads: any thread, not within a callback. Blocking: up to `timeout_ns`.
 *  Since: 0.1.0 */
XLM_API xlm_result xlm_client_set_budget_wait(xlm_client *client, const xlm_budget *budget, uint64_t timeout_ns,
                                              xlm_lease *lease);

/** Keeps `bytes` of the device free for this game; 0 ends it. Otherwise as xlm_client_set_budget().
 *
 *  @param deadline_ns  when they shall be free, or XLM_NO_DEADLINE
 *  @return as xlm_client_set_budget()
 *
 *  Ownership: nothing. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_client_reserve(xlm_client *client, uint64_t bytes, uint64_t deadline_ns, uint64_t *ticket);

/** For tools: reserves and waits. As xlm_client_set_budget_wait().
 *
 *  Ownership: `lease` is yours. Threads: any thread, not within a callback. Blocking: up to `timeout_ns`.
 *  Since: 0.1.0 */
XLM_API xlm_result xlm_client_reserve_wait(xlm_client *client, uint64_t bytes, uint64_t deadline_ns,
                                           uint64_t timeout_ns, xlm_lease *lease);

/** Asks for the broker's state; XLM_EVENT_STATUS brings it.
 *
 *  @return XLM_ERROR_NOT_READY, _BROKER_GONE, _LEASE_EXPIRED, _OVERLOADED, _INVALID_ARGUMENT, _FORKED
 *
 *  Ownership: nothing. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_client_request_status(xlm_client *client, uint64_t *ticket);

/** What the broker may do to hold the frame time. */
typedef uint32_t xlm_pacing;
enum {
    XLM_PACING_OFF    = 0, /* measure only */
    XLM_PACING_STEPS  = 1, /* space out decode steps */
    XLM_PACING_SHRINK = 2  /* and take less of the device while that does not do */
};

/** One frame of the game. */
typedef struct xlm_frame_info {
    uint32_t   struct_size;
    xlm_pacing pacing;    /* default XLM_PACING_STEPS */
    uint64_t   frame_ns;  /* how long it took, begin to begin */
    uint64_t   target_ns; /* how long it may take: 16666667 for 60 fps */
    uint64_t   gpu_ns;    /* its time on the GPU; 0: not measured */
} xlm_frame_info;
#define XLM_FRAME_INFO_INIT { XLM_SIZE_OF(xlm_frame_info), XLM_PACING_STEPS, 0, 16666667, 0 }

/** Reports a frame. Call it every frame: reports are summed up and sent about ten times a second. A broker that
 *  does not know them is not sent any more.
 *
 *  @return XLM_ERROR_INVALID_ARGUMENT, _FORKED; a missing broker is no error
 *
 *  Ownership: nothing. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_frame(xlm_client *client, const xlm_frame_info *frame);

/* ---- sessions ------------------------------------------------------------------------------------------------ */

/** What happens when a conversation no longer fits its context. */
typedef uint32_t xlm_overflow;
enum {
    XLM_OVERFLOW_ERROR = 0, /* the turn fails with XLM_ERROR_CONTEXT_OVERFLOW */
    XLM_OVERFLOW_SHIFT = 1  /* the oldest turns are forgotten */
};

typedef struct xlm_session_options {
    uint32_t     struct_size;
    xlm_overflow overflow;
    xlm_str      system;    /* who the character is; at most 524,288 characters */
    xlm_str      resume;    /* id of an earlier session of this game's name, or empty; if the broker knows it no
                               more, the session begins anew (XLM_EVENT_SESSION_RESET) */
    xlm_event_fn on_event;  /* NULL: the client's */
    void        *user_data; /* given to on_event */
} xlm_session_options;
#define XLM_SESSION_OPTIONS_INIT \
    { XLM_SIZE_OF(xlm_session_options), XLM_OVERFLOW_ERROR, XLM_STR_INIT, XLM_STR_INIT, NULL, NULL }

/** What is known of a session. */
typedef struct xlm_session_info {
    uint32_t          struct_size;
    xlm_session_state state;
    uint32_t          n_ctx; /* tokens its context holds; 0 before it is open */
    uint32_t          busy;  /* 1: an answer is under way */
    xlm_str           id;    /* empty before it is open; lives until the next poll or next_event */
} xlm_session_info;
#define XLM_SESSION_INFO_INIT { XLM_SIZE_OF(xlm_session_info), XLM_SESSION_OPENING, 0, 0, XLM_STR_INIT }

/** Opens a conversation. Returns at once, with or without a broker: the session is opened as soon as there is one,
 *  and taken up again after each reconnection. XLM_EVENT_SESSION_* tell.
 *
 *  @param options  copied
 *  @param session  receives the handle; NULL on failure
 *  @return XLM_ERROR_TOO_MANY_SESSIONS (options.max_sessions, or closed ones were not polled away yet),
 *          _OVERLOADED, _INVALID_UTF8, _FRAME_TOO_LARGE, _INVALID_ARGUMENT, _OUT_OF_MEMORY, _FORKED
 *
 *  Ownership: the handle is yours; end it with xlm_session_close(), or with its client. Threads: any thread.
 *  Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_session_open(xlm_client *client, const xlm_session_options *options, xlm_session **session);

/** Ends a conversation for good; an answer under way is cancelled. No event of it comes after this, not even one
 *  that has arrived already. May be called within a callback of the session itself. NULL is fine.
 *
 *  @return XLM_ERROR_INVALID_HANDLE: it was closed before; _OVERLOADED: try again, the handle is still good
 *
 *  Ownership: `session` is gone. Threads: any thread, while no other is in a call of this session.
 *  Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_session_close(xlm_session *session);

/** What is known of a session.
 *
 *  @return XLM_ERROR_INVALID_HANDLE, _INVALID_ARGUMENT
 *
 *  Ownership: `info->id` is the library's. Threads: the poll thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_session_get_info(const xlm_session *session, xlm_session_info *info);

/** How the bytes of an image are laid out. */
typedef uint32_t xlm_image_format;
enum {
    XLM_IMAGE_ENCODED = 0, /* a PNG, JPEG, WebP, BMP or GIF file */
    XLM_IMAGE_RGBA8   = 1, /* 4 bytes a pixel, in this order; alpha, not premultiplied, is laid over white */
    XLM_IMAGE_RGBX8   = 2, /* the fourth byte is ignored: for frames, whose alpha means nothing */
    XLM_IMAGE_BGRA8   = 3,
    XLM_IMAGE_BGRX8   = 4,
    XLM_IMAGE_RGB8    = 5
};

/** Gives an image's bytes back; see xlm_image.release. As all callbacks: called only within xlm_client_poll() or
 *  xlm_client_next_event(), and for what is left at the end within xlm_client_destroy(), on the thread that calls it.
 *  It may unmap or free `data`, and in a poll it may call what an xlm_event_fn may call. */
typedef void (*xlm_release_fn)(void *user_data, const void *data);

/** What a model is shown. Hashing and upload are the library's thread's work, in pieces.
 *
 *  The bytes are copied before the call returns, so the buffer of a frame read-back may be unmapped at once. For raw
 *  1440p that takes the game's thread milliseconds, most of it for fresh memory.
 *  With `release`, or `lent` 1, nothing is copied and nothing allocated: xlm_session_say() costs the game's thread as
 *  much as without images. The bytes are the library's to read, and must not change, until it gives them back: once for
 *  each image of a call that succeeded, as soon as the images of that call are at the broker or will not be sent any
 *  more (cancelled, failed, session closed). `release` is called then; or, where it is NULL, XLM_EVENT_IMAGES_RELEASED
 *  comes, once for all such images of an answer. xlm_client_destroy() gives back what is left, without an event. Of a
 *  call that failed nothing was taken. */
typedef struct xlm_image {
    uint32_t         struct_size;
    xlm_image_format format;
    const void      *data;
    size_t           size_bytes;   /* of data; more than the rows need is fine */
    uint32_t         width;        /* pixels; at most 16,384 a side, 40 million in all; 0 of XLM_IMAGE_ENCODED */
    uint32_t         height;
    size_t           stride_bytes; /* from row to row; 0: rows without padding */
    uint32_t         bottom_up;    /* 1: the first row in memory is the lowest, as in OpenGL and Unity */
    uint32_t         lent;         /* 1: `data` is lent, not copied. 0: so it is with a `release` alone */
    xlm_release_fn   release;      /* gives it back; NULL: by an event, or copied */
    void            *release_user_data;
} xlm_image;
#define XLM_IMAGE_INIT { XLM_SIZE_OF(xlm_image), XLM_IMAGE_ENCODED, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL }

/** The seed: a fresh one each time. */
#define XLM_RANDOM_SEED UINT64_MAX

/** How to answer. */
typedef struct xlm_say_options {
    uint32_t       struct_size;
    uint32_t       max_tokens;     /* 1 to 1,000,000; default 256 */
    double         temperature;    /* 0 to 10; 0: always the likeliest token; default 0.8 */
    double         top_p;          /* 0 to 1; default 0.95 */
    double         min_p;          /* 0 to 1; default 0.05 */
    double         repeat_penalty; /* more than 0, at most 10; default 1: none */
    uint32_t       top_k;          /* at most 1,000,000; 0: off; default 40 */
    uint32_t       repeat_last_n;  /* at most 65,536; default 64 */
    uint64_t       seed;           /* below 2^32, or XLM_RANDOM_SEED */
    xlm_str        grammar;        /* GBNF, or empty */
    xlm_str        json_schema;    /* a JSON schema as JSON text, or empty; not both */
    const xlm_str *stop;           /* texts that end the answer, each of 1 to 256 characters */
    uint32_t       n_stop;         /* at most 16 */
    int32_t        priority;       /* -100 to 100; more comes first; default 0 */
    const xlm_image *images;       /* what the model sees before the text; all with the same struct_size */
    uint32_t       n_images;       /* at most 64; the broker may take fewer */
} xlm_say_options;
#define XLM_SAY_OPTIONS_INIT \
    { XLM_SIZE_OF(xlm_say_options), 256, 0.8, 0.95, 0.05, 1.0, 40, 64, XLM_RANDOM_SEED, XLM_STR_INIT, \
      XLM_STR_INIT, NULL, 0, 0, NULL, 0 }

/** Says something. The answer comes as XLM_EVENT_TOKENS ..., then one XLM_EVENT_DONE or XLM_EVENT_FAILED.
 *
 *  May be called right behind xlm_client_create() and xlm_session_open(): it waits for the connection. Where no broker
 *  answers within a second or so, XLM_EVENT_FAILED tells (XLM_ERROR_NOT_READY).
 *
 *  For images that are not lent, memory is allocated for their copies and freed when they are at the broker. An image
 *  that the broker has already is not sent again. What is wrong with an image's bytes is told by XLM_EVENT_FAILED.
 *
 *  @param text     what the player says; at most 524,288 characters
 *  @param options  NULL: the defaults
 *  @param answer   receives the id of the answer; may be NULL
 *  @return XLM_ERROR_NOT_READY, _BROKER_GONE, _LEASE_EXPIRED (no connection now: xlm_is_disconnected()),
 *          _SESSION_UNKNOWN (it is LOST), _SESSION_BUSY, _SAMPLING_INVALID, _GRAMMAR_INVALID (grammar and json_schema
 *          at once), _FRAME_TOO_LARGE, _INVALID_UTF8, _IMAGE_EMPTY, _IMAGE_TOO_LARGE, _IMAGE_UNSUPPORTED (format),
 *          _TOO_MANY_IMAGES, _INVALID_HANDLE, _INVALID_ARGUMENT, _OVERLOADED, _OUT_OF_MEMORY, _FORKED
 *
 *  Ownership: nothing, but for images that are lent, on success alone. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_session_say(xlm_session *session, xlm_str text, const xlm_say_options *options,
                                   uint64_t *answer);

/** Stops an answer: it ends soon, with XLM_EVENT_DONE and XLM_FINISH_CANCELLED. One that has ended is left alone.
 *
 *  @param answer  its id; 0: whatever this session is answering
 *  @return XLM_ERROR_INVALID_HANDLE, _OVERLOADED, _FORKED
 *
 *  Ownership: nothing. Threads: any thread. Blocking: never. Since: 0.1.0 */
XLM_API xlm_result xlm_session_cancel(xlm_session *session, uint64_t answer);

#ifdef __cplusplus
}
#endif

#endif /* XLM_H */
