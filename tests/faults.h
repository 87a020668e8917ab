// Faults in the system calls that change files, injected from outside: a test program that includes
// tests/faults.inc in one of its sources replaces libc's write, fsync, rename and so on, and
// counts them. The library itself has no hook.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace brine::test {

enum class Fault {
  kill,       // SIGKILL before the call
  disk_full,  // this and every later write fails with ENOSPC; other calls work
  fail,       // this one call fails with EIO
  torn,       // a write takes half of its bytes and then SIGKILL; other calls as kill
};

struct FaultPlan {
  Fault fault = Fault::kill;
  int at = 0;  // number of the call, from 1; 0: never
};

// Runs `work` in a child process under the plan. The child leaves with 0 when work returned, with
// 1 when it threw, by a signal when it was killed.
struct ChildEnd {
  int status = 0;
  bool killed = false;
  int calls = 0;      // counted calls that the child made
  std::string order;  // one letter for each: write, fsync, rename, mkdir, unlink
};
ChildEnd run_with_fault(const FaultPlan& plan, const std::function<void()>& work);

}  // namespace brine::test
