// Signals reach the waiting thread and none that computes.
#include "apps/signal_thread.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace {

std::atomic<pid_t> handled_by{0};

void note_thread(int) { handled_by = ::gettid(); }

// In a process of its own: 0 when the handler ran on a thread that does not compute.
int receive(bool aside) {
  struct sigaction action = {};
  action.sa_handler = note_thread;
  ::sigaction(SIGTERM, &action, nullptr);
  if (aside) brine::keep_signals_aside();
  std::atomic<pid_t> worker{0};
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    worker = ::gettid();
    while (!stop) std::this_thread::yield();
  });
  while (worker == 0) std::this_thread::yield();
  ::kill(::getpid(), SIGTERM);
  for (int i = 0; i < 1000 && handled_by == 0; ++i) ::usleep(10000);
  stop = true;
  busy.join();
  if (handled_by == 0) return 2;
  return handled_by == ::getpid() || handled_by == worker ? 1 : 0;
}

int in_child(bool aside) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(receive(aside));
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("signals are handled by a thread that does not compute") {
  CHECK(in_child(true) == 0);
  CHECK(in_child(false) == 1);  // what happens otherwise
}
