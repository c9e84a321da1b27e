# The CPU backend: portable files, and one object library per instruction set, whose -m flags must
# not leak into anything else (tools/check_kernel_symbols.sh looks after that).
file(GLOB sources CONFIGURE_DEPENDS src/backends/cpu/*.cc src/backends/cpu/reference/*.cc)
list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
if(NOT sources)
  add_library(backend_cpu INTERFACE)
  target_link_libraries(backend_cpu INTERFACE backends)
  return()
endif()
add_library(backend_cpu STATIC ${sources})
target_link_libraries(backend_cpu PUBLIC backends PRIVATE fmt::fmt)

function(add_isa name)
  file(GLOB isa_sources CONFIGURE_DEPENDS src/backends/cpu/${name}/*.cc)
  if(NOT isa_sources)
    return()
  endif()
  add_library(cpu_${name} OBJECT ${isa_sources})
  target_include_directories(cpu_${name} PRIVATE src)
  # GCC 12 warns inside its own immintrin.h, and miscompiles u8 - 128 dot products when it
  # vectorizes them for VNNI: kernels vectorize by hand.
  # Before registers are given out, GCC's scheduler moves loads so far up on arm64 that it runs out
  # of registers; the kernels are written in the order they should run.
  if(name MATCHES "neon")
    list(APPEND ARGN "$<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>")
  endif()
  target_compile_options(cpu_${name} PRIVATE ${ARGN} -O3 -fno-exceptions -fno-tree-vectorize
                         -ffp-contract=off
                         "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized>")
  target_sources(backend_cpu PRIVATE $<TARGET_OBJECTS:cpu_${name}>)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64")
  add_isa(avx2 -mavx2 -mfma -mf16c)
  set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mfma -mf16c)
  add_isa(avx512 ${avx512})
  add_isa(amx ${avx512} -mamx-tile -mamx-bf16)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  add_isa(neon -march=armv8-a)
  add_isa(neon_dot -march=armv8.2-a+dotprod)
  add_isa(neon_i8mm -march=armv8.2-a+dotprod+i8mm)
  add_isa(neon_bf16 -march=armv8.2-a+dotprod+i8mm+bf16)
endif()
