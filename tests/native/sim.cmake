# Tests of the virtual GPU. Those of its pure parts link the object library,
# the others load the plugin as llama.cpp does.
function(xlm_sim_test name)
  add_executable(${name} ${name}.cpp)
  target_link_libraries(${name} PRIVATE ${ARGN} xlm_headers xlm_ggml Threads::Threads)
  target_compile_definitions(${name} PRIVATE XLM_SIM_LIBRARY="$<TARGET_FILE:ggml-xlm-sim>")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES
    TIMEOUT 1200
    ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp;OMP_WAIT_POLICY=passive")
endfunction()

foreach(name sim_timeline sim_link_engine sim_config sim_cost_model sim_memory sim_modelled_stream)
  xlm_sim_test(${name} xlm_sim_objects)
endforeach()
foreach(name sim_device sim_streams sim_exact sim_loss sim_modelled)
  xlm_sim_test(${name} ggml-xlm-sim)
endforeach()

# A broken XLM_SIM must not become a device.
add_executable(sim_environment sim_environment.cpp)
target_link_libraries(sim_environment PRIVATE ggml-xlm-sim xlm_headers xlm_ggml)
target_compile_definitions(sim_environment PRIVATE XLM_SIM_LIBRARY="$<TARGET_FILE:ggml-xlm-sim>")
add_test(NAME sim_environment_good COMMAND sim_environment good)
set_tests_properties(sim_environment_good PROPERTIES ENVIRONMENT "XLM_SIM=mode=modelled,vram=3MiB,link=1e9")
add_test(NAME sim_environment_bad COMMAND sim_environment bad)
set_tests_properties(sim_environment_bad PROPERTIES ENVIRONMENT "XLM_SIM=mode=turbo")
