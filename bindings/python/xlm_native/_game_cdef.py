"""Generated from native/include/xlm/xlm.h by `python -m xlm_native._generate_game`. Do not edit."""

from typing import Final

XLM: Final = """
typedef struct xlm_str {
const char *data;
size_t len;
} xlm_str;
typedef int32_t xlm_result;
enum {
XLM_SUCCESS = 0,
XLM_ERROR_INVALID_ARGUMENT = -1,
XLM_ERROR_INVALID_UTF8 = -2,
XLM_ERROR_INVALID_HANDLE = -3,
XLM_ERROR_OUT_OF_MEMORY = -4,
XLM_ERROR_WRONG_THREAD = -5,
XLM_ERROR_IN_CALLBACK = -6,
XLM_ERROR_FORKED = -7,
XLM_ERROR_UNKNOWN_CODE = -8,
XLM_ERROR_CALLBACK_THREW = -9,
XLM_ERROR_BAD_REQUEST = -100,
XLM_ERROR_UNKNOWN_TYPE = -101,
XLM_ERROR_FRAME_TOO_LARGE = -102,
XLM_ERROR_PROTOCOL_VERSION = -103,
XLM_ERROR_NOT_CONNECTED = -104,
XLM_ERROR_LEASE_EXPIRED = -105,
XLM_ERROR_TOO_MANY_CLIENTS = -106,
XLM_ERROR_OPTION_INVALID = -107,
XLM_ERROR_BUDGET_INFEASIBLE = -200,
XLM_ERROR_BUDGET_INVALID = -201,
XLM_ERROR_PROFILE_MISSING = -250,
XLM_ERROR_PROFILE_CORRUPT = -251,
XLM_ERROR_PROFILE_STALE = -252,
XLM_ERROR_SHAPE_INVALID = -253,
XLM_ERROR_MACHINE_INVALID = -254,
XLM_ERROR_SESSION_UNKNOWN = -300,
XLM_ERROR_SESSION_BUSY = -301,
XLM_ERROR_TOO_MANY_SESSIONS = -302,
XLM_ERROR_CONTEXT_OVERFLOW = -303,
XLM_ERROR_SAMPLING_INVALID = -304,
XLM_ERROR_GRAMMAR_INVALID = -305,
XLM_ERROR_TEMPLATE_INVALID = -306,
XLM_ERROR_CANCELLED = -307,
XLM_ERROR_ENDPOINT_IN_USE = -400,
XLM_ERROR_ENDPOINT_INVALID = -401,
XLM_ERROR_ENDPOINT_TOO_LONG = -402,
XLM_ERROR_ENDPOINT_NOT_LOCAL = -403,
XLM_ERROR_ENDPOINT_FORBIDDEN = -404,
XLM_ERROR_IMAGE_CORRUPT = -320,
XLM_ERROR_IMAGE_EMPTY = -321,
XLM_ERROR_IMAGE_TOO_LARGE = -322,
XLM_ERROR_IMAGE_ANIMATED = -323,
XLM_ERROR_IMAGE_UNSUPPORTED = -324,
XLM_ERROR_IMAGE_UNKNOWN = -325,
XLM_ERROR_IMAGE_UPLOAD_INVALID = -326,
XLM_ERROR_IMAGE_HASH_MISMATCH = -327,
XLM_ERROR_IMAGE_STORE_FULL = -328,
XLM_ERROR_TOO_MANY_IMAGES = -329,
XLM_ERROR_VISION_UNAVAILABLE = -330,
XLM_ERROR_MODEL_NOT_FOUND = -500,
XLM_ERROR_MODEL_IS_DIRECTORY = -501,
XLM_ERROR_MODEL_UNREADABLE = -502,
XLM_ERROR_MODEL_EMPTY = -503,
XLM_ERROR_MODEL_BAD_MAGIC = -504,
XLM_ERROR_MODEL_TRUNCATED = -505,
XLM_ERROR_MODEL_UNKNOWN_ARCHITECTURE = -506,
XLM_ERROR_MODEL_MISSING_TOKENIZER = -507,
XLM_ERROR_MODEL_TOO_LARGE = -508,
XLM_ERROR_MODEL_INVALID = -509,
XLM_ERROR_PROJECTOR_NOT_FOUND = -510,
XLM_ERROR_PROJECTOR_INVALID = -511,
XLM_ERROR_PROJECTOR_MISMATCH = -512,
XLM_ERROR_DEVICE_NOT_FOUND = -600,
XLM_ERROR_DEVICE_LOST = -601,
XLM_ERROR_DEVICE_OUT_OF_MEMORY = -602,
XLM_ERROR_ABI_MISMATCH = -603,
XLM_ERROR_ENGINE_STARTING = -700,
XLM_ERROR_ENGINE_RESTARTING = -701,
XLM_ERROR_ENGINE_FAILED = -702,
XLM_ERROR_BROKER_GONE = -703,
XLM_ERROR_TIMEOUT = -704,
XLM_ERROR_OVERLOADED = -705,
XLM_ERROR_INTERNAL = -706,
XLM_ERROR_NOT_READY = -707
};
typedef uint32_t xlm_fault;
enum {
XLM_FAULT_NONE = 0,
XLM_FAULT_CALLER = 1,
XLM_FAULT_BROKER = 2,
XLM_FAULT_ENGINE = 3,
XLM_FAULT_DEVICE = 4,
XLM_FAULT_MODEL = 5
};
typedef struct xlm_error {
uint32_t struct_size;
xlm_result result;
xlm_fault fault;
uint32_t retryable;
xlm_str name;
xlm_str message;
xlm_str hint;
uint64_t minimum_bytes;
} xlm_error;
typedef struct xlm_client xlm_client;
typedef struct xlm_session xlm_session;
typedef uint32_t xlm_client_state;
enum {
XLM_CLIENT_CONNECTING = 0,
XLM_CLIENT_READY = 1,
XLM_CLIENT_FAILED = 2
};
typedef uint32_t xlm_session_state;
enum {
XLM_SESSION_OPENING = 0,
XLM_SESSION_OPEN = 1,
XLM_SESSION_LOST = 2
};
typedef uint32_t xlm_event_kind;
enum {
XLM_EVENT_NONE = 0,
XLM_EVENT_STATE = 1,
XLM_EVENT_LEASE = 2,
XLM_EVENT_STATUS = 3,
XLM_EVENT_SESSION_OPENED = 4,
XLM_EVENT_SESSION_RESUMED = 5,
XLM_EVENT_SESSION_RESET = 6,
XLM_EVENT_SESSION_LOST = 7,
XLM_EVENT_TOKENS = 8,
XLM_EVENT_DONE = 9,
XLM_EVENT_FAILED = 10,
XLM_EVENT_NOTICE = 11,
XLM_EVENT_IMAGES_RELEASED = 12
};
typedef uint32_t xlm_finish_reason;
enum { XLM_FINISH_NONE = 0, XLM_FINISH_STOP = 1, XLM_FINISH_LENGTH = 2, XLM_FINISH_CANCELLED = 3 };
typedef uint32_t xlm_notice_kind;
enum {
XLM_NOTICE_OTHER = 0,
XLM_NOTICE_ENGINE_RESTARTING = 1,
XLM_NOTICE_ENGINE_READY = 2,
XLM_NOTICE_ENGINE_FAILED = 3,
XLM_NOTICE_DEVICE_LOST = 4,
XLM_NOTICE_DEVICE_RESTORED = 5,
XLM_NOTICE_DEGRADED = 6,
XLM_NOTICE_BUDGET_CHANGED = 7,
XLM_NOTICE_LEASE_EXPIRING = 8,
XLM_NOTICE_SHUTDOWN = 9,
XLM_NOTICE_RESTORE_FAILED = 10,
XLM_NOTICE_ENGINE_UNRESPONSIVE = 11
};
typedef struct xlm_lease {
uint32_t struct_size;
uint32_t deadline_met;
uint64_t granted_bytes;
uint64_t used_bytes;
uint64_t device_used_bytes;
uint64_t cap_bytes;
uint64_t reserved_bytes;
uint64_t release_ns;
} xlm_lease;
typedef struct xlm_usage {
uint32_t struct_size;
uint32_t prompt_tokens;
uint32_t cached_tokens;
uint32_t completion_tokens;
uint64_t ttft_ns;
uint64_t tpot_ns;
} xlm_usage;
typedef uint32_t xlm_engine_state;
enum {
XLM_ENGINE_UNKNOWN = 0,
XLM_ENGINE_STARTING = 1,
XLM_ENGINE_LOADING = 2,
XLM_ENGINE_READY = 3,
XLM_ENGINE_RESTARTING = 4,
XLM_ENGINE_FAILED = 5,
XLM_ENGINE_STOPPED = 6
};
typedef struct xlm_status_info {
uint32_t struct_size;
xlm_engine_state engine_state;
uint32_t engine_restarts;
uint32_t device_lost;
uint64_t device_total_bytes;
uint64_t device_used_bytes;
uint64_t budget_bytes;
uint64_t minimum_bytes;
uint64_t demand_bytes;
double tokens_per_s;
xlm_str device_kind;
xlm_str model_name;
xlm_str schedule_summary;
xlm_str json;
uint64_t resident_bytes;
} xlm_status_info;
typedef struct xlm_event {
uint32_t struct_size;
xlm_event_kind kind;
xlm_client *client;
xlm_session *session;
uint64_t id;
xlm_client_state state;
xlm_finish_reason finish_reason;
xlm_notice_kind notice;
uint32_t n_token_ids;
const int32_t *token_ids;
xlm_str text;
xlm_str detail;
const xlm_error *error;
const xlm_lease *lease;
const xlm_usage *usage;
const xlm_status_info *status;
} xlm_event;
typedef void (*xlm_event_fn)(void *user_data, const xlm_event *event);
typedef struct xlm_allocator {
uint32_t struct_size;
void *user_data;
void *(*allocate)(void *user_data, size_t size_bytes, size_t alignment);
void (*release)(void *user_data, void *memory, size_t size_bytes, size_t alignment);
} xlm_allocator;
typedef uint32_t xlm_log_level;
enum { XLM_LOG_DEBUG = 0, XLM_LOG_INFO = 1, XLM_LOG_WARNING = 2, XLM_LOG_ERROR = 3 };
typedef void (*xlm_log_fn)(void *user_data, xlm_log_level level, xlm_str line);
typedef struct xlm_client_options {
uint32_t struct_size;
uint32_t max_sessions;
xlm_str name;
xlm_str endpoint;
xlm_str server_key;
xlm_event_fn on_event;
void *user_data;
xlm_log_fn on_log;
void *log_user_data;
xlm_log_level log_level;
uint32_t goodbye_ms;
const xlm_allocator *allocator;
} xlm_client_options;
uint32_t xlm_version(void);
xlm_result xlm_last_error(xlm_error *error);
const char *xlm_last_error_line(void);
xlm_result xlm_result_describe(xlm_result result, xlm_error *error);
xlm_result xlm_client_create(const xlm_client_options *options, xlm_client **client);
xlm_result xlm_client_destroy(xlm_client *client);
int32_t xlm_client_poll(xlm_client *client, uint64_t max_time_ns);
int32_t xlm_client_next_event(xlm_client *client, xlm_event *event);
xlm_result xlm_client_attach_thread(xlm_client *client);
xlm_client_state xlm_client_get_state(const xlm_client *client);
xlm_result xlm_client_get_lease(const xlm_client *client, xlm_lease *lease);
xlm_result xlm_client_ready_wait(xlm_client *client, uint64_t timeout_ns);
xlm_result xlm_client_event_wait(xlm_client *client, uint64_t timeout_ns);
typedef uint32_t xlm_require;
enum {
XLM_REQUIRE_ANY = 0,
XLM_REQUIRE_DEVICE = 1
};
typedef struct xlm_budget {
uint32_t struct_size;
xlm_require require;
uint64_t cap_bytes;
uint64_t deadline_ns;
} xlm_budget;
xlm_result xlm_client_set_budget(xlm_client *client, const xlm_budget *budget, uint64_t *ticket);
xlm_result xlm_client_set_budget_wait(xlm_client *client, const xlm_budget *budget, uint64_t timeout_ns,
xlm_lease *lease);
xlm_result xlm_client_reserve(xlm_client *client, uint64_t bytes, uint64_t deadline_ns, uint64_t *ticket);
xlm_result xlm_client_reserve_wait(xlm_client *client, uint64_t bytes, uint64_t deadline_ns,
uint64_t timeout_ns, xlm_lease *lease);
xlm_result xlm_client_request_status(xlm_client *client, uint64_t *ticket);
typedef uint32_t xlm_pacing;
enum {
XLM_PACING_OFF = 0,
XLM_PACING_STEPS = 1,
XLM_PACING_SHRINK = 2
};
typedef struct xlm_frame_info {
uint32_t struct_size;
xlm_pacing pacing;
uint64_t frame_ns;
uint64_t target_ns;
uint64_t gpu_ns;
} xlm_frame_info;
xlm_result xlm_frame(xlm_client *client, const xlm_frame_info *frame);
typedef uint32_t xlm_overflow;
enum {
XLM_OVERFLOW_ERROR = 0,
XLM_OVERFLOW_SHIFT = 1
};
typedef struct xlm_session_options {
uint32_t struct_size;
xlm_overflow overflow;
xlm_str system;
xlm_str resume;
xlm_event_fn on_event;
void *user_data;
} xlm_session_options;
typedef struct xlm_session_info {
uint32_t struct_size;
xlm_session_state state;
uint32_t n_ctx;
uint32_t busy;
xlm_str id;
} xlm_session_info;
xlm_result xlm_session_open(xlm_client *client, const xlm_session_options *options, xlm_session **session);
xlm_result xlm_session_close(xlm_session *session);
xlm_result xlm_session_get_info(const xlm_session *session, xlm_session_info *info);
typedef uint32_t xlm_image_format;
enum {
XLM_IMAGE_ENCODED = 0,
XLM_IMAGE_RGBA8 = 1,
XLM_IMAGE_RGBX8 = 2,
XLM_IMAGE_BGRA8 = 3,
XLM_IMAGE_BGRX8 = 4,
XLM_IMAGE_RGB8 = 5
};
typedef void (*xlm_release_fn)(void *user_data, const void *data);
typedef struct xlm_image {
uint32_t struct_size;
xlm_image_format format;
const void *data;
size_t size_bytes;
uint32_t width;
uint32_t height;
size_t stride_bytes;
uint32_t bottom_up;
uint32_t lent;
xlm_release_fn release;
void *release_user_data;
} xlm_image;
typedef struct xlm_say_options {
uint32_t struct_size;
uint32_t max_tokens;
double temperature;
double top_p;
double min_p;
double repeat_penalty;
uint32_t top_k;
uint32_t repeat_last_n;
uint64_t seed;
xlm_str grammar;
xlm_str json_schema;
const xlm_str *stop;
uint32_t n_stop;
int32_t priority;
const xlm_image *images;
uint32_t n_images;
} xlm_say_options;
xlm_result xlm_session_say(xlm_session *session, xlm_str text, const xlm_say_options *options,
uint64_t *answer);
xlm_result xlm_session_cancel(xlm_session *session, uint64_t answer);
"""

# fmt: off
DEFAULTS: Final[dict[str, dict[str, int | float]]] = \
{"xlm_error": {},
 "xlm_lease": {},
 "xlm_usage": {},
 "xlm_status_info": {},
 "xlm_event": {},
 "xlm_allocator": {},
 "xlm_client_options": {"max_sessions": 64, "log_level": 1, "goodbye_ms": 200},
 "xlm_budget": {"cap_bytes": 18_446_744_073_709_551_615, "deadline_ns": 18_446_744_073_709_551_615},
 "xlm_frame_info": {"pacing": 1, "target_ns": 16_666_667},
 "xlm_session_options": {},
 "xlm_session_info": {},
 "xlm_image": {},
 "xlm_say_options": {"max_tokens": 256,
                     "temperature": 0.8,
                     "top_p": 0.95,
                     "min_p": 0.05,
                     "repeat_penalty": 1.0,
                     "top_k": 40,
                     "repeat_last_n": 64,
                     "seed": 18_446_744_073_709_551_615}}
