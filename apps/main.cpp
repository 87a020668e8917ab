// The program `brine`. cpu_check.cpp has compared the build with the CPU before this runs.
#include <string>
#include <vector>

#include "apps/program.h"

int main(int count, char** words) {
  return brine::run_program(std::vector<std::string>(words + (count > 0), words + count));
}
