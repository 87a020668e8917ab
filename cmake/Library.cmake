# The shared library and what an installation consists of: program, library, headers, package files.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Headers of a folder are public unless they match one of these: kernels and their helpers, how
# files are stored, tables. tests/install/headers shows that no public header includes one of them.
set(brine_private_headers "/tensor/(kernels|cpu|cuda)/" "/tensor/base/parallel\\.h"
                          "/accelerator\\.h" "/data/hdf5/" "_ranges\\.h" "_internal\\.h" "_format\\.h"
                          "/data/dump/dump_(fields|shard)\\.h" "/safetensors_header\\.h"
                          "/autograd/.*_checks\\.h" "/autograd/primitives/")

# brine_shared_library(folder...): libbrine of the objects of these folders. Flags, kernels and
# their libraries are private to it; users get the include path and nlohmann-json.
function(brine_shared_library)
  add_library(brine_library SHARED)
  brine_link(brine_library ${ARGN})
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" interface_version ${PROJECT_VERSION})
  set_target_properties(brine_library PROPERTIES OUTPUT_NAME brine EXPORT_NAME brine
                        LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${interface_version})
  if(NOT BRINE_SANITIZE)  # the program provides their symbols
    target_link_options(brine_library PRIVATE -Wl,-z,defs)
  endif()
  target_compile_features(brine_library INTERFACE cxx_std_20)
  target_include_directories(brine_library INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(brine_library INTERFACE nlohmann_json::nlohmann_json)

  set(headers)
  foreach(folder ${ARGN})
    file(GLOB_RECURSE found RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${folder}/*.h)
    list(APPEND headers ${found})
  endforeach()
  foreach(pattern ${brine_private_headers})
    string(PREPEND pattern "^.*")
    list(TRANSFORM headers PREPEND "/" REGEX "^[^/]")
    list(FILTER headers EXCLUDE REGEX "${pattern}")
  endforeach()
  list(TRANSFORM headers REPLACE "^/" "")
  string(REPLACE ";" "|" folders "${ARGN}")

  install(TARGETS brine_library EXPORT brine
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
          NAMELINK_COMPONENT development)
  # Sources include "tensor/tensor.h"; an installed header includes <brine/tensor/tensor.h>.
  install(CODE "set(brine_source \"${CMAKE_SOURCE_DIR}\")
                set(brine_include \"${CMAKE_INSTALL_INCLUDEDIR}/brine\")
                set(brine_folders \"${folders}\")
                set(brine_headers \"${headers}\")" COMPONENT development)
  install(SCRIPT ${CMAKE_SOURCE_DIR}/cmake/InstallHeaders.cmake COMPONENT development)

  set(config_folder ${CMAKE_INSTALL_LIBDIR}/cmake/brine)
  configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/brineConfig.cmake.in
                                ${CMAKE_BINARY_DIR}/brineConfig.cmake
                                INSTALL_DESTINATION ${config_folder})
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/brineConfigVersion.cmake
                                   COMPATIBILITY SameMinorVersion)
  install(FILES ${CMAKE_BINARY_DIR}/brineConfig.cmake ${CMAKE_BINARY_DIR}/brineConfigVersion.cmake
          DESTINATION ${config_folder} COMPONENT development)
  install(EXPORT brine NAMESPACE brine:: FILE brineTargets.cmake DESTINATION ${config_folder}
          COMPONENT development)
  file(RELATIVE_PATH brine_prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/brine.pc.in ${CMAKE_BINARY_DIR}/brine.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/brine.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
          COMPONENT development)
  install(DIRECTORY apps/examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
endfunction()

# The program with the configurations that its documentation names.
function(brine_install_program)
  install(TARGETS brine RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/brine COMPONENT program
          PATTERN experiments EXCLUDE)  # of scripts/run-experiment
  install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
endfunction()

# Tests that use an installed tree as an external user would: every header alone, programs built
# with find_package() and with pkg-config.
function(brine_install_tests)
  set(tree ${CMAKE_BINARY_DIR}/installed)
  set(folder ${CMAKE_SOURCE_DIR}/tests/install)
  set(scratch ${CMAKE_BINARY_DIR}/install_tests)
  add_test(NAME install_tree
           COMMAND ${CMAKE_COMMAND} --install ${CMAKE_BINARY_DIR} --prefix ${tree})
  add_test(NAME install_headers COMMAND ${folder}/headers ${tree} ${CMAKE_CXX_COMPILER})
  add_test(NAME install_examples
           COMMAND ${folder}/examples ${tree} ${CMAKE_CXX_COMPILER} ${scratch}/examples)
  set(users install_headers install_examples)
  set_tests_properties(install_tree PROPERTIES FIXTURES_SETUP installed)
  set_tests_properties(${users} PROPERTIES FIXTURES_REQUIRED installed)
  set_tests_properties(install_tree ${users} PROPERTIES LABELS program TIMEOUT 1200 SKIP_RETURN_CODE 77
                       ENVIRONMENT OMP_WAIT_POLICY=passive)
  # 190 headers, three minutes of one core.
  set_tests_properties(install_headers PROPERTIES LABELS nightly)
endfunction()

# `cpack` makes three Debian packages: brine (the program), libbrine and libbrine-dev.
function(brine_packages)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" interface_version ${PROJECT_VERSION})
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/brine RENAME copyright
          COMPONENT program)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libbrine${interface_version}
          RENAME copyright COMPONENT library)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/libbrine-dev RENAME copyright
          COMPONENT development)
  set(CPACK_GENERATOR DEB)
  set(CPACK_PACKAGE_NAME brine)
  set(CPACK_PACKAGE_CONTACT "Brine developers <brine@localhost>")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME brine)
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
  set(CPACK_COMPONENT_PROGRAM_DESCRIPTION
      "Attention over chosen keys for pretrained transformers\n\
Distils, calibrates, evaluates, verifies and exports students of blocks and of SEA.")
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libbrine${interface_version})
  set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
  set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
      "Attention over chosen keys for pretrained transformers: the shared library\n\
Tensors with a tape, layers, attention methods, models, distillation.")
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libbrine-dev)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS
      "libbrine${interface_version} (= ${PROJECT_VERSION}), nlohmann-json3-dev")
  set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
      "Attention over chosen keys for pretrained transformers: headers\n\
Headers, files for CMake and pkg-config, examples.")
  include(CPack)
endfunction()
