// Stop signals: recorded while a run expects them, fatal otherwise, never handled by a computing
// thread.
#include "apps/terminal/stop_signals.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

using brine::start_signal_thread;
using brine::StopSignals;

namespace {

// The wait status of a child that runs `work` and then exits with 7.
int status_of(const std::function<void()>& work) {
  pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);  // the test program has another handler
    work();
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

bool wait_until(const std::function<bool()>& done) {
  for (int i = 0; i < 2000 && !done(); ++i) ::usleep(5000);
  return done();
}

void send(int number) { ::kill(::getpid(), number); }

bool exited(int status, int code) { return WIFEXITED(status) && WEXITSTATUS(status) == code; }

std::atomic<pid_t> handled_by{0};
void note_thread(int) { handled_by = ::gettid(); }

// In a separate process: exits with 0 when a handler ran on a thread that does not compute.
void receive(int number, bool aside) {
  ::signal(number, note_thread);
  if (aside) start_signal_thread();
  std::atomic<pid_t> worker{0};
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    worker = ::gettid();
    while (!stop) std::this_thread::yield();
  });
  while (worker == 0) std::this_thread::yield();
  send(number);
  bool arrived = wait_until([] { return handled_by != 0; });
  stop = true;
  busy.join();
  ::_exit(!arrived ? 2 : handled_by == ::getpid() || handled_by == worker ? 1 : 0);
}

}  // namespace

TEST_CASE("signals: the first is a request that has a name") {
  for (auto [number, name] : {std::pair(SIGINT, "SIGINT"), {SIGTERM, "SIGTERM"}}) {
    int status = status_of([&] {
      start_signal_thread();
      StopSignals stop;
      if (!stop.name().empty()) ::_exit(1);
      send(number);
      if (!wait_until([&] { return !stop.name().empty(); })) ::_exit(2);
      if (stop.name() != name) ::_exit(3);
    });
    CHECK(exited(status, 7));
  }
}

TEST_CASE("signals: a second interrupt ends the process, one after a SIGTERM does not") {
  int status = status_of([] {
    start_signal_thread();
    StopSignals stop;
    send(SIGINT);
    if (!wait_until([&] { return stop.name() == "SIGINT"; })) ::_exit(1);
    send(SIGINT);
    ::sleep(20);
  });
  CHECK(exited(status, 130));
  status = status_of([] {
    start_signal_thread();
    StopSignals stop;
    send(SIGTERM);
    if (!wait_until([&] { return stop.name() == "SIGTERM"; })) ::_exit(1);
    send(SIGINT);
    if (!wait_until([&] { return stop.name() == "SIGINT"; })) ::_exit(2);
  });
  CHECK(exited(status, 7));
}

TEST_CASE("signals: they end a process that records none, and one that no longer does") {
  for (int number : {SIGINT, SIGTERM}) {
    for (bool after : {false, true}) {
      int status = status_of([&] {
        start_signal_thread();
        if (after) StopSignals{};
        send(number);
        ::sleep(20);
      });
      CHECK((WIFSIGNALED(status) && WTERMSIG(status) == number));
    }
  }
}

TEST_CASE("signals: one that the parent process ignored stays ignored") {
  int status = status_of([] {
    ::signal(SIGINT, SIG_IGN);
    start_signal_thread();
    send(SIGINT);
    ::usleep(50000);
  });
  CHECK(exited(status, 7));
}

TEST_CASE("signals: handlers run on a thread that does not compute") {
  CHECK(exited(status_of([] { receive(SIGUSR1, true); }), 0));
  CHECK(exited(status_of([] { receive(SIGUSR1, false); }), 1));  // what happens otherwise
}
