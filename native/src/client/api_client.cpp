// xlm_client_*: its life, its events, errors.
#include "client.hpp"
#include "structs.hpp"

using namespace xlm::client;

namespace {

xlm_client & checked(xlm_client * client) {
    if (client == nullptr) throw Failed(XLM_ERROR_INVALID_ARGUMENT, "the client is NULL");
    return *client;
}

/// What a tool is told that waited in vain.
Failure no_broker(const Failure & why) {
    Failure failure(XLM_ERROR_TIMEOUT, why ? why.message_view() : "no broker answers");
    failure.set_hint(find_code(XLM_ERROR_NOT_READY)->hint);
    return failure;
}

xlm_error success() {
    Failure none;
    xlm_error error = none.view();
    error.message = error.hint = xlm_str_from("");
    return error;
}

} // namespace

uint32_t xlm_version(void) {
    return XLM_VERSION;
}

xlm_result xlm_last_error(xlm_error * error) {
    if (error == nullptr || error->struct_size < sizeof error->struct_size) return XLM_ERROR_INVALID_ARGUMENT;
    write_struct(error, last_failure() ? last_failure().view() : success());
    return XLM_SUCCESS;
}

const char * xlm_last_error_line(void) {
    return last_failure_line();
}

xlm_result xlm_result_describe(xlm_result result, xlm_error * error) {
    return guarded([&] {
        const CodeInfo * known = find_code(result > 0 ? XLM_SUCCESS : result);
        xlm_error text = success();
        text.result = result;
        if (known) {
            text.fault = known->fault;
            text.retryable = known->retryable;
            text.name = {known->name.data(), known->name.size()};
            text.message = text.name;
            text.hint = {known->hint.data(), known->hint.size()};
        } else {
            text.name = text.message = xlm_str_from("unknown_result");
            text.fault = XLM_FAULT_CALLER;
        }
        write_struct(error, text);
        return XLM_SUCCESS;
    });
}

xlm_result xlm_client_create(const xlm_client_options * options, xlm_client ** client) {
    if (client) *client = nullptr;
    return guarded([&] {
        if (client == nullptr) throw Failed(XLM_ERROR_INVALID_ARGUMENT, "there is no place for the handle");
        const xlm_client_options defaults = XLM_CLIENT_OPTIONS_INIT;
        *client = xlm_client::make(read_struct(options, defaults));
        return XLM_SUCCESS;
    });
}

xlm_result xlm_client_destroy(xlm_client * client) {
    if (client == nullptr) return XLM_SUCCESS;
    return guarded([&] {
        client->check_alive();
        client->check_no_callback();
        xlm_client::destroy(client);
        return XLM_SUCCESS;
    });
}

int32_t xlm_client_poll(xlm_client * client, uint64_t max_time_ns) {
    return guarded([&] { return checked(client).poll(max_time_ns); });
}

int32_t xlm_client_next_event(xlm_client * client, xlm_event * event) {
    return guarded([&] {
        if (event == nullptr || event->struct_size < sizeof event->struct_size)
            throw Failed(XLM_ERROR_INVALID_ARGUMENT, "the event is NULL, or not XLM_EVENT_INIT");
        return checked(client).next_event(event);
    });
}

xlm_result xlm_client_attach_thread(xlm_client * client) {
    return guarded([&] {
        checked(client).check_no_callback();
        client->attach_thread();
        return XLM_SUCCESS;
    });
}

xlm_client_state xlm_client_get_state(const xlm_client * client) {
    return client ? client->shared.state.load(std::memory_order_acquire) : xlm_client_state(XLM_CLIENT_FAILED);
}

xlm_result xlm_client_get_lease(const xlm_client * client, xlm_lease * lease) {
    return guarded([&] {
        if (client == nullptr) throw Failed(XLM_ERROR_INVALID_ARGUMENT, "the client is NULL");
        write_struct(lease, client->shared.lease.load());
        return XLM_SUCCESS;
    });
}

xlm_result xlm_client_ready_wait(xlm_client * client, uint64_t timeout_ns) {
    return guarded([&] {
        checked(client).check_alive();
        client->check_no_callback();
        Failure why;
        if (!client->wait_ready(timeout_ns, why)) return fail(no_broker(why));
        if (client->ready()) return xlm_result(XLM_SUCCESS);
        return why ? fail(why) : client->absent();
    });
}

xlm_result xlm_client_event_wait(xlm_client * client, uint64_t timeout_ns) {
    return guarded([&] {
        checked(client).check_poll_thread();
        return client->wait_event(timeout_ns) ? xlm_result(XLM_SUCCESS) : fail(XLM_ERROR_TIMEOUT, "no event came");
    });
}
