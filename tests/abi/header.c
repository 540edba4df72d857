/* xlm.h in C99: everything in it is used once, so that every macro is expanded. */
#include <xlm/xlm.h>

size_t use_the_header(void);

size_t use_the_header(void) {
    const xlm_client_options client = XLM_CLIENT_OPTIONS_INIT;
    const xlm_session_options session = XLM_SESSION_OPTIONS_INIT;
    const xlm_session_info info = XLM_SESSION_INFO_INIT;
    const xlm_say_options say = XLM_SAY_OPTIONS_INIT;
    const xlm_frame_info frame = XLM_FRAME_INFO_INIT;
    const xlm_allocator allocator = XLM_ALLOCATOR_INIT;
    const xlm_status_info status = XLM_STATUS_INFO_INIT;
    const xlm_budget budget = XLM_BUDGET_INIT;
    const xlm_usage usage = XLM_USAGE_INIT;
    const xlm_lease lease = XLM_LEASE_INIT;
    const xlm_event event = XLM_EVENT_INIT;
    const xlm_error error = XLM_ERROR_INIT;
    const xlm_str literal = XLM_STR_LITERAL("tavern");
    return client.struct_size + session.struct_size + info.struct_size + say.struct_size + frame.struct_size +
           allocator.struct_size + status.struct_size + budget.struct_size + usage.struct_size + lease.struct_size +
           event.struct_size + error.struct_size + literal.len + xlm_str_from(literal.data).len + XLM_VERSION;
}
