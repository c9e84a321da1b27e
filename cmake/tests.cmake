# One test program per module, from the *_test.cc files beside its sources; tests/ holds what no
# single module owns. Tests that read shared data get the folders through these definitions. The
# label of a test is its tier: unit and conformance beside the sources, else the suite's folder.
find_package(GTest REQUIRED)
include(GoogleTest)

# ccache cannot reuse a precompiled header, and gtest's own are the half of a test's compile time:
# they are precompiled only where a build starts from nothing (.ci/run asks for it).
option(KUN_PRECOMPILE_TESTS "precompile the test framework's headers" OFF)

function(add_test_program name)
  cmake_parse_arguments(arg "" "TIER" "SOURCES;LINK" ${ARGN})
  if(NOT arg_SOURCES)
    return()
  endif()
  if(TARGET ${name})  # a suite in tests/ that carries a module's name
    target_sources(${name} PRIVATE ${arg_SOURCES})
    target_link_libraries(${name} PRIVATE ${arg_LINK})
    return()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE src)
  target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gtest GTest::gmock GTest::gtest_main
                                        fmt::fmt)
  target_compile_definitions(${name} PRIVATE KUN_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
                                             KUN_SHARED_DATA="${CMAKE_SOURCE_DIR}/../shared/data")
  if(KUN_PRECOMPILE_TESTS)
    target_precompile_headers(${name} PRIVATE <gtest/gtest.h> <gmock/gmock.h>)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
                       PROPERTIES TIMEOUT 600 LABELS ${arg_TIER})
endfunction()

foreach(module IN LISTS modules)
  file(GLOB tests CONFIGURE_DEPENDS src/${module}/*_test.cc)
  add_test_program(${module}_tests TIER unit SOURCES ${tests} LINK ${module} ${${module}_externals}
                   ${${module}_test_externals})
endforeach()

file(GLOB tests CONFIGURE_DEPENDS src/backends/cpu/*_test.cc)
add_test_program(backend_cpu_tests TIER conformance SOURCES ${tests} LINK backend_cpu)

file(GLOB suites CONFIGURE_DEPENDS LIST_DIRECTORIES true tests/*)
foreach(suite IN LISTS suites)
  get_filename_component(name ${suite} NAME)
  file(GLOB tests CONFIGURE_DEPENDS ${suite}/*_test.cc)
  add_test_program(${name}_tests TIER ${name} SOURCES ${tests} LINK runtime server backend_cpu
                   ${${name}_test_externals})
endforeach()
