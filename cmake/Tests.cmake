# doctest's code and the entry of the test programs, compiled once.
add_library(test_main OBJECT ${CMAKE_SOURCE_DIR}/tests/main.cpp)
target_link_libraries(test_main PRIVATE brine_flags)
target_include_directories(test_main SYSTEM PRIVATE ${BRINE_DOCTEST_INCLUDE})
target_compile_definitions(test_main PRIVATE BRINE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                           BRINE_BINARY_DIR="${CMAKE_BINARY_DIR}")
brine_optimize(test_main)

# A ctest entry. A program that skipped all of its cases exits with 77.
function(brine_test_entry name label)
  add_test(NAME ${name} COMMAND ${ARGN})
  set(limit 1200)
  if(CMAKE_CROSSCOMPILING_EMULATOR)  # tens of times slower
    set(limit 14400)
  endif()
  # Many tiny parallel loops: on a loaded machine spinning threads cost minutes, and no test times.
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT ${limit} SKIP_RETURN_CODE 77
                       ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()

# An entry with the first case of each source, whose name is on one line.
function(brine_first_cases name label program)
  set(cases)
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  foreach(source ${ARGN})
    file(STRINGS ${source} case REGEX "^TEST_CASE\\(\".*\"" LIMIT_COUNT 1)
    string(REGEX REPLACE "^TEST_CASE\\(\"(.*)\".*" "\\1" case "${case}")
    string(REGEX REPLACE "[^A-Za-z0-9_ ]" "?" case "${case}")  # commas would end a pattern
    list(APPEND cases "${case}")
  endforeach()
  list(JOIN cases "," cases)
  brine_test_entry(${name} ${label} ${program} "-tc=${cases}")
  set_tests_properties(${name} PROPERTIES COST 1000)
endfunction()

# The sources of tests/autograd with cases of check_op() in test_cuda and test_cuda_emulated, where
# it compares the device with the CPU.
function(brine_device_ops)
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/autograd/*.cpp)
  foreach(source ${all})
    file(STRINGS ${source} found REGEX "check_op\\(" LIMIT_COUNT 1)
    if(found)
      list(APPEND sources ${source})
    endif()
  endforeach()
  add_library(device_ops OBJECT ${sources})
  target_link_libraries(device_ops PRIVATE brine_flags)
  target_include_directories(device_ops SYSTEM PRIVATE ${BRINE_DOCTEST_INCLUDE})
  brine_optimize(device_ops)
  brine_batches(device_ops)
  foreach(target device_ops test_cuda_emulated)
    target_compile_definitions(${target} PRIVATE BRINE_CHECK_ON_DEVICE)
  endforeach()
  foreach(program test_cuda_emulated test_cuda)
    if(TARGET ${program})
      target_sources(${program} PRIVATE $<TARGET_OBJECTS:device_ops>)
    endif()
  endforeach()
  brine_test_entry(cuda_emulated_ops nightly test_cuda_emulated -sf=*/autograd/*)
  brine_first_cases(cuda_emulated_first_ops emulator test_cuda_emulated ${sources})
endfunction()

# tests/<folder>/**.cpp -> one doctest program test_<folder>, linked with the folders named.
#   NAME   of the program and its entries, where one folder makes several programs
#   LABEL  unit (default), program or emulator; nightly: a browser, the second MPI library, all cases
#          of INNER_FOLDERS
#   NEEDS  the words that "(needs X)" in the name of a case may have: a separate entry for each, so
#          that ctest counts it as skipped if X is absent
#   COMPILED_FOR  the program of these sources whose objects this one links with other libraries
#   INNER_FOLDERS  a nightly entry for each inner folder, to run in parallel; of the folders of
#          kernels, one more entry of LABEL has the first case of each file (whose name is on one
#          line)
function(brine_tests source_folder)
  cmake_parse_arguments(arg "INNER_FOLDERS" "NAME;LABEL;COMPILED_FOR" "NEEDS" ${ARGN})
  set(name ${source_folder})
  if(arg_NAME)
    set(name ${arg_NAME})
  endif()
  if(NOT arg_LABEL)
    set(arg_LABEL unit)
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${source_folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/(emulator|driver|libfuzzer)/")
  set(parts ${sources})
  if(arg_COMPILED_FOR)
    set(parts $<TARGET_OBJECTS:test_${arg_COMPILED_FOR}>)
  endif()
  add_executable(test_${name} ${parts} $<TARGET_OBJECTS:test_main>)
  set_target_properties(test_${name} PROPERTIES LINKER_LANGUAGE CXX)
  brine_link(test_${name} ${arg_UNPARSED_ARGUMENTS})
  brine_optimize(test_${name})
  brine_batches(test_${name})
  target_include_directories(test_${name} SYSTEM PRIVATE ${BRINE_DOCTEST_INCLUDE})
  if(arg_INNER_FOLDERS)
    set(folders ${sources})
    list(TRANSFORM folders REPLACE "^${CMAKE_SOURCE_DIR}/tests/${source_folder}/([a-z]+)/.*" "\\1")
    list(REMOVE_DUPLICATES folders)
    foreach(folder ${folders})
      if(folder MATCHES "/")
        message(FATAL_ERROR "${folder}: a test of ${name} must be in an inner folder, whose entry runs it")
      endif()
      brine_test_entry(${name}_${folder} nightly test_${name} -sf=*/${source_folder}/${folder}/*)
      set_tests_properties(${name}_${folder} PROPERTIES COST 1000)  # the first to start
    endforeach()
    list(FILTER sources EXCLUDE REGEX "/(comm|core)/|/attention/attention_test")  # no family
    brine_first_cases(${name} ${arg_LABEL} test_${name} ${sources})
  else()
    brine_test_entry(${name} ${arg_LABEL} test_${name} "-tce=*(needs *")
  endif()
  foreach(need ${arg_NEEDS})
    string(TOLOWER "${name}_${need}" entry)
    string(REPLACE " " "_" entry ${entry})
    set(label ${arg_LABEL})
    if(need MATCHES "^Open MPI$")
      set(label nightly)
    endif()
    brine_test_entry(${entry} ${label} test_${name} "-tc=*(needs ${need})*")
  endforeach()
endfunction()
