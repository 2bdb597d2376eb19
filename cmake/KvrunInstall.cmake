# Installs the programs with man pages and completions, and the library with its header, a CMake package
# (kvrun::kvrun), kvrun.pc and the C examples. tests/install/run builds the examples against both.
#
# The components that Debian's packages are made of (KvrunPackage.cmake) lie partly in other folders, and are
# installed only when they are named.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# kvrun_install_library(COMPONENT LIBDIR EXAMPLES [EXCLUDE_FROM_ALL])
function(kvrun_install_library component libdir examples)
  set(package_dir ${libdir}/cmake/kvrun)
  set(work ${CMAKE_BINARY_DIR}/${component})
  install(TARGETS kvrun EXPORT kvrun_${component} ARCHIVE DESTINATION ${libdir} COMPONENT ${component} ${ARGN})
  install(EXPORT kvrun_${component} FILE kvrunTargets.cmake NAMESPACE kvrun:: DESTINATION ${package_dir}
    COMPONENT ${component} ${ARGN})
  install(DIRECTORY runtime/include/kvrun DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT ${component} ${ARGN})
  configure_package_config_file(cmake/kvrunConfig.cmake.in ${work}/kvrunConfig.cmake INSTALL_DESTINATION ${package_dir})
  # Before 1.0 a minor version may change the interface.
  write_basic_package_version_file(${work}/kvrunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${work}/kvrunConfig.cmake ${work}/kvrunConfigVersion.cmake DESTINATION ${package_dir}
    COMPONENT ${component} ${ARGN})

  # Paths in kvrun.pc are relative to the file, so that the installed tree can be moved.
  file(RELATIVE_PATH KVRUN_PC_PREFIX /${libdir}/pkgconfig /)
  string(REGEX REPLACE "/$" "" KVRUN_PC_PREFIX "${KVRUN_PC_PREFIX}")
  set(KVRUN_PC_LIBDIR ${libdir})
  set(KVRUN_PC_URING "")
  if(KVRUN_IO_URING)
    set(KVRUN_PC_URING ", liburing")
  endif()
  set(KVRUN_PC_CRYPTO "")
  if(KVRUN_OPENSSL)
    set(KVRUN_PC_CRYPTO ", libcrypto >= 3.0")
  endif()
  configure_file(cmake/kvrun.pc.in ${work}/kvrun.pc @ONLY)
  install(FILES ${work}/kvrun.pc DESTINATION ${libdir}/pkgconfig COMPONENT ${component} ${ARGN})
  install(FILES examples/c/CMakeLists.txt examples/c/generate.c examples/c/answer_many.c DESTINATION ${examples}
    COMPONENT ${component} ${ARGN})
endfunction()

set(KVRUN_DOC_DIR ${CMAKE_INSTALL_DATADIR}/doc)
kvrun_install_library(library ${CMAKE_INSTALL_LIBDIR} ${KVRUN_DOC_DIR}/kvrun/examples)
install(FILES LICENSE DESTINATION ${KVRUN_DOC_DIR}/kvrun COMPONENT licence)
set(KVRUN_INSTALLED_TARGETS kvrun)
if(TARGET kvrun_cli)
  install(TARGETS kvrun_cli kvadapt RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
  list(APPEND KVRUN_INSTALLED_TARGETS kvrun_cli kvadapt)
endif()
if(KVRUN_DOCUMENTS_DIR)
  install(DIRECTORY ${KVRUN_DOCUMENTS_DIR}/share/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT programs
    PATTERN zsh EXCLUDE)
  install(DIRECTORY ${KVRUN_DOCUMENTS_DIR}/share/zsh DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT zsh)
endif()
if(TARGET kvrun_documents)
  list(APPEND KVRUN_INSTALLED_TARGETS kvrun_documents)
endif()
# All that `cmake --install` needs, without the tests.
add_custom_target(kvrun_installed DEPENDS ${KVRUN_INSTALLED_TARGETS})
