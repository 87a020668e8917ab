// The first signal asks, the second interrupt ends.
#include "distill/signals.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <functional>
#include <string>

using brine::distill::StopSignals;

namespace {

// The wait status of a child that runs `work` and then leaves with 7.
int status_of(const std::function<void()>& work) {
  pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(7);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

}  // namespace

TEST_CASE("signals: one is a request that names itself") {
  for (auto [number, name] : {std::pair(SIGINT, "SIGINT"), {SIGTERM, "SIGTERM"}}) {
    StopSignals stop;
    CHECK_FALSE(stop.requested());
    ::raise(number);
    CHECK(stop.requested());
    CHECK(stop.name() == std::string(name));
  }
}

TEST_CASE("signals: a second interrupt ends the process, one after a SIGTERM does not") {
  int status = status_of([] {
    StopSignals stop;
    ::raise(SIGINT);
    ::raise(SIGINT);
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 130));
  status = status_of([] {
    StopSignals stop;
    ::raise(SIGTERM);
    ::raise(SIGINT);
    ::raise(SIGXFSZ);
    if (stop.name() != std::string("SIGINT")) ::_exit(1);
  });
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
}

TEST_CASE("signals: the old handlers come back") {
  int status = status_of([] {
    ::signal(SIGTERM, SIG_DFL);  // the test program has its own
    { StopSignals stop; }
    ::raise(SIGTERM);
  });
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM));
}
