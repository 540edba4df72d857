// Budget, reservation, status, frames.
#include <algorithm>
#include <chrono>

#include "client.hpp"
#include "structs.hpp"

using namespace xlm::client;

namespace {

constexpr std::uint64_t report_after_ns = 100'000'000; // of frames: when the I/O thread is woken for them

struct Request {
    CommandKind kind;
    std::uint64_t bytes;
    std::uint64_t deadline_ns;
    std::uint32_t choice;
};

xlm_client & checked(xlm_client * client) {
    if (client == nullptr) throw Failed(XLM_ERROR_INVALID_ARGUMENT, "the client is NULL");
    return *client;
}

Request checked(const xlm_budget * given) {
    const xlm_budget defaults = XLM_BUDGET_INIT;
    const xlm_budget budget = read_struct(given, defaults);
    if (budget.require > XLM_REQUIRE_DEVICE) throw Failed(XLM_ERROR_BUDGET_INVALID, "require is no xlm_require");
    if (budget.cap_bytes > max_size_bytes && budget.cap_bytes != XLM_NO_CAP)
        throw Failed(XLM_ERROR_BUDGET_INVALID, "cap_bytes is over 2^62 - 1");
    return {CommandKind::set_budget, budget.cap_bytes, budget.deadline_ns, budget.require};
}

Request reservation(std::uint64_t bytes, std::uint64_t deadline_ns) {
    if (bytes > max_size_bytes) throw Failed(XLM_ERROR_BUDGET_INVALID, "bytes is over 2^62 - 1");
    return {CommandKind::reserve, bytes, deadline_ns, 0};
}

Command * prepare(xlm_client & client, const Request & request) { // nullptr: overloaded
    if (request.deadline_ns > longest_deadline_ns && request.deadline_ns != XLM_NO_DEADLINE)
        throw Failed(XLM_ERROR_BUDGET_INVALID, "deadline_ns is more than a day");
    Command * const command = client.take_command(request.kind);
    if (command == nullptr) return nullptr;
    command->bytes = request.bytes;
    command->deadline_ns = request.deadline_ns;
    command->choice = request.choice;
    command->wish_only = !client.takes();
    return command;
}

xlm_result ask(xlm_client & client, const Request & request, std::uint64_t * ticket) {
    Command * const command = prepare(client, request);
    if (command == nullptr) return overloaded();
    const bool kept_only = command->wish_only;
    const std::uint64_t id = client.submit(*command);
    if (ticket) *ticket = kept_only ? 0 : id;
    return kept_only ? client.absent() : XLM_SUCCESS;
}

xlm_result ask_and_wait(xlm_client & client, const Request & request, std::uint64_t timeout_ns, xlm_lease * out) {
    client.check_no_callback();
    if (out && out->struct_size < sizeof out->struct_size)
        throw Failed(XLM_ERROR_INVALID_ARGUMENT, "the lease is not XLM_LEASE_INIT");
    if (!client.takes()) return ask(client, request, nullptr);
    auto waiter = std::allocate_shared<Waiter>(std::pmr::polymorphic_allocator<Waiter>(&client.memory));
    Command * const command = prepare(client, request);
    if (command == nullptr) return overloaded();
    command->wish_only = false; // whoever waits is told, also that the broker is gone
    command->waiter = waiter;
    client.submit(*command);
    Failure failure;
    xlm_lease lease = XLM_LEASE_INIT;
    const auto timeout = std::chrono::nanoseconds(std::min<std::uint64_t>(timeout_ns, longest_deadline_ns * 365));
    if (!waiter->wait(timeout, failure, lease)) return fail(XLM_ERROR_TIMEOUT, "the broker has not answered in time");
    if (failure) return fail(failure);
    if (out) write_struct(out, lease);
    return XLM_SUCCESS;
}

} // namespace

xlm_result xlm_client_set_budget(xlm_client * client, const xlm_budget * budget, uint64_t * ticket) {
    if (ticket) *ticket = 0;
    return guarded([&] { return ask(checked(client), checked(budget), ticket); });
}

xlm_result xlm_client_set_budget_wait(xlm_client * client, const xlm_budget * budget, uint64_t timeout_ns,
                                      xlm_lease * lease) {
    return guarded([&] { return ask_and_wait(checked(client), checked(budget), timeout_ns, lease); });
}

xlm_result xlm_client_reserve(xlm_client * client, uint64_t bytes, uint64_t deadline_ns, uint64_t * ticket) {
    if (ticket) *ticket = 0;
    return guarded([&] { return ask(checked(client), reservation(bytes, deadline_ns), ticket); });
}

xlm_result xlm_client_reserve_wait(xlm_client * client, uint64_t bytes, uint64_t deadline_ns, uint64_t timeout_ns,
                                   xlm_lease * lease) {
    return guarded([&] { return ask_and_wait(checked(client), reservation(bytes, deadline_ns), timeout_ns, lease); });
}

xlm_result xlm_client_request_status(xlm_client * client, uint64_t * ticket) {
    if (ticket) *ticket = 0;
    return guarded([&] {
        checked(client).check_alive();
        if (!client->takes()) return client->absent();
        Command * const command = client->take_command(CommandKind::get_status);
        if (command == nullptr) return overloaded();
        const std::uint64_t id = client->submit(*command);
        if (ticket) *ticket = id;
        return xlm_result(XLM_SUCCESS);
    });
}

xlm_result xlm_frame(xlm_client * client, const xlm_frame_info * frame) {
    return guarded([&] {
        checked(client).check_alive();
        const xlm_frame_info defaults = XLM_FRAME_INFO_INIT;
        const xlm_frame_info info = read_struct(frame, defaults);
        if (info.pacing > XLM_PACING_SHRINK || info.target_ns == 0)
            throw Failed(XLM_ERROR_INVALID_ARGUMENT, "pacing is no xlm_pacing, or target_ns is 0");
        Shared & shared = client->shared;
        shared.frames.push({info.frame_ns, info.target_ns, info.gpu_ns, info.pacing}); // full: this one is left out
        const std::uint64_t waiting = shared.unreported_ns.fetch_add(info.frame_ns, std::memory_order_relaxed);
        if (waiting + info.frame_ns >= report_after_ns) {
            shared.unreported_ns.store(0, std::memory_order_relaxed);
            shared.waker.wake();
        }
        return XLM_SUCCESS;
    });
}
