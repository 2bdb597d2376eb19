# kvrun_embed_shaders(TARGET): compiles every variant of shaders/variants.txt to SPIR-V and embeds it in TARGET, where runtime/device/vulkan/shader_library.h finds it by name.
#
# What depends only on the list (the table and the assembler file that includes the binaries) is written when
# CMake configures; all variants of a file are one command of the build.
#
# SPIR-V does not depend on the processor: a build for another one may take what the target kvrun_shaders of this one made.
set(KVRUN_SPIRV_DIR "" CACHE PATH "Folder of another build's shaders, which are taken as they are; empty: compile them")
enable_language(ASM)
find_program(KVRUN_GLSLC glslc REQUIRED)
find_program(KVRUN_SPIRV_OPT spirv-opt REQUIRED)

# What makes a shader small and plain: functions are inlined, variables become values, what is constant or unused goes. Left
# out of spirv-opt -O: unrolling of loops and elimination of redundancy, which take four fifths of the compiler's time and
# make binaries two and a half times as large; drivers do both by themselves (docs/decisions/operations.md).
set(KVRUN_SPIRV_PASSES
  --wrap-opkill --eliminate-dead-branches --merge-return --inline-entry-points-exhaustive --eliminate-dead-functions
  --eliminate-dead-code-aggressive --private-to-local --eliminate-local-single-block --eliminate-local-single-store
  --eliminate-dead-code-aggressive --scalar-replacement=100 --convert-local-access-chains --eliminate-local-single-block
  --eliminate-local-single-store --eliminate-dead-code-aggressive --ssa-rewrite --eliminate-dead-code-aggressive --ccp
  --eliminate-dead-code-aggressive --eliminate-dead-branches --if-conversion --copy-propagate-arrays --reduce-load-size
  --eliminate-dead-code-aggressive --merge-blocks --simplify-instructions --eliminate-dead-inserts --cfg-cleanup
  --eliminate-dead-code-aggressive --strip-debug)

# Sets OUT to one line such as "glslc: shaderc 2023.2-1, spirv-tools 2022.4, glslang 11.13.0-1".
function(kvrun_shader_compiler_version out)
  execute_process(COMMAND ${KVRUN_GLSLC} --version OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "\n\n.*" "" text "${text}")
  string(STRIP "${text}" text)
  string(REPLACE "\n" ", " text "${text}")
  set(${out} "glslc: ${text}" PARENT_SCOPE)
endfunction()

# Adds the command that makes the variants of FILE in FOLDER; the rest are lines NAME MACRO=VALUE... What a shader includes
# is not asked for: a change of any compiles all of them, in seconds.
function(kvrun_compile_shader folder file)
  set(source ${CMAKE_SOURCE_DIR}/shaders/${file})
  if(NOT EXISTS ${source})
    message(FATAL_ERROR "shaders/variants.txt names ${file}, which is not in shaders/")
  endif()
  set(list ${folder}/${file}.variants)
  list(JOIN ARGN "\n" lines)
  file(CONFIGURE OUTPUT ${list} CONTENT "${lines}\n" @ONLY)
  list(TRANSFORM ARGN REPLACE " .*" ".spv" OUTPUT_VARIABLE binaries)
  list(TRANSFORM binaries PREPEND ${folder}/)
  file(GLOB included CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/shaders/include/* ${CMAKE_SOURCE_DIR}/shaders/shared/*)
  set(script ${CMAKE_SOURCE_DIR}/cmake/compile_shaders.sh)
  # scripts/test has spirv-val look at all of them.
  add_custom_command(
    OUTPUT ${binaries}
    COMMAND ${script} ${KVRUN_GLSLC} ${KVRUN_SPIRV_OPT} ${source} ${list} ${folder} ${KVRUN_SPIRV_PASSES}
    DEPENDS ${source} ${list} ${included} ${script}
    COMMENT "Shader ${file}"
    VERBATIM)
endfunction()

function(kvrun_embed_shaders target)
  set(list_file ${CMAKE_SOURCE_DIR}/shaders/variants.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${list_file})
  set(folder ${CMAKE_BINARY_DIR}/shaders)
  file(MAKE_DIRECTORY ${folder})
  set(spirv_folder ${folder})
  if(KVRUN_SPIRV_DIR)
    set(spirv_folder ${KVRUN_SPIRV_DIR})
  endif()

  file(STRINGS ${list_file} lines REGEX "^[^#]")
  set(binaries "")
  set(names "")
  set(files "")
  foreach(line IN LISTS lines)
    separate_arguments(fields UNIX_COMMAND "${line}")
    list(LENGTH fields count)
    if(count EQUAL 0)
      continue()
    elseif(count EQUAL 1)
      message(FATAL_ERROR "shaders/variants.txt: expected '<name> <file.comp> MACRO=VALUE...', got '${line}'")
    endif()
    list(POP_FRONT fields name file)
    set(paths "")
    if("+texel" IN_LIST fields)
      list(REMOVE_ITEM fields "+texel")
      set(paths "_texel")
    endif()
    foreach(path IN LISTS paths ITEMS "")
      if(${name}${path} IN_LIST names)
        message(FATAL_ERROR "shaders/variants.txt: '${name}${path}' is there twice")
      endif()
      set(spv ${spirv_folder}/${name}${path}.spv)
      if(KVRUN_SPIRV_DIR AND NOT EXISTS ${spv})
        message(FATAL_ERROR "KVRUN_SPIRV_DIR: ${spv} is not there: build the target kvrun_shaders of that build first")
      endif()
      list(JOIN fields " " macros)
      if(path STREQUAL "_texel")
        string(APPEND macros " PATH_TEXEL")
      endif()
      list(APPEND files ${file})
      list(APPEND variants_of_${file} "${name}${path} ${macros}")
      list(APPEND names ${name}${path})
      list(APPEND binaries ${spv})
    endforeach()
  endforeach()

  list(REMOVE_DUPLICATES files)
  if(NOT KVRUN_SPIRV_DIR)
    foreach(file IN LISTS files)
      kvrun_compile_shader(${folder} ${file} ${variants_of_${file}})
    endforeach()
  endif()

  set(KVRUN_BLOBS "")
  set(KVRUN_SYMBOLS "")
  set(KVRUN_ROWS "")
  list(SORT names)  # the table is searched by bisection
  foreach(name IN LISTS names)
    string(APPEND KVRUN_BLOBS "SHADER kvrun_spv_${name}, \"${spirv_folder}/${name}.spv\"\n")
    string(APPEND KVRUN_SYMBOLS "extern const uint32_t kvrun_spv_${name}[];\n")
    string(APPEND KVRUN_SYMBOLS "extern const uint32_t kvrun_spv_${name}_words;\n")
    string(APPEND KVRUN_ROWS "    {\"${name}\", {kvrun_spv_${name}, kvrun_spv_${name}_words}},\n")
  endforeach()
  kvrun_shader_compiler_version(KVRUN_SHADER_COMPILER_VERSION)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/shader_blobs.S.in ${folder}/shader_blobs.S @ONLY)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/shader_table.cc.in ${folder}/shader_table.cc @ONLY)
  add_custom_target(kvrun_shaders DEPENDS ${binaries})
  set_source_files_properties(${folder}/shader_blobs.S PROPERTIES OBJECT_DEPENDS "${binaries}")
  target_sources(${target} PRIVATE ${folder}/shader_blobs.S ${folder}/shader_table.cc)
endfunction()
