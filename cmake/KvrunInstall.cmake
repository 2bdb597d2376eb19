# Installs the programs, the library and its header, with a CMake package (kvrun::kvrun) and kvrun.pc.
# tests/install/run builds the C example against both.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(KVRUN_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/kvrun)

install(TARGETS kvrun EXPORT kvrunTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY runtime/include/kvrun DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT kvrunTargets NAMESPACE kvrun:: DESTINATION ${KVRUN_PACKAGE_DIR})
if(TARGET kvrun_cli)
  install(TARGETS kvrun_cli kvadapt RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

configure_package_config_file(cmake/kvrunConfig.cmake.in ${CMAKE_BINARY_DIR}/kvrunConfig.cmake
  INSTALL_DESTINATION ${KVRUN_PACKAGE_DIR})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/kvrunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/kvrunConfig.cmake ${CMAKE_BINARY_DIR}/kvrunConfigVersion.cmake
  DESTINATION ${KVRUN_PACKAGE_DIR})

# Paths in kvrun.pc are relative to the file, so that the installed tree can be moved.
set(KVRUN_PKGCONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH KVRUN_PC_PREFIX /${KVRUN_PKGCONFIG_DIR} /)
string(REGEX REPLACE "/$" "" KVRUN_PC_PREFIX "${KVRUN_PC_PREFIX}")
set(KVRUN_PC_URING "")
if(NOT ANDROID)
  set(KVRUN_PC_URING ", liburing")
endif()
configure_file(cmake/kvrun.pc.in ${CMAKE_BINARY_DIR}/kvrun.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/kvrun.pc DESTINATION ${KVRUN_PKGCONFIG_DIR})
