# The commit of the source, in a header that changes only when it does. Included by CMakeLists.txt it
# adds the target that writes the header at every build; as a script (OUT, SOURCE) it writes it.
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit unknown)
  find_program(git git)
  if(git AND EXISTS ${SOURCE}/.git)
    execute_process(COMMAND ${git} -C ${SOURCE} rev-parse --short=12 HEAD
                    OUTPUT_VARIABLE head RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${git} --no-optional-locks -C ${SOURCE} status --porcelain --untracked-files=no
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(NOT failed)
      set(commit ${head})
      if(changes)
        string(APPEND commit "-changed")
      endif()
    endif()
  endif()
  file(CONFIGURE OUTPUT ${OUT} CONTENT "#define BRINE_COMMIT \"@commit@\"\n" @ONLY)
  return()
endif()

set(brine_generated ${CMAKE_BINARY_DIR}/generated)
add_custom_target(brine_commit
  COMMAND ${CMAKE_COMMAND} -DOUT=${brine_generated}/brine_commit.h -DSOURCE=${CMAKE_SOURCE_DIR}
          -P ${CMAKE_SOURCE_DIR}/cmake/Commit.cmake
  BYPRODUCTS ${brine_generated}/brine_commit.h COMMENT "")
add_dependencies(apps brine_commit)
target_include_directories(apps PRIVATE ${brine_generated})
