// The program `brine`. cpu_check.cpp has compared the build with the CPU before this runs.
#include <csignal>
#include <string>
#include <vector>

#include "apps/program.h"
#include "apps/signal_thread.h"

int main(int count, char** words) {
  brine::keep_signals_aside();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` fails its write instead
  return brine::run_program(std::vector<std::string>(words + (count > 0), words + count));
}
