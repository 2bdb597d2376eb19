# Where each core has 3 GB, GCC collects no garbage: a tenth of its time, for 400 MB more.
cmake_host_system_information(RESULT memory_mb QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT n_cores QUERY NUMBER_OF_LOGICAL_CORES)
set(KVRUN_GCC_OPTIONS "")
if(EXISTS /sys/fs/cgroup/memory.max)  # a container's
  file(READ /sys/fs/cgroup/memory.max limit)
  string(REGEX MATCH "^[0-9]+" limit "${limit}")
  if(limit)
    math(EXPR limit "${limit} / 1048576")
    if(limit LESS memory_mb)
      set(memory_mb ${limit})
    endif()
  endif()
endif()
math(EXPR enough_mb "3000 * ${n_cores}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND memory_mb GREATER_EQUAL enough_mb)
  set(KVRUN_GCC_OPTIONS --param=ggc-min-heapsize=1000000)
endif()

# kvrun_target(NAME): language level, warnings as errors and sanitizers, the same for every target.
function(kvrun_target name)
  target_compile_features(${name} PRIVATE cxx_std_20)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden
    POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror
    ${KVRUN_GCC_OPTIONS})
  if(KVRUN_UNITY)
    kvrun_group_sources(${name})
  endif()
  if(KVRUN_SANITIZE)
    # GCC's flow analysis sees uninitialised values in code that the sanitizers have added.
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-error=maybe-uninitialized>)
    target_compile_options(${name} PUBLIC -fsanitize=${KVRUN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${name} PUBLIC -fsanitize=${KVRUN_SANITIZE})
    if(NOT KVRUN_SANITIZE_ALL_SETS)
      target_compile_definitions(${name} PRIVATE HWY_COMPILE_ONLY_STATIC)
      if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
        target_compile_options(${name} PRIVATE -msse4.2 -maes -mpclmul)
      endif()
    endif()
  endif()
endfunction()

# kvrun_group_sources(NAME): several files are compiled as one, in a third of the time. A file's group follows from its
# name, so that a new file moves no other to another group. What is local to files of a group must differ in name: where
# it does not, a file with the comment "// Not grouped" is compiled alone, as is what Highway compiles several times: the
# CPU's kernels, which have KVRUN_KERNEL_OPTIONS.
function(kvrun_group_sources name)
  get_target_property(files ${name} SOURCES)
  list(LENGTH files n_files)
  set(hex_digits_of_group 2)
  if(name MATCHES "_tests$")  # they have many names in common
    set(hex_digits_of_group 1)
  elseif(n_files LESS 50)
    set(hex_digits_of_group 4)
  endif()
  foreach(file IN LISTS files)
    cmake_path(ABSOLUTE_PATH file OUTPUT_VARIABLE path)
    if(NOT file MATCHES "\\.cc$" OR NOT EXISTS ${path})
      continue()
    endif()
    file(STRINGS ${path} alone LIMIT_COUNT 1 REGEX "instruction_targets\\.h|// Not grouped")
    if(NOT alone)
      cmake_path(GET path FILENAME group)
      string(MD5 group ${group})
      string(SUBSTRING ${group} 0 1 group)
      math(EXPR group "0x${group} / ${hex_digits_of_group}")
      set_source_files_properties(${file} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  target_compile_options(${name} PRIVATE -Wno-shadow)  # of what is local to another file
endfunction()

# kvrun_hot_target(NAME): where tests spend their time. With sanitizers it is optimised a little, and nothing else is: that
# compiles in half the time.
function(kvrun_hot_target name)
  if(KVRUN_SANITIZE)
    target_compile_options(${name} PRIVATE -O1)
  endif()
endfunction()
