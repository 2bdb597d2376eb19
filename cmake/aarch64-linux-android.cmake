# Android on 64-bit Arm, with the NDK that ANDROID_NDK_HOME names, and the libraries that
# scripts/fetch-libraries aarch64-linux-android built with it, which itself needs this file (KVRUN_FETCHES_LIBRARIES).
if(NOT EXISTS $ENV{ANDROID_NDK_HOME}/build/cmake/android.toolchain.cmake)
  message(FATAL_ERROR "ANDROID_NDK_HOME is '$ENV{ANDROID_NDK_HOME}', which is no folder of an Android NDK: set it")
endif()
set(ANDROID_ABI arm64-v8a)
set(ANDROID_PLATFORM android-30)  # of what kvrun calls, statx() is the newest
set(ANDROID_STL c++_static)
include($ENV{ANDROID_NDK_HOME}/build/cmake/android.toolchain.cmake)
add_link_options(-Wl,-z,max-page-size=16384)  # newer phones have pages of 16 KiB

cmake_path(SET KVRUN_LIBRARIES NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../.cache/libraries/aarch64-linux-android)
if(NOT EXISTS ${KVRUN_LIBRARIES} AND NOT DEFINED ENV{KVRUN_FETCHES_LIBRARIES})
  message(FATAL_ERROR "${KVRUN_LIBRARIES} is not there: run scripts/fetch-libraries aarch64-linux-android")
endif()
list(PREPEND CMAKE_FIND_ROOT_PATH ${KVRUN_LIBRARIES})
set(ENV{PKG_CONFIG_LIBDIR} ${KVRUN_LIBRARIES}/lib/pkgconfig)
