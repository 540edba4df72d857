// xlm.h and xlm.hpp in C++17, without a warning.
#include <xlm/xlm.h>
#include <xlm/xlm.hpp>

std::size_t use_the_header_from_cpp();

std::size_t use_the_header_from_cpp() {
    const xlm_client_options client = XLM_CLIENT_OPTIONS_INIT;
    const xlm_session_options session = XLM_SESSION_OPTIONS_INIT;
    const xlm_say_options say = XLM_SAY_OPTIONS_INIT;
    const xlm_status_info status = XLM_STATUS_INFO_INIT;
    const xlm_event event = XLM_EVENT_INIT;
    const xlm_str literal = XLM_STR_LITERAL("tavern");
    const xlm::SayOptions options;
    return client.struct_size + session.struct_size + say.struct_size + status.struct_size + event.struct_size +
           xlm::view(literal).size() + options.struct_size;
}
