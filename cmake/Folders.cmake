function(brine_optimize target)
  if(BRINE_FUZZ AND target MATCHES "^(tensor|autograd)")  # they see no bytes of a file
    target_compile_options(${target} PRIVATE -fno-sanitize=all -O0 -g0)
  elseif(target MATCHES "^tensor_(hot|avx512)$")
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O3>)
  elseif(target MATCHES "^(test_.*|tensor|apps|autograd|bench|data|distill|nn|sea)$")
    # They call, they do not compute; a quarter faster to compile than with -O1.
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-Og>)
  endif()
endfunction()

# Objects that the programs and the shared library share. Without semantic interposition functions
# are inlined as in an executable; hidden inline functions make the library use its copies,
# whatever flags its users compile theirs with.
function(brine_shareable target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition;-fvisibility-inlines-hidden>)
endfunction()

# Up to 44 files of a folder are compiled as one source: half of the time of a build from nothing
# goes to headers. Kernels of the CPU by inner folder, except where a file takes long by itself. Off
# (BRINE_BATCHES=OFF) a file that is edited is compiled alone, and a compiler cache (a launcher)
# finds it again. FOLDERS, for scripts/style --tidy: all files of an inner folder.
function(brine_batches target)
  if(NOT BRINE_BATCHES OR CMAKE_CXX_COMPILER_LAUNCHER)
    return()
  endif()
  get_target_property(all ${target} SOURCES)
  list(FILTER all INCLUDE REGEX "\\.cpp$")
  list(FILTER all EXCLUDE REGEX "/tensor/cpu/(attention|blocks|core)/")
  set(sources)
  foreach(source ${all})
    file(STRINGS ${source} alone REGEX "^#pragma GCC target" LIMIT_COUNT 1)  # for another CPU
    if(NOT alone)
      list(APPEND sources ${source})
    endif()
  endforeach()
  if(NOT sources)
    return()
  endif()
  list(LENGTH sources count)
  math(EXPR batches "(${count} + 43) / 44")
  math(EXPR files "(${count} + ${batches} - 1) / ${batches}")  # batches of similar sizes
  if(BRINE_BATCHES STREQUAL "FOLDERS")
    set(files 1000)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD_UNIQUE_ID registration)  # another name in each
  foreach(source ${sources})
    set(folder ${target})
    if(BRINE_BATCHES STREQUAL "FOLDERS" OR source MATCHES "/tensor/cpu/")
      get_filename_component(folder ${source} DIRECTORY)
      file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${folder})
      string(MAKE_C_IDENTIFIER ${folder} folder)
    endif()
    math(EXPR batch "0${count_${folder}} / ${files}")
    math(EXPR count_${folder} "0${count_${folder}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${batch})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # GCC takes what a batch includes for headers: the hidden halves of classes use nameless namespaces.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

# One folder = one OBJECT library: every object is linked, so a file that only registers itself (for
# example an attention method) is never dropped by the linker. FOLDER: its path, if not its name;
# WITHOUT: inner folders that are built separately, as a regular expression; HOT: the files that
# compute, which are compiled with more optimisation, as another.
function(brine_folder name)
  cmake_parse_arguments(arg "" "FOLDER;WITHOUT;HOT" "LIBS" ${ARGN})
  set(folder ${name})
  if(arg_FOLDER)
    set(folder ${arg_FOLDER})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  list(REMOVE_ITEM sources ${CMAKE_SOURCE_DIR}/${folder}/main.cpp
       ${CMAKE_SOURCE_DIR}/tensor/cuda/absent/no_cuda.cpp ${CMAKE_SOURCE_DIR}/tensor/cuda/absent/no_cudnn.cpp)
  # Those two are linked by choice, below.
  if(arg_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "/${arg_WITHOUT}/")
  endif()
  if(NOT sources)
    add_library(${name} INTERFACE)
    return()
  endif()
  set(targets ${name})
  if(arg_HOT)
    set(hot ${sources})
    list(FILTER hot INCLUDE REGEX "${arg_HOT}")
    list(FILTER sources EXCLUDE REGEX "${arg_HOT}")
    add_library(${name}_hot OBJECT ${hot})
    list(APPEND targets ${name}_hot)
  endif()
  add_library(${name} OBJECT ${sources})
  foreach(target ${targets})
    brine_shareable(${target})
    target_link_libraries(${target} PUBLIC brine_flags ${arg_LIBS})
    brine_optimize(${target})
    brine_batches(${target})
  endforeach()
  if(arg_HOT)  # whoever links the folder has these objects, too
    target_sources(${name} INTERFACE $<TARGET_OBJECTS:${name}_hot>)
  endif()
endfunction()

# The objects of folders, in an order with the AVX-512 copies of the kernels last: when two objects
# contain the same inline function the linker keeps the first, which must run on every CPU.
function(brine_link target)
  target_link_libraries(${target} PRIVATE brine_flags)
  foreach(folder ${ARGN})
    target_link_libraries(${target} PRIVATE ${folder})
  endforeach()
  if(BRINE_DISPATCH AND "tensor" IN_LIST ARGN)
    target_link_libraries(${target} PRIVATE tensor_avx512)
  endif()
  if("tensor" IN_LIST ARGN AND NOT "tensor_emulated" IN_LIST ARGN)
    target_link_libraries(${target} PRIVATE ${brine_cuda})
    if(BRINE_CUDA)  # where libraries that are loaded by name may be, in addition to the system's
                    # places
      set_property(TARGET ${target} APPEND PROPERTY BUILD_RPATH "$ORIGIN/lib"
                                                   "${CUDAToolkit_LIBRARY_DIR}")
    endif()
  endif()
endfunction()

if(BRINE_DISPATCH)
  file(GLOB_RECURSE avx512_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tensor/cpu/*.cpp)
  list(FILTER avx512_sources EXCLUDE REGEX "(onednn|gemm_f64|pair_tile|code_tile|cpu_identity)")
  add_library(tensor_avx512 OBJECT ${avx512_sources})
  brine_shareable(tensor_avx512)
  target_link_libraries(tensor_avx512 PUBLIC brine_flags DNNL::dnnl OpenMP::OpenMP_CXX)
  brine_optimize(tensor_avx512)
  brine_batches(tensor_avx512)
  # Not -march=x86-64-v4: the -march of brine_flags comes later on the command line and would win.
  target_compile_options(tensor_avx512 PRIVATE -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl)
  target_compile_definitions(tensor_avx512 PRIVATE BRINE_CPU=cpu_avx512 BRINE_AVX512=1)
endif()

# The CUDA backend (tensor/device/accelerator.h) has three providers: of these every program links one.
#   tensor_no_cuda   throws
#   tensor_cuda      tensor/cuda/**.cu by nvcc
#   tensor_emulated  the same sources by the host's compiler against tests/cuda/emulator (tests)
add_library(tensor_no_cuda OBJECT ${CMAKE_SOURCE_DIR}/tensor/cuda/absent/no_cuda.cpp)
brine_shareable(tensor_no_cuda)
target_link_libraries(tensor_no_cuda PUBLIC brine_flags)
# Appends files that include the sources to a list, each up to 12 of an inner folder (BRINE_BATCHES;
# CMake batches CUDA sources itself only from 3.31 on). The same sources are compiled by nvcc (LANGUAGE cu)
# and by the C++ compiler (cpp): a source cannot be of two languages.
function(brine_cuda_batches list folder language)
  set(files 1)
  if(BRINE_BATCHES AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(files 12)
  endif()
  foreach(source ${ARGN})
    get_filename_component(room ${source} DIRECTORY)
    get_filename_component(room ${room} NAME)
    math(EXPR batch "0${count_${room}} / ${files}")
    math(EXPR count_${room} "0${count_${room}} + 1")
    if(NOT includes_${room}_${batch})
      list(APPEND batches ${room}_${batch})
    endif()
    string(APPEND includes_${room}_${batch} "#include \"${source}\"\n")
  endforeach()
  foreach(batch ${batches})
    set(file ${CMAKE_BINARY_DIR}/${folder}/${batch}.${language})
    file(CONFIGURE OUTPUT ${file} CONTENT "${includes_${batch}}")
    list(APPEND ${list} ${file})
  endforeach()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tensor/cuda/*.cu)
list(FILTER cuda_sources EXCLUDE REGEX "/(loader|cudnn)/")
set(brine_cuda tensor_no_cuda)
if(BRINE_CUDA)
  file(GLOB loader_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tensor/cuda/loader/*.cu)
  set(cudnn_sources ${CMAKE_SOURCE_DIR}/tensor/cuda/absent/no_cudnn.cpp)
  if(BRINE_CUDNN_INCLUDE)
    file(GLOB cudnn_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tensor/cuda/cudnn/*.cu)
  endif()
  brine_cuda_batches(nvcc_sources cuda cu ${cuda_sources} ${loader_sources} ${cudnn_sources})
  add_library(tensor_cuda OBJECT ${nvcc_sources})
  brine_shareable(tensor_cuda)
  if(BRINE_CUDNN_INCLUDE)
    target_include_directories(tensor_cuda SYSTEM PRIVATE ${BRINE_CUDNN_INCLUDE})
  endif()
  target_include_directories(tensor_cuda PRIVATE ${CMAKE_SOURCE_DIR})
  target_compile_options(tensor_cuda PRIVATE --expt-relaxed-constexpr -Xcompiler=-fopenmp
                         $<$<BOOL:${BRINE_WERROR}>:-Werror=all-warnings>)
  target_link_libraries(tensor_cuda PUBLIC brine_cuda_libraries)
  set(brine_cuda tensor_cuda)
endif()
if(BRINE_TESTS)
  file(GLOB emulator_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda/emulator/*.cpp)
  set_source_files_properties(${emulator_sources} PROPERTIES COMPILE_OPTIONS
                              $<$<CONFIG:Release>:-O3>)  # the scheduler and the matrix products
  brine_cuda_batches(emulator_sources emulated cpp ${cuda_sources})
  add_library(tensor_emulated OBJECT ${emulator_sources})
  target_link_libraries(tensor_emulated PUBLIC brine_flags Boost::context)
  target_include_directories(tensor_emulated BEFORE PRIVATE ${CMAKE_SOURCE_DIR}/tests/cuda/emulator)
  target_compile_definitions(tensor_emulated PRIVATE BRINE_EMULATED_CUDA=1)
  # A load of several numbers from an address that is not a multiple of their size, and an index
  # outside an array in shared memory, end the program as on a device.
  target_compile_options(tensor_emulated PRIVATE -Wno-unknown-pragmas $<$<CONFIG:Release>:-O1>
                         -fsanitize=alignment,bounds -fsanitize-undefined-trap-on-error)
endif()
# A libnccl.so.2 for emulated devices, which uses their memory and streams.
function(brine_emulated_nccl)
  add_library(emulated_nccl MODULE ${CMAKE_SOURCE_DIR}/tests/cuda/emulator/nccl/nccl.cpp)
  target_link_libraries(emulated_nccl PRIVATE brine_flags)
  target_include_directories(emulated_nccl BEFORE PRIVATE ${CMAKE_SOURCE_DIR}/tests/cuda/emulator)
  set_target_properties(emulated_nccl PROPERTIES PREFIX "" OUTPUT_NAME libnccl SUFFIX .so.2
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emulated_lib)
  foreach(program ${ARGN})
    add_dependencies(${program} emulated_nccl)
    set_target_properties(${program} PROPERTIES ENABLE_EXPORTS ON)  # the emulator's functions
    set_property(TARGET ${program} APPEND PROPERTY BUILD_RPATH "$ORIGIN/emulated_lib")
  endforeach()
endfunction()
# What of cuDNN needs no device, for tests/cudnn, with a driver that does nothing.
if(BRINE_TESTS AND BRINE_CUDNN_INCLUDE)
  file(GLOB graph_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tensor/cuda/cudnn/*.cu)
  list(FILTER graph_sources EXCLUDE REGEX "/provider.cu$")
  brine_cuda_batches(graph_twins cudnn_graphs cpp ${graph_sources})
  add_library(cudnn_graphs OBJECT ${graph_twins} ${CMAKE_SOURCE_DIR}/tensor/base/error.cpp)
  target_link_libraries(cudnn_graphs PUBLIC brine_flags ${CMAKE_DL_LIBS})
  target_include_directories(cudnn_graphs SYSTEM PUBLIC ${BRINE_CUDNN_INCLUDE} ${BRINE_CUDA_INCLUDE})
  add_library(no_driver MODULE ${CMAKE_SOURCE_DIR}/tests/cudnn/driver/no_driver.cpp)
  target_link_options(no_driver PRIVATE -Wl,-soname,libcuda.so.1)
endif()

function(brine_program name)
  if(NOT EXISTS ${CMAKE_SOURCE_DIR}/apps/main.cpp)
    return()
  endif()
  add_executable(${name} ${CMAKE_SOURCE_DIR}/apps/main.cpp)
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)  # for libraries of --load
  brine_link(${name} ${ARGN})
  if(CMAKE_CROSSCOMPILING_EMULATOR)  # shells, which the tests start, cannot run the program itself
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/emulated)
    list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/${name}
         CONTENT "#!/bin/sh\nexec ${emulator} '$<TARGET_FILE:${name}>' \"$@\"\n"
         FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE)
  endif()
endfunction()
