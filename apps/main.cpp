// The program `brine`. cpu_check.cpp has compared the build with the CPU before this runs.
#include <csignal>
#include <string>
#include <vector>

#include "apps/cli/program.h"
#include "apps/terminal/stop_signals.h"

int main(int count, char** words) {
  brine::start_signal_thread();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` fails its write instead
  return brine::run_program(std::vector<std::string>(words + (count > 0), words + count));
}
