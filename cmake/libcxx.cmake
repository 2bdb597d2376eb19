# clang 14 with libc++: the pair that Android's toolchain is made of. What is C is the system's; what is C++ was built
# for libc++ by scripts/fetch-libraries libcxx, which itself needs this file (KVRUN_FETCHES_LIBRARIES).
set(CMAKE_C_COMPILER clang-14)
set(CMAKE_CXX_COMPILER clang++-14)
set(CMAKE_CXX_FLAGS_INIT -stdlib=libc++)

set(CMAKE_PREFIX_PATH ${CMAKE_CURRENT_LIST_DIR}/../.cache/libraries/libcxx)
cmake_path(NORMAL_PATH CMAKE_PREFIX_PATH)
if(NOT EXISTS ${CMAKE_PREFIX_PATH} AND NOT DEFINED ENV{KVRUN_FETCHES_LIBRARIES})
  message(FATAL_ERROR "${CMAKE_PREFIX_PATH} is not there: run scripts/fetch-libraries libcxx")
endif()
