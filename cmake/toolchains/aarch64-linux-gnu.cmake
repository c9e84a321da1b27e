# Cross build for arm64 with Debian's compiler. Libraries come from a folder of unpacked arm64
# packages (tools/arm64_sysroot.sh makes it), so that the build machine itself needs no second
# architecture. Tests of the result run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(KUN_ARM64_SYSROOT "$ENV{KUN_ARM64_SYSROOT}" CACHE PATH "folder of unpacked arm64 packages")
if(NOT IS_DIRECTORY "${KUN_ARM64_SYSROOT}")
  message(FATAL_ERROR "KUN_ARM64_SYSROOT names no folder; run tools/arm64_sysroot.sh, which makes "
                      "one and prints its path, and set the variable to that")
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KUN_ARM64_SYSROOT)

set(CMAKE_SYSROOT "${KUN_ARM64_SYSROOT}")
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# pkg-config would otherwise answer with the build machine's libraries.
set(ENV{PKG_CONFIG_SYSROOT_DIR} "${KUN_ARM64_SYSROOT}")
set(usr "${KUN_ARM64_SYSROOT}/usr")
set(ENV{PKG_CONFIG_LIBDIR} "${usr}/lib/aarch64-linux-gnu/pkgconfig:${usr}/share/pkgconfig")

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L "${KUN_ARM64_SYSROOT}")
