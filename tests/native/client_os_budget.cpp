// From the graphics API's budget to the model's cap: the rule, and the whole way on software Vulkan.
#include <algorithm>

#include <xlm/xlm_os_budget.h>
#ifdef XLM_TEST_VULKAN
#include <xlm/xlm_vulkan.h>
#endif

#include "client_fixture.hpp"

using namespace xlm::test;

namespace {

constexpr std::uint64_t mib = 1 << 20;

/// A card that the game, the model and others share; the system gives the game what the other two leave.
struct Card {
    std::uint64_t total = 8192 * mib, game = 2000 * mib, others = 0;
    std::uint64_t demand = 3000 * mib; // the model takes no more, whatever its cap
    std::uint64_t granted = 8192 * mib;

    std::uint64_t model() const { return std::min(granted, demand); }
    std::uint64_t budget() const {
        const std::uint64_t taken = model() + others;
        return taken < total ? total - taken : 0;
    }
    std::int64_t room() const { return static_cast<std::int64_t>(budget()) - static_cast<std::int64_t>(game); }
    bool step(xlm_os_budget & state) { // true: the cap changed
        const std::uint64_t cap = xlm_os_budget_decide(&state, granted, budget(), game);
        if (cap == XLM_NO_CAP) return false;
        granted = std::min(cap, total);
        return true;
    }
};

} // namespace

TEST(a_game_that_needs_more_gets_it_in_a_few_frames) {
    Card card;
    xlm_os_budget state = XLM_OS_BUDGET_INIT;
    card.game = 6000 * mib;
    int steps = 0;
    while (card.room() < 256 * static_cast<std::int64_t>(mib) && steps < 100) {
        card.step(state);
        steps++;
    }
    CHECK(steps <= 8); // from a cap far above what the model uses
    CHECK(card.room() >= static_cast<std::int64_t>(256 * mib));
}

TEST(an_impossible_wish_ends_at_zero_and_stays) {
    Card card;
    xlm_os_budget state = XLM_OS_BUDGET_INIT;
    card.game = 9000 * mib;
    for (int i = 0; i < 40; i++)
        card.step(state);
    CHECK_EQ(card.granted, 0u);
    CHECK(!card.step(state));
}

TEST(it_grows_back_after_a_while_and_does_not_oscillate) {
    Card card;
    xlm_os_budget state = XLM_OS_BUDGET_INIT;
    card.game = 7000 * mib;
    for (int i = 0; i < 20; i++)
        card.step(state);
    CHECK(card.granted < 1000 * mib);
    card.game = 3000 * mib;
    int waited = 0;
    while (!card.step(state) && waited < 1000)
        waited++;
    CHECK(waited > 0 && waited < 30); // grow_after, of which some have passed
    int changes = 0;
    for (int i = 0; i < 600; i++)
        changes += card.step(state);
    CHECK(changes <= 2);
    CHECK(card.room() >= static_cast<std::int64_t>(256 * mib));
    const std::uint64_t settled = card.granted;
    for (int i = 0; i < 600; i++)
        card.step(state);
    CHECK_EQ(card.model(), std::min(settled, card.demand));
}

TEST(between_the_two_bounds_nothing_happens) {
    xlm_os_budget state = XLM_OS_BUDGET_INIT;
    for (int i = 0; i < 200; i++)
        CHECK_EQ(xlm_os_budget_decide(&state, 1000 * mib, 2300 * mib, 2000 * mib), XLM_NO_CAP); // 300 MiB of room
}

TEST(numbers_at_the_edge) {
    xlm_os_budget state = XLM_OS_BUDGET_INIT;
    CHECK_EQ(xlm_os_budget_decide(&state, UINT64_MAX / 2, 0, UINT64_MAX), UINT64_MAX / 2 - 256 * mib);
    for (int i = 0; i < 100; i++)
        xlm_os_budget_decide(&state, UINT64_MAX / 2, 0, UINT64_MAX);
    CHECK_EQ(xlm_os_budget_decide(&state, UINT64_MAX / 2, 0, UINT64_MAX), 0u);
    state = XLM_OS_BUDGET_INIT;
    state.grow_after = 1;
    state.max_cap_bytes = 5;
    CHECK_EQ(xlm_os_budget_decide(&state, 3, UINT64_MAX, 0), 5u);
    CHECK_EQ(xlm_os_budget_decide(&state, 5, UINT64_MAX, 0), XLM_NO_CAP);
}

