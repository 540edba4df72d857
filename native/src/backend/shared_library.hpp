// Private loading of a shared library on both families of systems.
#pragma once

#include <string>

namespace xlm {

// nullptr on failure, with the system's message in `error`. Symbols stay out of the global scope.
void * open_library(const std::string & path, std::string & error);
void * find_symbol(void * library, const char * name);

} // namespace xlm
