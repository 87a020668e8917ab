# Run by `cmake --install`: writes the public headers below include/brine, their includes of each
# other with that prefix. Set by Library.cmake: brine_source, brine_include, brine_folders,
# brine_headers.
if(NOT IS_ABSOLUTE "${brine_include}")
  set(brine_include "${CMAKE_INSTALL_PREFIX}/${brine_include}")
endif()
foreach(header IN LISTS brine_headers)
  file(READ "${brine_source}/${header}" text)
  string(REGEX REPLACE "#include \"((${brine_folders})/[^\"]+)\"" "#include <brine/\\1>" text "${text}")
  file(WRITE "$ENV{DESTDIR}${brine_include}/${header}" "${text}")
endforeach()
list(LENGTH brine_headers count)
message(STATUS "Installed: ${count} headers in $ENV{DESTDIR}${brine_include}")
