# The Rust libraries (bridge/) as one imported static library, built by cargo in the build folder.
# Cargo fetches the crates that bridge/Cargo.lock names once; after that it works offline.
find_program(CARGO cargo DOC "cargo 1.87 or newer; Debian 12 packages it as cargo-web")
if(NOT CARGO)
  message(FATAL_ERROR "cargo was not found: install cargo-web (Debian 12) or cargo 1.87 or newer")
endif()

# Build folders may share it: what cargo makes depends on the target alone, not on C++ flags.
set(KUN_BRIDGE_FOLDER ${CMAKE_BINARY_DIR}/bridge CACHE PATH "where cargo builds")
set(bridge_target_dir ${KUN_BRIDGE_FOLDER})
set(bridge_profile_dir ${bridge_target_dir}/release)
set(bridge_arguments build --release --locked --quiet --lib
                     --manifest-path ${CMAKE_SOURCE_DIR}/bridge/Cargo.toml
                     --target-dir ${bridge_target_dir})
set(bridge_environment "")
if(CMAKE_CROSSCOMPILING AND CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(bridge_triple aarch64-unknown-linux-gnu)
  set(bridge_profile_dir ${bridge_target_dir}/${bridge_triple}/release)
  list(APPEND bridge_arguments --target ${bridge_triple})
  set(bridge_environment CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc)
  # The unpacked packages may hold Debian's Rust library for arm64, which fits Debian's rustc only.
  if(IS_DIRECTORY "${KUN_ARM64_SYSROOT}/rust")
    find_program(DEBIAN_RUSTC rustc PATHS /usr/bin NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
    find_program(DEBIAN_CARGO cargo PATHS /usr/bin NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
    list(APPEND bridge_environment RUSTC=${DEBIAN_RUSTC}
         "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS=--sysroot=${KUN_ARM64_SYSROOT}/rust")
    set(CARGO ${DEBIAN_CARGO})
  endif()
endif()

set(bridge_library ${bridge_profile_dir}/libkun_bridge.a)
file(GLOB bridge_sources CONFIGURE_DEPENDS bridge/src/*.rs)
add_custom_command(
  OUTPUT ${bridge_library}
  COMMAND ${CMAKE_COMMAND} -E env ${bridge_environment} ${CARGO} ${bridge_arguments}
  # Cargo leaves the library alone when nothing it compiles has changed; ninja goes by its time.
  COMMAND ${CMAKE_COMMAND} -E touch_nocreate ${bridge_library}
  DEPENDS ${bridge_sources} bridge/Cargo.toml bridge/Cargo.lock
  COMMENT "Building bridge with cargo"
  VERBATIM)
add_custom_target(bridge_build DEPENDS ${bridge_library})

add_library(bridge STATIC IMPORTED GLOBAL)
add_dependencies(bridge bridge_build)
set_target_properties(bridge PROPERTIES
  IMPORTED_LOCATION ${bridge_library}
  INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_SOURCE_DIR}/bridge/include
  INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};m")
