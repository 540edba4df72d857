// XLM_SIM configures the device when the plugin is loaded; a broken one makes loading fail.
#include "sim_fixture.hpp"

int main(int argc, char ** argv) {
    const bool good = argc == 2 && std::strcmp(argv[1], "good") == 0;
    ggml_backend_reg_t registry = ggml_backend_load(XLM_SIM_LIBRARY);
    if (!good) {
        CHECK(!registry);
        CHECK(std::string(xlm_sim_last_error()).find("turbo") != std::string::npos);
        return xlm::test::failures() == 0 ? 0 : 1;
    }
    CHECK(registry);
    CHECK_EQ(xlm::test::counters().vram_bytes, uint64_t{3 << 20});
    return xlm::test::failures() == 0 ? 0 : 1;
}
