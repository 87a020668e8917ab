# Compiles text files into the program as the function `name` of apps/terminal/embedded_files.h.
function(brine_embed name)
  set(files "")
  foreach(file ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(file_name ${file} NAME)
    file(READ ${file} text)
    string(FIND "${text}" ")brine\"" end)
    if(NOT end EQUAL -1)
      message(FATAL_ERROR "${file}: contains the end of a raw string")
    endif()
    string(APPEND files "    {\"${file_name}\", R\"brine(${text})brine\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${brine_generated}/${name}.cpp @ONLY CONTENT
"// Written by cmake/EmbedFiles.cmake.
#include \"apps/terminal/embedded_files.h\"

namespace brine {

static constexpr EmbeddedFile kFiles[] = {
@files@};

std::span<const EmbeddedFile> ${name}() { return kFiles; }

}  // namespace brine
")
  target_sources(apps PRIVATE ${brine_generated}/${name}.cpp)
endfunction()

set(brine_python ${CMAKE_SOURCE_DIR}/apps/python/brine_sea)
brine_embed(python_sources ${brine_python}/attention_brine_sea.py ${brine_python}/blocks_brine_sea.py
            ${brine_python}/columns_brine_sea.py ${brine_python}/configuration_brine_sea.py
            ${brine_python}/modeling_brine_sea.py ${brine_python}/native_brine_sea.py)
file(GLOB page_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/apps/report/page/*)
brine_embed(page_files ${page_files})
