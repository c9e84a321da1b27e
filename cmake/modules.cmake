# One library per line of src/LAYERS: the drawing of the house is also its building plan. What a
# module links beyond its layers is listed in dependencies.cmake.
file(STRINGS src/LAYERS layers REGEX "^[a-z]")
set(modules "")
foreach(layer IN LISTS layers)
  string(REGEX MATCH "^[a-z]+" module ${layer})
  string(REGEX REPLACE "^[a-z]+ *:" "" uses ${layer})
  separate_arguments(uses)
  list(APPEND modules ${module})
  file(GLOB sources CONFIGURE_DEPENDS src/${module}/*.cc)
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_library(${module} STATIC ${sources})
    set(scope PUBLIC)
    target_link_libraries(${module} PRIVATE ${${module}_externals} fmt::fmt)
  else()
    add_library(${module} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${module} ${scope} src)
  target_link_libraries(${module} ${scope} ${uses} Threads::Threads)
endforeach()

# The reference dequantizers reproduce ggml bit for bit: no fused multiply-add may change a
# rounding.
set_source_files_properties(src/tensor/dequantize.cc PROPERTIES COMPILE_OPTIONS
                                                                "-ffp-contract=off")

# The models that travel inside the program.
enable_language(ASM)
set(KUN_TINY_V3 ${CMAKE_SOURCE_DIR}/models/kun-tiny-v3)
configure_file(src/hub/bundled_files.S.in ${CMAKE_BINARY_DIR}/bundled_files.S @ONLY)
file(GLOB bundled_files CONFIGURE_DEPENDS ${KUN_TINY_V3}/*)
set_source_files_properties(${CMAKE_BINARY_DIR}/bundled_files.S PROPERTIES OBJECT_DEPENDS
                                                                           "${bundled_files}")
target_sources(hub PRIVATE ${CMAKE_BINARY_DIR}/bundled_files.S)
