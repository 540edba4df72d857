# Finds what the native libraries need of ggml:
#  - the private headers of the pinned llama-cpp-python source distribution
#    (never committed; native/tools/fetch_ggml_headers.py puts them under build/ggml),
#  - the shared libraries of the *installed* llama-cpp-python, linked through
#    their sonames (.so.0): the wheel holds libggml.so and libggml.so.0 as two
#    files, and linking the other one would make a second registry.
set(XLM_GGML_DIR "${CMAKE_CURRENT_SOURCE_DIR}/../build/ggml" CACHE PATH "folder with ggml's include/ and src/ headers")
set(XLM_LLAMA_LIB_DIR "" CACHE PATH "lib folder of the installed llama_cpp package")

find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(NOT XLM_LLAMA_LIB_DIR)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u, pathlib; print(pathlib.Path(u.find_spec('llama_cpp').origin).parent / 'lib')"
    OUTPUT_VARIABLE XLM_LLAMA_LIB_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE xlm_rc)
  if(NOT xlm_rc EQUAL 0)
    message(FATAL_ERROR "llama-cpp-python is not installed for ${Python3_EXECUTABLE}: run `make setup`, or pass -DXLM_LLAMA_LIB_DIR=...")
  endif()
endif()
if(NOT EXISTS "${XLM_GGML_DIR}/src/ggml-backend-impl.h")
  message(FATAL_ERROR "ggml headers not found in ${XLM_GGML_DIR}: run `make setup`, or pass -DXLM_GGML_DIR=...")
endif()

foreach(lib ggml-base ggml-cpu ggml)
  find_file(XLM_LIB_${lib} NAMES lib${lib}.so.0 lib${lib}.0.dylib ${lib}.lib PATHS "${XLM_LLAMA_LIB_DIR}" NO_DEFAULT_PATH REQUIRED)
  add_library(xlm::${lib} SHARED IMPORTED GLOBAL)
  set_target_properties(xlm::${lib} PROPERTIES IMPORTED_LOCATION "${XLM_LIB_${lib}}" IMPORTED_IMPLIB "${XLM_LIB_${lib}}")
endforeach()

add_library(xlm_ggml INTERFACE)
target_include_directories(xlm_ggml SYSTEM INTERFACE "${XLM_GGML_DIR}/include" "${XLM_GGML_DIR}/src")
target_link_libraries(xlm_ggml INTERFACE xlm::ggml xlm::ggml-cpu xlm::ggml-base)
# The exact ggml these libraries are built against, "<version> <commit>"; checked again at load.
execute_process(
  COMMAND ${Python3_EXECUTABLE} "${CMAKE_CURRENT_SOURCE_DIR}/tools/ggml_build_id.py" "${XLM_LIB_ggml-base}"
  OUTPUT_VARIABLE XLM_GGML_BUILD_ID OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "xlm: ggml ${XLM_GGML_BUILD_ID} in ${XLM_LLAMA_LIB_DIR}")
target_compile_definitions(xlm_ggml INTERFACE XLM_GGML_BUILD_ID="${XLM_GGML_BUILD_ID}")
