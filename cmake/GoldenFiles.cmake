# The golden files that `brine gpu-selftest` compares with, as one source of the program: the blocks of
# the presets paper, lean and light, causal, and one that is bidirectional (0.65 MB).
set(golden_source ${CMAKE_BINARY_DIR}/golden_files.cpp)
set(golden_code "// Made by cmake/GoldenFiles.cmake.\n#include \"apps/selftest/golden_files.h\"\n\n")
set(golden_rows "")
set(golden_paths "")
foreach(name causal_paper_t12 causal_lean_t33 causal_light_t34 bidirectional_paper_t16)
  set(file ${CMAKE_SOURCE_DIR}/tests/golden/${name}.h5)
  if(NOT EXISTS ${file})
    message(FATAL_ERROR "brine: ${file} is missing")
  endif()
  list(APPEND golden_paths ${file})
  string(APPEND golden_code
    "asm(\".section .rodata\\n.balign 16\\nbrine_${name}:\\n.incbin \\\"${file}\\\"\\n\"\n"
    "    \"brine_${name}_end:\\n.previous\\n\");\n"
    "extern \"C\" const char brine_${name}[], brine_${name}_end[];\n\n")
  string(APPEND golden_rows
    "      {\"${name}.h5\", {brine_${name}, size_t(brine_${name}_end - brine_${name})}},\n")
endforeach()
string(APPEND golden_code
  "namespace brine::selftest {\n\nconst std::vector<GoldenFile>& golden_files() {\n"
  "  static const std::vector<GoldenFile> all = {\n${golden_rows}  };\n  return all;\n}\n\n"
  "}  // namespace brine::selftest\n")
file(CONFIGURE OUTPUT ${golden_source} CONTENT "${golden_code}" @ONLY)
set_source_files_properties(${golden_source} PROPERTIES OBJECT_DEPENDS "${golden_paths}"
                            SKIP_UNITY_BUILD_INCLUSION ON)
target_sources(apps PRIVATE ${golden_source})
