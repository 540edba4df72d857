# Tests of libxlm. Those of its pure parts link the object library, the others the shared one.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(XLM_REPOSITORY "${CMAKE_CURRENT_SOURCE_DIR}/../..")
set(XLM_TEST_OPTIONS "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/client_tsan.supp" "ASAN_OPTIONS=detect_leaks=1")

function(xlm_client_test name)
  add_executable(${name} ${name}.cpp)
  target_link_libraries(${name} PRIVATE ${ARGN} xlm_headers Threads::Threads)
  target_compile_definitions(${name} PRIVATE
    XLM_PYTHON="${Python3_EXECUTABLE}"
    XLM_SDK_FOLDER="${XLM_REPOSITORY}/sdk"
    XLM_FAKE_BROKER="${CMAKE_CURRENT_SOURCE_DIR}/fake_broker.py")
  target_include_directories(${name} SYSTEM PRIVATE "${XLM_MSGPACK_INCLUDE_DIR}")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200 ENVIRONMENT "${XLM_TEST_OPTIONS}")
endfunction()

foreach(name client_utf8 client_codec client_connection client_conversations client_rings client_endpoint client_images)
  xlm_client_test(${name} xlm_client_objects)
endforeach()
# Frames of many KiB in libzmq, which is not instrumented, make a report of each of their words: suppressed, but so
# slowly that the connection is lost.
set_tests_properties(client_images PROPERTIES ENVIRONMENT
  "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/client_tsan.supp:ignore_noninstrumented_modules=1;ASAN_OPTIONS=detect_leaks=1")
foreach(name client_api client_broker)
  xlm_client_test(${name} xlm)
endforeach()
file(STRINGS "${PROJECT_SOURCE_DIR}/include/xlm/xlm.h" XLM_CODES REGEX "^    XLM_(ERROR_[A-Z0-9_]+|SUCCESS) *= -?[0-9]+")
list(LENGTH XLM_CODES XLM_N_CODES)
target_compile_definitions(client_api PRIVATE XLM_TEST_N_CODES=${XLM_N_CODES})
foreach(name client_stress client_cpp)
  xlm_client_test(${name} xlm)
  target_include_directories(${name} PRIVATE "${XLM_REPOSITORY}/bindings/cpp/include")
endforeach()

# The graphics APIs' budgets; Vulkan where its headers and loader are (any driver, a software one too).
xlm_client_test(client_os_budget xlm)
find_package(Vulkan QUIET)
if(Vulkan_FOUND AND NOT XLM_SANITIZE) # drivers leak a little as they are unloaded, under no name to suppress
  target_link_libraries(client_os_budget PRIVATE Vulkan::Vulkan)
  target_compile_definitions(client_os_budget PRIVATE XLM_TEST_VULKAN)
endif()
# Compiled where a compiler for Windows is at hand, and unrun.
find_program(XLM_MINGW x86_64-w64-mingw32-g++)
find_program(XLM_MINGW_C x86_64-w64-mingw32-gcc)
if(XLM_MINGW AND XLM_MINGW_C)
  set(XLM_MINGW_FLAGS -Wall -Wextra -Werror -fsyntax-only -I "${PROJECT_SOURCE_DIR}/include")
  add_test(NAME client_dxgi_compiles_as_c
    COMMAND ${XLM_MINGW_C} -std=c99 ${XLM_MINGW_FLAGS} "${XLM_REPOSITORY}/tests/abi/dxgi.c")
  add_test(NAME client_dxgi_compiles_as_cpp
    COMMAND ${XLM_MINGW} -std=c++17 -x c++ ${XLM_MINGW_FLAGS} "${XLM_REPOSITORY}/tests/abi/dxgi.c")
endif()

# Sanitizers bring a malloc of their own, which cannot be counted this way; their builds measure nothing either.
if(NOT XLM_SANITIZE AND CMAKE_SYSTEM_NAME STREQUAL "Linux")
  xlm_client_test(client_alloc xlm)
  add_executable(client_bench client_bench.cpp) # by hand, or by tests/bench: a clock decides nothing here
  target_link_libraries(client_bench PRIVATE xlm Threads::Threads)
  target_compile_definitions(client_bench PRIVATE
    XLM_PYTHON="${Python3_EXECUTABLE}"
    XLM_SDK_FOLDER="${XLM_REPOSITORY}/sdk"
    XLM_FAKE_BROKER="${CMAKE_CURRENT_SOURCE_DIR}/fake_broker.py")
