// The program `brine`. cpu_check.cpp has compared the build with the CPU before this runs.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "apps/cli/program.h"
#include "apps/terminal/stop_signals.h"

namespace {

// Threads of libgomp spin up to 15 ms before they sleep. Where other programs use the cores, that
// takes cores from the threads that they wait for: generating 64 tokens beside two busy programs
// took 120 s, with 1,000 iterations 9 s. libgomp reads the number before main(), so the program
// starts again.
void limit_spinning(char** words) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  setenv("GOMP_SPINCOUNT", "1000", 0);
  execv("/proc/self/exe", words);  // where it fails, threads spin
}

}  // namespace

int main(int count, char** words) {
  limit_spinning(words);
  brine::start_signal_thread();
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` fails its write instead
  return brine::run_program(std::vector<std::string>(words + (count > 0), words + count));
}
