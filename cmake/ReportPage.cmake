# The page of `brine report`: the files of apps/report/page and the charting library become a source
# of the target `apps`, so that the program needs no other file.
#
# Vega is found on the machine that compiles; it has no architecture.
find_file(BRINE_VEGA vega.min.js PATHS /usr/share/javascript/vega /usr/share/nodejs/vega/build
          NO_CMAKE_FIND_ROOT_PATH)
if(NOT BRINE_VEGA)
  brine_missing("Vega (vega.min.js)" "libjs-vega")
endif()
file(GLOB page_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/apps/report/page/*)
set(page_list "vega.js=${BRINE_VEGA}")
foreach(file ${page_files})
  get_filename_component(name ${file} NAME)
  string(APPEND page_list "|${name}=${file}")
endforeach()
set(page_source ${CMAKE_BINARY_DIR}/report_page.cpp)
add_custom_command(
  OUTPUT ${page_source}
  COMMAND ${CMAKE_COMMAND} "-DOUT=${page_source}" "-DFILES=${page_list}"
          -P ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake
  DEPENDS ${page_files} ${BRINE_VEGA} ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake
  COMMENT "Embedding the page of brine report" VERBATIM)
target_sources(apps PRIVATE ${page_source})
