# The page of `brine report`: the files of apps/report/page and the charting library become a source
# of the target `apps`, so that the program needs no other file.
#
# Vega is found on the machine that compiles; it has no architecture. BRINE_VEGA may name a whole
# vega.min.js. Debian ships Vega as one CommonJS file per module instead: those that line charts need
# are put into one script here, each in a function that finds the ones before it.
set(BRINE_VEGA "" CACHE FILEPATH "Vega in one file; empty: the modules that Debian's libjs-vega has")
set(vega_script ${CMAKE_BINARY_DIR}/vega.js)
if(BRINE_VEGA)
  configure_file(${BRINE_VEGA} ${vega_script} COPYONLY)
else()
  find_path(BRINE_VEGA_MODULES vega/vega-view.min.js PATHS /usr/share/javascript
            NO_CMAKE_FIND_ROOT_PATH)
  if(NOT BRINE_VEGA_MODULES)
    brine_missing("Vega (vega-view.min.js, or -DBRINE_VEGA=FILE)" "libjs-vega")
  endif()
  set(vega_modules util time canvas format loader statistics scale expression event-selector
      dataflow scenegraph selection functions runtime encode transforms view-transforms parser view)
  set(text "(function () {\nconst modules = {}, require = (name) => modules[name];\n")
  foreach(module topojson-client ${vega_modules})
    set(name vega-${module})
    set(file ${BRINE_VEGA_MODULES}/vega/vega-${module}.min.js)
    if(module STREQUAL "topojson-client")
      set(name ${module})
      set(file ${BRINE_VEGA_MODULES}/${module}/${module}.min.js)
    elseif(module STREQUAL "selection")
      set(name vega-selections)  # the module's name differs from its file's
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} code)
    string(APPEND text "(function () {\nconst exports = modules[\"${name}\"] = {}, "
           "module = {exports};\n${code}\n})();\n")
  endforeach()
  string(APPEND text "Object.assign(modules[\"vega-dataflow\"].transforms, "
         "modules[\"vega-transforms\"], modules[\"vega-view-transforms\"], "
         "modules[\"vega-encode\"]);\nself.vega = {View: modules[\"vega-view\"].View, "
         "parse: modules[\"vega-parser\"].parse, Warn: modules[\"vega-util\"].Warn};\n})();\n")
  file(CONFIGURE OUTPUT ${vega_script} CONTENT "@text@" @ONLY)
endif()
file(GLOB page_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/apps/report/page/*)
set(page_list "vega.js=${vega_script}")
foreach(file ${page_files})
  get_filename_component(name ${file} NAME)
  string(APPEND page_list "|${name}=${file}")
endforeach()
set(page_source ${CMAKE_BINARY_DIR}/report_page.cpp)
add_custom_command(
  OUTPUT ${page_source}
  COMMAND ${CMAKE_COMMAND} "-DOUT=${page_source}" "-DFILES=${page_list}"
          -P ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake
  DEPENDS ${page_files} ${vega_script} ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake
  COMMENT "Embedding the page of brine report" VERBATIM)
target_sources(apps PRIVATE ${page_source})
