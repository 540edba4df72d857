#include "sim/config.hpp"

#include "check.hpp"

#include <cmath>

using namespace xlm::sim;

TEST(defaults_are_valid_and_documented_ones) {
    const xlm_sim_config c = default_config();
    CHECK_EQ(check_config(c), "");
    CHECK_EQ(c.mode, static_cast<uint32_t>(XLM_SIM_EXACT));
    CHECK_EQ(c.vram_bytes, 256ull << 20);
    CHECK_EQ(c.link_bytes_per_s, 12e9);
    CHECK_EQ(c.arbitration, static_cast<uint32_t>(XLM_SIM_SMALL_FIRST));
}

TEST(settings_are_applied) {
    xlm_sim_config c = default_config();
    CHECK_EQ(parse_settings("mode=modelled,vram=1.5GiB,link=6e9,latency=100,arbitration=chunked,flops=2e12,membw=2e11,"
                            "op_launch=1,graph_launch=2,cpu_slowdown=0.01,threads=3",
                            c),
             "");
    CHECK_EQ(c.mode, static_cast<uint32_t>(XLM_SIM_MODELLED));
    CHECK_EQ(c.vram_bytes, 1536ull << 20);
    CHECK_EQ(c.link_bytes_per_s, 6e9);
    CHECK_EQ(c.link_latency_ns, 100);
    CHECK_EQ(c.arbitration, static_cast<uint32_t>(XLM_SIM_CHUNKED));
    CHECK_EQ(c.compute_flops_per_s, 2e12);
    CHECK_EQ(c.memory_bytes_per_s, 2e11);
    CHECK_EQ(c.op_launch_ns, 1);
    CHECK_EQ(c.graph_launch_ns, 2);
    CHECK_EQ(c.cpu_slowdown_per_gb_s, 0.01);
    CHECK_EQ(c.n_threads, 3u);
}

TEST(no_settings_change_nothing) {
    xlm_sim_config c = default_config();
    CHECK_EQ(parse_settings("", c), "");
    CHECK_EQ(c.vram_bytes, default_config().vram_bytes);
}

TEST(bad_settings_say_what_is_wrong) {
    for (const char * bad : {"mode=fast", "vram=12parsecs", "vram=", "vram=-1", "link=nan", "link=inf", "link=1e9x",
                             "threads=1.5", "threads=1000", "latency=-3", "colour=red", "vram", "=", ",", "vram=0"}) {
        xlm_sim_config c = default_config();
        CHECK(!parse_settings(bad, c).empty());
    }
    xlm_sim_config c = default_config();
    CHECK(parse_settings("vram=1MiB,colour=red", c).find("colour") != std::string::npos);
}

TEST(bad_fields_are_refused) {
    const auto broken = [](auto && change) {
        xlm_sim_config c = default_config();
        change(c);
        return !check_config(c).empty();
    };
    CHECK(broken([](auto & c) { c.mode = 2; }));
    CHECK(broken([](auto & c) { c.arbitration = 3; }));
    CHECK(broken([](auto & c) { c.vram_bytes = 0; }));
    CHECK(broken([](auto & c) { c.link_bytes_per_s = -1; }));
    CHECK(broken([](auto & c) { c.link_latency_ns = std::nan(""); }));
    CHECK(broken([](auto & c) { c.compute_flops_per_s = 0; }));
    CHECK(broken([](auto & c) { c.memory_bytes_per_s = 0; }));
    CHECK(broken([](auto & c) { c.op_launch_ns = -1; }));
    CHECK(broken([](auto & c) { c.graph_launch_ns = HUGE_VAL; }));
    CHECK(broken([](auto & c) { c.cpu_slowdown_per_gb_s = -0.1; }));
    CHECK(broken([](auto & c) { c.n_threads = 513; }));
}

XLM_TEST_MAIN
