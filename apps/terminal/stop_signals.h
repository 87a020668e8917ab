// SIGINT and SIGTERM: one thread waits for them; a run checks between steps whether one has
// arrived.
#pragma once

#include <string>

#include "tensor/base/error.h"

namespace brine {

// Call at the start of main, before any other thread is started. Blocks the asynchronous signals in
// the calling thread, and so in all threads it starts, and starts one thread that receives them.
// Signals other than SIGINT and SIGTERM keep their effect; these two end the process as usual,
// unless a StopSignals object exists.
//
// No other thread may run a signal handler: oneDNN's AVX-512 products (2.6) use memory below the
// stack pointer, where the kernel puts a handler's frame, and the heap would be corrupted.
void start_signal_thread();

// While an object exists (one at a time), the first SIGINT or SIGTERM is only recorded; a second
// SIGINT ends the process at once with status 130. Needs start_signal_thread().
class StopSignals : NonCopyable {
 public:
  StopSignals();
  ~StopSignals();

  std::string name() const;  // "SIGINT", "SIGTERM", or empty while none has arrived
};

}  // namespace brine
