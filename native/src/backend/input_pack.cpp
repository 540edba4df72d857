#include "input_pack.hpp"

#include <algorithm>

namespace xlm {

namespace {

constexpr uint64_t kPackBytes = 64 << 10; // of all; beyond that it is the bytes of a copy that take the time
constexpr uint64_t kAlignment = 256;

uint64_t aligned(uint64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Roots that are whole before the first node on the device runs.
std::vector<uint8_t> made_before(const GraphInfo & info, const std::vector<uint8_t> & on_device) {
    std::vector<uint8_t> before(info.roots.size(), 1);
    const auto first = std::find(on_device.begin(), on_device.end(), 1);
    for (size_t i = static_cast<size_t>(first - on_device.begin()); i < info.nodes.size(); i++)
        if (info.nodes[i].root >= 0) before[static_cast<size_t>(info.nodes[i].root)] = 0;
    return before;
}

// The smallest first.
std::vector<int> small_inputs(const std::vector<uint8_t> & before, const std::vector<ScratchItem> & items) {
    std::vector<int> small;
    for (size_t r = 0; r < before.size(); r++)
        if (before[r] && items[r].first >= 0) small.push_back(static_cast<int>(r));
    const auto bytes = [&](int r) { return items[static_cast<size_t>(r)].bytes; };
    std::stable_sort(small.begin(), small.end(), [&](int a, int b) { return bytes(a) < bytes(b); });
    uint64_t sum = 0;
    const auto full = [&](int r) { return (sum += aligned(bytes(r))) > kPackBytes; };
    small.erase(std::find_if(small.begin(), small.end(), full), small.end());
    return small;
}

} // namespace

bool InputPack::holds(int root) const {
    return std::any_of(members.begin(), members.end(), [root](const Member & member) { return member.root == root; });
}

InputPack pack_inputs(const GraphInfo & info, const std::vector<uint8_t> & on_device,
                      std::vector<ScratchItem> & items) {
    InputPack pack;
    const std::vector<int> small = small_inputs(made_before(info, on_device), items);
    if (small.size() < 2) return pack;
    ScratchItem whole = items[static_cast<size_t>(small.front())];
    for (int r : small) {
        ScratchItem & item = items[static_cast<size_t>(r)];
        pack.members.push_back({r, pack.bytes});
        pack.bytes += aligned(item.bytes);
        whole.first = std::min(whole.first, item.first);
        whole.last = std::max(whole.last, item.last);
        item.first = -1;
    }
    pack.carrier = small.front();
    whole.bytes = pack.bytes;
    items[static_cast<size_t>(pack.carrier)] = whole;
    return pack;
}

} // namespace xlm
