# tests/fuzz/x_fuzz.cc holds one libFuzzer target each, with its seeds in tests/fuzz/corpus/x. As a
# test, any compiler runs the seeds, and truncations of them, through it. With KUN_FUZZERS (clang
# only) it is a fuzzer as well: see tests/fuzz/README.md
file(GLOB fuzz_sources CONFIGURE_DEPENDS tests/fuzz/*_fuzz.cc)

if(KUN_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "KUN_FUZZERS needs clang: configure with -DCMAKE_CXX_COMPILER=clang++")
  endif()
  foreach(module IN LISTS modules ITEMS backend_cpu)
    get_target_property(type ${module} TYPE)
    if(NOT type STREQUAL "INTERFACE_LIBRARY")
      target_compile_options(${module} PRIVATE -fsanitize=fuzzer-no-link,address)
      target_link_options(${module} PUBLIC -fsanitize=address)
    endif()
  endforeach()
endif()

foreach(source IN LISTS fuzz_sources)
  get_filename_component(name ${source} NAME_WE)
  string(REGEX REPLACE "_fuzz$" "" topic ${name})
  # A target links the modules whose headers it includes, so that building it builds little.
  file(STRINGS ${source} includes REGEX "^#include \"[a-z]+/")
  list(TRANSFORM includes REPLACE "^#include \"([a-z]+)/.*" "\\1")
  list(REMOVE_DUPLICATES includes)
  if(KUN_FUZZERS)
    add_executable(${name} ${source})
    target_include_directories(${name} PRIVATE src)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer,address)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer,address)
    target_link_libraries(${name} PRIVATE ${includes})
  endif()
  if(KUN_TESTS)
    add_test_program(${name}_seeds TIER fuzz SOURCES ${source} tests/fuzz/seeds.cc LINK ${includes})
    target_compile_definitions(${name}_seeds
                               PRIVATE KUN_SEEDS="${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${topic}"
                                       KUN_FUZZER=${name})
  endif()
endforeach()