TEST(a_falling_budget_reaches_the_broker) {
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_budget first = XLM_BUDGET_INIT;
    first.cap_bytes = 200 * mib;
    REQUIRE(xlm_client_set_budget_wait(game.client, &first, long_ns, nullptr) == XLM_SUCCESS);
    xlm_os_budget relay = XLM_OS_BUDGET_INIT;
    CHECK_EQ(xlm_os_budget_update(game.client, &relay, 1000 * mib, 800 * mib), 1); // 56 MiB too little
    CHECK_EQ(relay.asked_bytes, 144 * mib);
    REQUIRE(game.until(XLM_EVENT_LEASE));
    CHECK_EQ(game.of(XLM_EVENT_LEASE)[0].lease.granted_bytes, 144 * mib);
    CHECK_EQ(xlm_os_budget_update(game.client, &relay, 1100 * mib, 800 * mib), 0);
    CHECK(broker("last\tSetBudget").find("deadline_ms=16.0") != std::string::npos);
}

#ifdef XLM_TEST_VULKAN

namespace {

struct Vulkan {
    VkInstance instance = VK_NULL_HANDLE;
    VkPhysicalDevice device = VK_NULL_HANDLE;

    Vulkan() {
        VkApplicationInfo application = {};
        application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
        application.apiVersion = VK_API_VERSION_1_1;
        VkInstanceCreateInfo info = {};
        info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
        info.pApplicationInfo = &application;
        std::uint32_t count = 1;
        if (vkCreateInstance(&info, nullptr, &instance) == VK_SUCCESS)
            vkEnumeratePhysicalDevices(instance, &count, &device);
    }
    ~Vulkan() { vkDestroyInstance(instance, nullptr); }

    bool has_budgets() const {
        std::uint32_t count = 0;
        vkEnumerateDeviceExtensionProperties(device, nullptr, &count, nullptr);
        std::vector<VkExtensionProperties> all(count);
        vkEnumerateDeviceExtensionProperties(device, nullptr, &count, all.data());
        return std::any_of(all.begin(), all.end(), [](const VkExtensionProperties & one) {
            return std::string(one.extensionName) == VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
        });
    }
};

/// The driver's own answer, with budgets added where it has none (Mesa's software Vulkan before 23): of each heap
/// the whole, half of it used.
void VKAPI_CALL half_used(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 * out) {
    vkGetPhysicalDeviceMemoryProperties2(device, out);
    auto * const heaps = static_cast<VkPhysicalDeviceMemoryBudgetPropertiesEXT *>(out->pNext);
    for (std::uint32_t i = 0; i < out->memoryProperties.memoryHeapCount; i++) {
        heaps->heapBudget[i] = out->memoryProperties.memoryHeaps[i].size;
        heaps->heapUsage[i] = heaps->heapBudget[i] / 2;
    }
}

} // namespace

TEST(a_real_driver_tells_its_budget_or_that_it_has_none) {
    const Vulkan vulkan;
    if (vulkan.device == VK_NULL_HANDLE) {
        std::fprintf(stderr, "skipped: no Vulkan device here\n");
        return;
    }
    std::uint64_t budget = 0, usage = 0;
    const xlm_result result = xlm_vulkan_read(vulkan.device, vkGetPhysicalDeviceMemoryProperties2, &budget, &usage);
    CHECK_EQ(result, vulkan.has_budgets() ? XLM_SUCCESS : XLM_ERROR_DEVICE_NOT_FOUND);
    CHECK_EQ(budget > 0, result == XLM_SUCCESS);
    CHECK_EQ(xlm_vulkan_read(vulkan.device, nullptr, &budget, &usage), XLM_ERROR_INVALID_ARGUMENT);
}

TEST(a_falling_vulkan_budget_is_relayed) {
    const Vulkan vulkan;
    if (vulkan.device == VK_NULL_HANDLE) {
        std::fprintf(stderr, "skipped: no Vulkan device here\n");
        return;
    }
    std::uint64_t budget = 0, usage = 0;
    REQUIRE(xlm_vulkan_read(vulkan.device, half_used, &budget, &usage) == XLM_SUCCESS);
    CHECK_EQ(usage, budget / 2);
    FakeBroker broker;
    Game game(broker.endpoint);
    REQUIRE(game.ready());
    xlm_budget first = XLM_BUDGET_INIT;
    first.cap_bytes = 200 * mib;
    REQUIRE(xlm_client_set_budget_wait(game.client, &first, long_ns, nullptr) == XLM_SUCCESS);
    xlm_os_budget relay = XLM_OS_BUDGET_INIT;
    relay.headroom_bytes = budget - usage + 50 * mib; // the game has 50 MiB less than it wants
    CHECK_EQ(xlm_vulkan_update(game.client, &relay, vulkan.device, half_used), 1);
    REQUIRE(game.until(XLM_EVENT_LEASE));
    CHECK_EQ(game.of(XLM_EVENT_LEASE)[0].lease.granted_bytes, 150 * mib);
}

#endif

XLM_TEST_MAIN
