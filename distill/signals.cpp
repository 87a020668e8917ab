// A signal handler reaches nothing but static flags, hence the state of this file.
#include "distill/signals.h"

#include <signal.h>
#include <unistd.h>

namespace brine::distill {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGXFSZ};
volatile sig_atomic_t received = 0;
struct sigaction before[3];

void on_signal(int number) {
  if (number == SIGINT && received == SIGINT) ::_exit(128 + SIGINT);
  received = number;
}

}  // namespace

StopSignals::StopSignals() {
  received = 0;
  for (int i = 0; i < 3; ++i) {
    struct sigaction action = {};
    action.sa_handler = kSignals[i] == SIGXFSZ ? SIG_IGN : on_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(kSignals[i], &action, &before[i]);
  }
}

StopSignals::~StopSignals() {
  for (int i = 0; i < 3; ++i) ::sigaction(kSignals[i], &before[i], nullptr);
}

bool StopSignals::requested() const { return received != 0; }

const char* StopSignals::name() const {
  return received == SIGINT ? "SIGINT" : received == SIGTERM ? "SIGTERM" : "";
}

}  // namespace brine::distill
