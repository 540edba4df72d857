# Tests of the cache device. The graph test opens XLM0 over the virtual GPU, one process a subject.
foreach(name backend_pure backend_analyse backend_experts_pure backend_tiles)
  add_executable(${name} ${name}.cpp)
  target_link_libraries(${name} PRIVATE xlm_backend_objects)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200)
endforeach()

# A program over the virtual GPU, a process a subject.
function(xlm_backend_suite name timeout)
  add_executable(${name} ${name}.cpp)
  target_link_libraries(${name} PRIVATE xlm_backend_objects)
  target_compile_definitions(${name} PRIVATE XLM_SIM_LIBRARY="$<TARGET_FILE:ggml-xlm-sim>")
  add_dependencies(${name} ggml-xlm-sim)
  foreach(subject ${ARGN})
    add_test(NAME ${name}_${subject} COMMAND ${name} ${subject})
    # Passive waiting: two OpenMP teams on a small machine would spin against each other.
    set_tests_properties(${name}_${subject} PROPERTIES
      TIMEOUT ${timeout}
      ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp;OMP_WAIT_POLICY=passive")
  endforeach()
endfunction()

xlm_backend_suite(backend_graph 1200
  sublayers uniform combinations budgets regrow reclaim reclaim_first allocations lost lost_unseen large_matrix long_steps parts storm pestered slow slow_storm untouched state
  models abort order closed)
xlm_backend_suite(backend_trace 300 events copies rows threads)
xlm_backend_suite(backend_experts 1200
  forms traffic prefill order all_on_cpu shared placements no_memory other_form resize window settle budgets reclaim storm pestered allocations lost abort models bad_calls)
xlm_backend_suite(backend_kv 300 streamed rings another_ring switched restored aborted contexts reclaims pestered lost)
xlm_backend_suite(backend_ahead 300 weights caches held lulls cpu_alone)
xlm_backend_suite(backend_lending 300 lent in_turn again below caches caches_alone schedules reclaims pestered lost)
xlm_backend_suite(backend_throws 300 throws)
xlm_backend_suite(backend_vision 1200 budgets picture views storm pestered kept return announced planned_once in_vain cpu_alone)

set_tests_properties(backend_experts_forms PROPERTIES COST 20) # side by side (ctest -j), the longest one first
