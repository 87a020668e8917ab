# One folder = one OBJECT library: every object is linked, so a file that only registers itself
# (an attention method, say) is never dropped by the linker.
function(brine_folder name)
  cmake_parse_arguments(arg "" "" "LIBS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${name}/*.cpp)
  list(REMOVE_ITEM sources ${CMAKE_SOURCE_DIR}/${name}/main.cpp)
  if(NOT sources)
    add_library(${name} INTERFACE)
    return()
  endif()
  add_library(${name} OBJECT ${sources})
  target_link_libraries(${name} PUBLIC brine_flags ${arg_LIBS})
endfunction()

# The objects of folders, in an order that puts AVX-512 copies of the kernels last: where two
# objects hold the same inline function the linker keeps the first, which must run on every CPU.
function(brine_link target)
  target_link_libraries(${target} PRIVATE brine_flags)
  foreach(folder ${ARGN})
    target_link_libraries(${target} PRIVATE ${folder})
  endforeach()
  if(BRINE_DISPATCH AND "tensor" IN_LIST ARGN)
    target_link_libraries(${target} PRIVATE tensor_avx512)
  endif()
endfunction()

if(BRINE_DISPATCH)
  file(GLOB avx512_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tensor/cpu/*.cpp)
  list(FILTER avx512_sources EXCLUDE REGEX "onednn")
  add_library(tensor_avx512 OBJECT ${avx512_sources})
  target_link_libraries(tensor_avx512 PUBLIC brine_flags DNNL::dnnl OpenMP::OpenMP_CXX)
  target_compile_options(tensor_avx512 PRIVATE -march=x86-64-v4)
  target_compile_definitions(tensor_avx512 PRIVATE BRINE_CPU=cpu_avx512)
endif()

function(brine_program name)
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/apps/main.cpp)
    return()
  endif()
  add_executable(${name} ${CMAKE_SOURCE_DIR}/apps/main.cpp)
  brine_link(${name} ${ARGN})
endfunction()

# tests/<folder>/*.cpp -> one doctest program test_<folder>, linked with the folders named.
function(brine_tests folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/${folder}/*.cpp)
  if(NOT sources)
    return()
  endif()
  add_executable(test_${folder} ${CMAKE_SOURCE_DIR}/tests/main.cpp ${sources})
  brine_link(test_${folder} ${ARGN})
  target_include_directories(test_${folder} SYSTEM PRIVATE ${BRINE_DOCTEST_INCLUDE})
  target_compile_definitions(test_${folder} PRIVATE BRINE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                             BRINE_BINARY_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME ${folder} COMMAND test_${folder})
  # Many tiny parallel loops: on a loaded machine spinning threads cost minutes, and no test times.
  set_tests_properties(${folder} PROPERTIES TIMEOUT 1200 ENVIRONMENT OMP_WAIT_POLICY=passive)
endfunction()
