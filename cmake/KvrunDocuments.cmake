# What is made of the built programs by running them, so that it cannot be out of date: the target kvrun_documents
# writes man pages, from `--help`, and completions for bash and zsh, from the tables of options. Sets
# KVRUN_DOCUMENTS_DIR to the folder, which holds share/, or to "" where there is none.
#
# A cross build cannot run its programs. The files do not depend on the processor: it takes those that another build
# made, or installs none.
set(KVRUN_DOCUMENTS_FROM "" CACHE PATH "A cross build's man pages and completions: folder `documents` of another build")
find_program(KVRUN_HELP2MAN help2man)

set(KVRUN_DOCUMENTS_DIR "")
if(CMAKE_CROSSCOMPILING)
  set(KVRUN_DOCUMENTS_DIR ${KVRUN_DOCUMENTS_FROM})
elseif(KVRUN_SANITIZE OR NOT TARGET kvrun_cli)
  message(STATUS "No man pages or completions are made of this build")
else()
  set(KVRUN_DOCUMENTS_DIR ${CMAKE_BINARY_DIR}/documents)
  set(inputs ${CMAKE_SOURCE_DIR}/cmake/make_documents.sh)
  file(GLOB man_sections CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/man/*.h2m)
  set(help2man "")
  if(KVRUN_HELP2MAN)
    set(help2man ${KVRUN_HELP2MAN})
  else()
    message(STATUS "help2man is not installed: no man pages are made")
  endif()
  set(stamp ${CMAKE_BINARY_DIR}/documents.stamp)
  add_custom_command(
    OUTPUT ${stamp}
    COMMAND ${inputs} ${KVRUN_DOCUMENTS_DIR} ${CMAKE_SOURCE_DIR}/docs/man ${PROJECT_VERSION} "${help2man}"
      $<TARGET_FILE:kvrun_cli> $<TARGET_FILE:kvadapt>
    COMMAND ${CMAKE_COMMAND} -E touch ${stamp}
    DEPENDS kvrun_cli kvadapt ${inputs} ${man_sections}
    COMMENT "Man pages and completions"
    VERBATIM)
  add_custom_target(kvrun_documents ALL DEPENDS ${stamp})
endif()
