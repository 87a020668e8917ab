// The entry of every test program.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "tests/paths.h"

std::string brine::test::source_dir() { return BRINE_SOURCE_DIR; }
std::string brine::test::binary_dir() { return BRINE_BINARY_DIR; }
