# Static programs for 64-bit Arm: Zig's clang with libc++ and musl, a C library as narrow as Android's, and the libraries
# that scripts/fetch-libraries aarch64-linux-musl built, which itself needs this file (KVRUN_FETCHES_LIBRARIES). A
# static program cannot open a Vulkan loader: see the preset musl. Tests run with qemu-aarch64-static.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
cmake_path(SET KVRUN_CACHE NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../.cache)
set(CMAKE_C_COMPILER ${KVRUN_CACHE}/zig/bin/aarch64-linux-musl-clang)
set(CMAKE_CXX_COMPILER ${KVRUN_CACHE}/zig/bin/aarch64-linux-musl-clang++)
set(CMAKE_AR aarch64-linux-gnu-ar)
set(CMAKE_RANLIB aarch64-linux-gnu-ranlib)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
# Optimized in CMake's own checks too: Zig would build its C and C++ libraries once more for programs that are not.
# It would also write what debuggers read, which is most of a program.
set(CMAKE_C_FLAGS_INIT "-O1 -g0")
set(CMAKE_CXX_FLAGS_INIT "-O1 -g0")

set(CMAKE_FIND_ROOT_PATH ${KVRUN_CACHE}/libraries/aarch64-linux-musl)
if(NOT EXISTS ${CMAKE_FIND_ROOT_PATH} AND NOT DEFINED ENV{KVRUN_FETCHES_LIBRARIES})
  message(FATAL_ERROR "${CMAKE_FIND_ROOT_PATH} is not there: run scripts/fetch-libraries aarch64-linux-musl")
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_FIND_ROOT_PATH}/lib/pkgconfig)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
