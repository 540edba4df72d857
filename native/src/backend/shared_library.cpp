#include "shared_library.hpp"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace xlm {

#if defined(_WIN32)

namespace {
std::wstring widen(const std::string & text) {
    const int length = MultiByteToWideChar(CP_UTF8, 0, text.c_str(), -1, nullptr, 0);
    std::wstring wide(length > 0 ? static_cast<size_t>(length) : 1, L'\0');
    MultiByteToWideChar(CP_UTF8, 0, text.c_str(), -1, wide.data(), length);
    return wide;
}
} // namespace

void * open_library(const std::string & path, std::string & error) {
    // The altered search path lets the library find its neighbours (vendor runtimes).
    void * library = LoadLibraryExW(widen(path).c_str(), nullptr, LOAD_WITH_ALTERED_SEARCH_PATH);
    if (!library) error = "LoadLibrary failed with code " + std::to_string(GetLastError());
    return library;
}

void * find_symbol(void * library, const char * name) {
    return reinterpret_cast<void *>(GetProcAddress(static_cast<HMODULE>(library), name));
}

#else

void * open_library(const std::string & path, std::string & error) {
    void * library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char * message = dlerror();
        error = message ? message : "dlopen failed";
    }
    return library;
}

void * find_symbol(void * library, const char * name) {
    return dlsym(library, name);
}

#endif

} // namespace xlm
