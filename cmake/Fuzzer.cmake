# The program of tests/fuzz/ under libFuzzer, with those folders and the one file above them that
# read external data: not the whole program, so that it builds in minutes.
function(brine_fuzzer)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  add_executable(fuzz_inputs EXCLUDE_FROM_ALL ${sources} ${CMAKE_SOURCE_DIR}/tests/fuzz/libfuzzer/main.cpp
                 ${CMAKE_SOURCE_DIR}/apps/cli/config_file.cpp)
  brine_link(fuzz_inputs ${ARGN})
  target_link_libraries(fuzz_inputs PRIVATE tomlplusplus::tomlplusplus)
  target_link_options(fuzz_inputs PRIVATE -fsanitize=fuzzer)
endfunction()
