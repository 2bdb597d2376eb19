# Debian packages by CPack (scripts/package): kvrun, the programs, and libkvrun-dev, the library. They are made of the
# components that KvrunInstall.cmake installs and of what Debian wants besides: copyright, changelog, and the library in
# the folder of its architecture.
if(NOT CMAKE_LIBRARY_ARCHITECTURE OR NOT TARGET kvrun_cli)
  return()  # not Debian
endif()

kvrun_install_library(package_library lib/${CMAKE_LIBRARY_ARCHITECTURE} share/doc/libkvrun-dev/examples EXCLUDE_FROM_ALL)

# As Debian's own tools name a maintainer.
set(KVRUN_MAINTAINER "kvrun maintainers <maintainers@kvrun.invalid>")
if(DEFINED ENV{DEBEMAIL})
  set(KVRUN_MAINTAINER "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
# The newest change, so that the same sources make the same package.
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} log -1 --format=%cD
  OUTPUT_VARIABLE KVRUN_CHANGE_DATE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT KVRUN_CHANGE_DATE)
  string(TIMESTAMP KVRUN_CHANGE_DATE "%a, %d %b %Y %H:%M:%S +0000" UTC)
endif()
find_program(KVRUN_GZIP gzip REQUIRED)
set(KVRUN_PACKAGE_FILES ${CMAKE_BINARY_DIR}/package)
foreach(package kvrun libkvrun-dev)
  set(KVRUN_PACKAGE ${package})
  set(files ${KVRUN_PACKAGE_FILES}/${package})
  configure_file(cmake/debian/changelog.in ${files}/changelog @ONLY)
  execute_process(COMMAND ${KVRUN_GZIP} -9nf ${files}/changelog COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${files}/changelog.gz cmake/debian/copyright DESTINATION share/doc/${package}
    COMPONENT package_${package} EXCLUDE_FROM_ALL)
endforeach()

# Debian's zsh looks for functions of packages there, and not in site-functions.
if(KVRUN_DOCUMENTS_DIR)
  install(DIRECTORY ${KVRUN_DOCUMENTS_DIR}/share/zsh/site-functions/ DESTINATION share/zsh/vendor-completions
    COMPONENT package_kvrun EXCLUDE_FROM_ALL)
endif()

# Not enabled: it needs a model (docs/server.md).
install(FILES packaging/kvrun.service DESTINATION lib/systemd/system COMPONENT package_kvrun EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_CONTACT ${KVRUN_MAINTAINER})
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL programs package_kvrun package_library package_libkvrun-dev)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENT_PROGRAMS_GROUP kvrun)
set(CPACK_COMPONENT_PACKAGE_KVRUN_GROUP kvrun)
set(CPACK_COMPONENT_PACKAGE_LIBRARY_GROUP libkvrun-dev)
set(CPACK_COMPONENT_PACKAGE_LIBKVRUN-DEV_GROUP libkvrun-dev)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_THREADS 0)  # all that there are
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_KVRUN_PACKAGE_NAME kvrun)
set(CPACK_DEBIAN_KVRUN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_KVRUN_PACKAGE_SHLIBDEPS ON)
# The loader is opened at run time; without a driver the CPU computes by itself.
set(CPACK_DEBIAN_KVRUN_PACKAGE_RECOMMENDS "libvulkan1, mesa-vulkan-drivers")
set(CPACK_DEBIAN_KVRUN_PACKAGE_SUGGESTS "libkvrun-dev, bash-completion")
set(CPACK_COMPONENT_KVRUN_DESCRIPTION
"language models with long contexts on small machines
kvrun runs large language models on phones, boards and laptops: with Vulkan,
which nearly every GPU offers, or on the CPU itself. It can keep the KV cache
of a long context on flash, and a small share of it in memory.

This package holds the programs kvrun and kvadapt. Models are read from GGUF
files, and are not part of it.")

set(CPACK_DEBIAN_LIBKVRUN-DEV_PACKAGE_NAME libkvrun-dev)
set(CPACK_DEBIAN_LIBKVRUN-DEV_PACKAGE_SECTION libdevel)
# What kvrun.pc and kvrunConfig.cmake name, of which the latter asks pkg-config.
set(CPACK_DEBIAN_LIBKVRUN-DEV_PACKAGE_DEPENDS
  "libstdc++-12-dev | libstdc++-dev, libfmt-dev, libpcre2-dev, libxxhash-dev, libhwy-dev, liburing-dev, libssl-dev, pkg-config")
set(CPACK_DEBIAN_LIBKVRUN-DEV_PACKAGE_RECOMMENDS "libvulkan1")
set(CPACK_COMPONENT_LIBKVRUN-DEV_DESCRIPTION
"language models with long contexts on small machines (library)
kvrun runs large language models on phones, boards and laptops: with Vulkan,
which nearly every GPU offers, or on the CPU itself. It can keep the KV cache
of a long context on flash, and a small share of it in memory.

This package holds the static library, its C header, files for CMake
(find_package(kvrun)) and pkg-config, and an example.")
include(CPack)
