/* xlm_vulkan.h - the game's memory budget from VK_EXT_memory_budget, relayed to xlm. Header-only, C99.
 *
 *     xlm_os_budget relay = XLM_OS_BUDGET_INIT;
 *     // once a frame:
 *     xlm_vulkan_update(client, &relay, physical_device, vkGetPhysicalDeviceMemoryProperties2);
 *
 * The physical device must have the extension; nothing needs to be enabled for it on the logical device, and
 * nothing here links Vulkan: the function is passed in, from the loader or from vkGetInstanceProcAddr().
 */
#ifndef XLM_VULKAN_H
#define XLM_VULKAN_H

#include <vulkan/vulkan.h>

#include <xlm/xlm_os_budget.h>

/** What the system lets this process use of the device's own memory, and what it does: sums over the device-local
 *  heaps.
 *
 *  @return XLM_ERROR_DEVICE_NOT_FOUND: the driver told nothing; has the device VK_EXT_memory_budget?
 *
 *  Ownership: nothing. Threads: any thread. Blocking: as long as the driver takes. Since: 0.1.0 */
static inline xlm_result xlm_vulkan_read(VkPhysicalDevice device, PFN_vkGetPhysicalDeviceMemoryProperties2 read,
                                         uint64_t *budget_bytes, uint64_t *usage_bytes) {
    VkPhysicalDeviceMemoryBudgetPropertiesEXT heaps;
    VkPhysicalDeviceMemoryProperties2 properties;
    uint32_t i;
    if (device == VK_NULL_HANDLE || read == NULL || budget_bytes == NULL || usage_bytes == NULL)
        return XLM_ERROR_INVALID_ARGUMENT;
    for (i = 0; i < VK_MAX_MEMORY_HEAPS; i++)
        heaps.heapBudget[i] = heaps.heapUsage[i] = 0;
    heaps.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT;
    heaps.pNext = NULL;
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2;
    properties.pNext = &heaps;
    read(device, &properties);
    *budget_bytes = *usage_bytes = 0;
    for (i = 0; i < properties.memoryProperties.memoryHeapCount; i++) {
        if (!(properties.memoryProperties.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)) continue;
        *budget_bytes += heaps.heapBudget[i];
        *usage_bytes += heaps.heapUsage[i];
    }
    return *budget_bytes > 0 ? XLM_SUCCESS : XLM_ERROR_DEVICE_NOT_FOUND;
}

/** Reads and relays; as xlm_os_budget_update().
 *
 *  Ownership: nothing. Threads: one at a time. Blocking: as long as the driver takes (microseconds).
 *  Since: 0.1.0 */
static inline xlm_result xlm_vulkan_update(xlm_client *client, xlm_os_budget *state, VkPhysicalDevice device,
                                           PFN_vkGetPhysicalDeviceMemoryProperties2 read) {
    uint64_t budget_bytes, usage_bytes;
    const xlm_result result = xlm_vulkan_read(device, read, &budget_bytes, &usage_bytes);
    return result == XLM_SUCCESS ? xlm_os_budget_update(client, state, budget_bytes, usage_bytes) : result;
}

#endif /* XLM_VULKAN_H */
