# The page of `brine report`: the files of apps/report/page become a source of the target `apps`, so
# that the program needs no other file.
file(GLOB page_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/apps/report/page/*)
set(page_list "")
foreach(file ${page_files})
  get_filename_component(name ${file} NAME)
  list(APPEND page_list "${name}=${file}")
endforeach()
list(JOIN page_list "|" page_list)
set(page_source ${CMAKE_BINARY_DIR}/report_page.cpp)
add_custom_command(
  OUTPUT ${page_source}
  COMMAND ${CMAKE_COMMAND} "-DOUT=${page_source}" "-DFILES=${page_list}"
          -P ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake
  DEPENDS ${page_files} ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake
  COMMENT "Embedding the page of brine report" VERBATIM)
target_sources(apps PRIVATE ${page_source})
