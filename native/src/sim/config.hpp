// Configuration of the virtual GPU: defaults, checks, and the XLM_SIM environment variable.
#pragma once

#include "xlm/xlm_sim.h"

#include <string>

namespace xlm::sim {

xlm_sim_config default_config();

// Empty when the configuration is usable, else what is wrong with which field.
std::string check_config(const xlm_sim_config & config);

// Applies "key=value,key=value" on top of `config`. Empty on success, else the reason.
// Sizes take a number with an optional KiB/MiB/GiB; everything else a plain number.
std::string parse_settings(const std::string & settings, xlm_sim_config & config);

} // namespace xlm::sim