endif()

# -- the ABI: tests/abi -------------------------------------------------------------------------------------------

set(XLM_ABI "${XLM_REPOSITORY}/tests/abi")
set(XLM_STRICT -Wall -Wextra -pedantic -Werror)

# The header alone, in both languages, without a warning.
add_library(client_header_c OBJECT "${XLM_ABI}/header.c")
target_compile_options(client_header_c PRIVATE ${XLM_STRICT} -Wstrict-prototypes -Wmissing-prototypes)
set_target_properties(client_header_c PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
add_library(client_header_cpp OBJECT "${XLM_ABI}/header.cpp")
target_compile_options(client_header_cpp PRIVATE ${XLM_STRICT} -Wold-style-cast -Wconversion)
target_include_directories(client_header_cpp PRIVATE "${XLM_REPOSITORY}/bindings/cpp/include")
target_link_libraries(client_header_c PRIVATE xlm)
target_link_libraries(client_header_cpp PRIVATE xlm)

add_test(NAME abi_append_only COMMAND Python3::Interpreter "${XLM_ABI}/append_only.py")
if(UNIX AND NOT APPLE)
  add_test(NAME abi_exports COMMAND Python3::Interpreter "${XLM_ABI}/exports.py" $<TARGET_FILE:xlm>)
endif()

# Programs that talk to a fake broker: old clients on today's library, and the samples.
function(xlm_talking_program name source)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE ${ARGN} Threads::Threads)
  target_compile_options(${name} PRIVATE ${XLM_STRICT})
  add_test(NAME ${name} COMMAND Python3::Interpreter "${XLM_ABI}/with_fake_broker.py" $<TARGET_FILE:${name}>)
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200
    ENVIRONMENT "${XLM_TEST_OPTIONS};PYTHONPATH=${XLM_REPOSITORY}/sdk"
    PASS_REGULAR_EXPRESSION "Greetings, traveller.")
endfunction()

foreach(version v0_1)
  # linked by file, so that only that version's header is in reach
  xlm_talking_program(abi_client_${version} "${XLM_ABI}/${version}/client.c" $<TARGET_FILE:xlm>)
  add_dependencies(abi_client_${version} xlm)
  target_include_directories(abi_client_${version} PRIVATE "${XLM_ABI}/${version}")
endforeach()
xlm_talking_program(sample_hello_c "${XLM_REPOSITORY}/samples/c/hello.c" xlm)
xlm_talking_program(sample_hello_cpp "${XLM_REPOSITORY}/samples/cpp/hello.cpp" xlm)
target_include_directories(sample_hello_cpp PRIVATE "${XLM_REPOSITORY}/bindings/cpp/include")

# What the tavern does without SDL and xlm; the game itself: tests/samples.
set(XLM_TAVERN "${XLM_REPOSITORY}/samples/c/tavern")
file(GLOB XLM_TAVERN_LOGIC CONFIGURE_DEPENDS "${XLM_TAVERN}/src/*.c")
list(FILTER XLM_TAVERN_LOGIC INCLUDE REGEX "/(font|layout|level|npc|script|textbox|utf8|wrap)\\.c$")
add_executable(sample_tavern_logic "${XLM_TAVERN}/test/logic.c" ${XLM_TAVERN_LOGIC})
target_include_directories(sample_tavern_logic PRIVATE "${XLM_TAVERN}/src")
target_compile_options(sample_tavern_logic PRIVATE ${XLM_STRICT})
set_target_properties(sample_tavern_logic PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
add_test(NAME sample_tavern_logic COMMAND sample_tavern_logic)

# The program of docs/c-api.md, against an installed library that is found with pkg-config.
find_package(PkgConfig)
if(PkgConfig_FOUND AND NOT XLM_SANITIZE)
  add_test(NAME abi_from_docs COMMAND Python3::Interpreter "${XLM_ABI}/from_docs.py"
    ${CMAKE_COMMAND} ${CMAKE_BINARY_DIR} ${CMAKE_C_COMPILER})
  set_tests_properties(abi_from_docs PROPERTIES TIMEOUT 1200 ENVIRONMENT "PYTHONPATH=${XLM_REPOSITORY}/sdk"
    PASS_REGULAR_EXPRESSION "Greetings, traveller.")
endif()

# Side by side (ctest -j), the longest ones first.
set_tests_properties(client_stress client_broker PROPERTIES COST 30)
