# One interface target has the flags of every folder; nvcc gets none of the C++ compiler's.
add_library(brine_flags INTERFACE)
function(brine_options)
  foreach(option ${ARGN})
    target_compile_options(brine_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
endfunction()
target_include_directories(brine_flags INTERFACE ${CMAKE_SOURCE_DIR})
# -Wrestrict: GCC 12 reports std::string operator+ falsely (its bug 105651). -Wpass-failed: Clang
# warns of every loop that its -O1 does not transform.
brine_options(-Wall -Wextra $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
              $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed> -fopenmp -march=${BRINE_ARCH})
# GCC notes that its ABI for a pair of numbers was another in release 9.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  brine_options(-Wno-psabi)
endif()
if(BRINE_WERROR)
  brine_options(-Werror)
endif()
# Never -ffast-math: NaN and infinity must be detected. These three change no finite result of
# Brine: errno is not read, floating-point traps are off, and a*b+c may be rounded once (ISO mode
# forbids it).
brine_options(-fno-math-errno -fno-trapping-math -ffp-contract=fast)
# Tuned for some CPUs (Zen 3 is one) GCC rounds the products of some chains of sums and not of
# others, so that the bits of a row would depend on the rows beside it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  brine_options(--param=avoid-fma-max-bits=0)
endif()
# GCC collects its garbage from 128 MiB on; later it compiles an eighth faster in a third more
# memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  brine_options(--param=ggc-min-heapsize=1048576)
endif()
# Kernels take -O3 (Folders.cmake); the rest compiles a third faster without and runs no slower.
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
if(BRINE_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")  # half the compile time of -O2 -g
  brine_options(-fsanitize=${BRINE_SANITIZE} -fno-sanitize-recover=undefined
                -fno-omit-frame-pointer)
  target_link_options(brine_flags INTERFACE -fsanitize=${BRINE_SANITIZE})
  # Instrumented, GCC 12 sees an uninitialised value inside <regex> (its documentation warns of it).
  set_source_files_properties(${CMAKE_SOURCE_DIR}/tests/architecture/habits_test.cpp PROPERTIES
                              COMPILE_OPTIONS "-Wno-maybe-uninitialized")
endif()
if(BRINE_FUZZ)
  brine_options(-fsanitize=fuzzer-no-link)
endif()
if(BRINE_DISPATCH)
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    message(FATAL_ERROR "brine: BRINE_DISPATCH is for x86-64, this is ${CMAKE_SYSTEM_PROCESSOR}")
  endif()
  target_compile_definitions(brine_flags INTERFACE BRINE_DISPATCH=1)
endif()
target_compile_definitions(brine_flags INTERFACE BRINE_VERSION="${PROJECT_VERSION}")
