// One thread waits for SIGINT and SIGTERM with sigwait, so that no handler runs anywhere.
#include "apps/terminal/stop_signals.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace brine {
namespace {

std::atomic<bool> recording{false};
std::atomic<int> received{0};

sigset_t set_of(std::initializer_list<int> numbers) {
  sigset_t set;
  sigemptyset(&set);
  for (int number : numbers) sigaddset(&set, number);
  return set;
}

bool is_ignored(int number) {  // nohup, or a background job of a shell
  struct sigaction action = {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

void end_process(int number) {
  ::signal(number, SIG_DFL);
  sigset_t one = set_of({number});
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(number);
}

void wait_for_signals(sigset_t stops) {
  for (;;) {
    int number = 0;
    if (sigwait(&stops, &number)) continue;
    if (!recording) {
      if (!is_ignored(number)) end_process(number);
    } else if (number == SIGINT && received == SIGINT) {
      ::_exit(128 + SIGINT);
    } else {
      received = number;
    }
  }
}

}  // namespace

void start_signal_thread() {
  sigset_t stops = set_of({SIGINT, SIGTERM});
  sigset_t others =
      set_of({SIGHUP, SIGQUIT, SIGALRM, SIGPROF, SIGVTALRM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCHLD});
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);
  pthread_sigmask(SIG_BLOCK, &others, nullptr);
  std::thread([stops, others] {
    pthread_sigmask(SIG_UNBLOCK, &others, nullptr);
    wait_for_signals(stops);
  }).detach();
}

StopSignals::StopSignals() {
  received = 0;
  recording = true;
}

StopSignals::~StopSignals() { recording = false; }

std::string StopSignals::name() const {
  const int number = received;
  return number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "";
}

}  // namespace brine
