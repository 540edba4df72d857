// Refuses to work with another ggml than the one this library was built for:
// it reads private structs, whose layout changes without notice.
#pragma once

namespace xlm {

// Throws ApiError(XLM_ERR_ABI_MISMATCH) naming both versions.
void check_abi();

// "xlm 0.1.0, built for ggml 0.25.3 abc1234"
const char * build_info();

} // namespace xlm
