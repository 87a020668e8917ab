// Keeps signals away from threads that compute.
#pragma once

namespace brine {

// Blocks what may come at any moment (SIGINT, SIGTERM, ...) in the calling thread, and so in all
// that it starts, and leaves it to one thread that does nothing but wait: handlers run there. Call
// at the start of main, before any other thread is started. What a signal does stays the same.
//
// oneDNN's AVX-512 products (2.6) use memory below the stack pointer that belongs to a signal's
// handler: one that runs on a thread inside dnnl_sgemm corrupts the heap.
void keep_signals_aside();

}  // namespace brine
