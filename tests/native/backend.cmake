# Tests of the cache device. The graph test opens XLM0 over the virtual GPU, one process a subject.
foreach(name backend_pure backend_analyse backend_experts_pure backend_tiles)
  add_executable(${name} ${name}.cpp)
  target_link_libraries(${name} PRIVATE xlm_backend_objects)
  add_test(NAME ${name} COMMAND ${name})
endforeach()
add_executable(backend_graph backend_graph.cpp)
target_link_libraries(backend_graph PRIVATE xlm_backend_objects)
target_compile_definitions(backend_graph PRIVATE XLM_SIM_LIBRARY="$<TARGET_FILE:ggml-xlm-sim>")
add_dependencies(backend_graph ggml-xlm-sim)

set(xlm_backend_tests backend_pure backend_analyse backend_tiles)
foreach(subject sublayers uniform combinations budgets regrow reclaim reclaim_first allocations lost lost_unseen large_matrix parts storm pestered
  untouched state trace trace_threads models abort order closed)
  add_test(NAME backend_${subject} COMMAND backend_graph ${subject})
  list(APPEND xlm_backend_tests backend_${subject})
endforeach()
# Passive waiting: two OpenMP teams on a small machine would spin against each other.
set_tests_properties(${xlm_backend_tests} PROPERTIES
  TIMEOUT 1200
  ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp;OMP_WAIT_POLICY=passive")

add_executable(backend_experts backend_experts.cpp)
target_link_libraries(backend_experts PRIVATE xlm_backend_objects)
target_compile_definitions(backend_experts PRIVATE XLM_SIM_LIBRARY="$<TARGET_FILE:ggml-xlm-sim>")
add_dependencies(backend_experts ggml-xlm-sim)
foreach(subject forms traffic prefill placements no_memory other_form resize settle budgets reclaim storm pestered allocations lost abort models bad_calls)
  add_test(NAME backend_experts_${subject} COMMAND backend_experts ${subject})
  set_tests_properties(backend_experts_${subject} PROPERTIES
    TIMEOUT 1200
    ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp;OMP_WAIT_POLICY=passive")
endforeach()

add_executable(backend_kv backend_kv.cpp)
target_link_libraries(backend_kv PRIVATE xlm_backend_objects)
target_compile_definitions(backend_kv PRIVATE XLM_SIM_LIBRARY="$<TARGET_FILE:ggml-xlm-sim>")
add_dependencies(backend_kv ggml-xlm-sim)
foreach(subject streamed rings switched restored aborted contexts reclaims pestered lost)
  add_test(NAME backend_kv_${subject} COMMAND backend_kv ${subject})
  set_tests_properties(backend_kv_${subject} PROPERTIES
    TIMEOUT 300
    ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp;OMP_WAIT_POLICY=passive")
endforeach()

add_executable(backend_vision backend_vision.cpp)
target_link_libraries(backend_vision PRIVATE xlm_backend_objects)
target_compile_definitions(backend_vision PRIVATE XLM_SIM_LIBRARY="$<TARGET_FILE:ggml-xlm-sim>")
add_dependencies(backend_vision ggml-xlm-sim)
foreach(subject budgets views storm pestered return)
  add_test(NAME backend_vision_${subject} COMMAND backend_vision ${subject})
  set_tests_properties(backend_vision_${subject} PROPERTIES
    TIMEOUT 1200
    ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/tsan.supp;OMP_WAIT_POLICY=passive")
endforeach()

set_tests_properties(backend_experts_forms PROPERTIES COST 20) # side by side (ctest -j), the longest one first
