# Compiles the Python sources that `brine export --format transformers` writes into the program: they
# are kept once, in apps/python/brine_sea.
set(brine_python_sources "")
foreach(name attention_brine_sea blocks_brine_sea columns_brine_sea configuration_brine_sea modeling_brine_sea
        native_brine_sea)
  set(file ${CMAKE_SOURCE_DIR}/apps/python/brine_sea/${name}.py)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  string(APPEND brine_python_sources "      {\"${name}.py\", R\"python(${text})python\"},\n")
endforeach()
file(CONFIGURE OUTPUT ${brine_generated}/python_sources.cpp @ONLY CONTENT
"// Written by CMake from apps/python/brine_sea.
#include \"apps/transformers/student_files.h\"

namespace brine {

const std::map<std::string, std::string>& python_sources() {
  static const std::map<std::string, std::string> sources = {
@brine_python_sources@  };
  return sources;
}

}  // namespace brine
")
target_sources(apps PRIVATE ${brine_generated}/python_sources.cpp)
