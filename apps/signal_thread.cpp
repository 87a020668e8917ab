// Keeps signals away from threads that compute.
#include "apps/signal_thread.h"

#include <signal.h>
#include <unistd.h>

#include <thread>

namespace brine {

void keep_signals_aside() {
  sigset_t set;
  sigemptyset(&set);
  for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGPROF, SIGVTALRM, SIGUSR1,
                     SIGUSR2, SIGWINCH, SIGCHLD}) {
    sigaddset(&set, number);
  }
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([set] {
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    for (;;) ::pause();
  }).detach();
}

}  // namespace brine
