// Grids on the CPU; see cuda_runtime.h beside this.
#include <cuda_runtime.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace brine::cuda {
// Dynamic shared memory, as tensor/cuda/common.cuh names it.
thread_local __attribute__((aligned(16))) unsigned char brine_shared[227 * 1024];
}  // namespace brine::cuda

// The code that g++ calls before the first use of brine_shared where it is declared in a function,
// whether there is any or not.
extern "C" void _ZTHN5brine4cuda12brine_sharedE() {}

thread_local uint3 threadIdx, blockIdx;
thread_local dim3 blockDim, gridDim;

namespace emulator {

thread_local int thread_index = 0;

namespace {

namespace context = boost::context;

constexpr size_t kStack = 256 * 1024;
constexpr size_t kArena = size_t(8) << 30;  // addresses, not memory
constexpr size_t kPage = 4096;

// ---- the device's memory: one range of addresses, out of reach while no kernel runs
struct Arena {
  std::mutex mutex;
  unsigned char* base = nullptr;
  size_t used = 0, cap = kArena;
  std::map<size_t, std::vector<void*>> free;  // by size in pages
  std::map<void*, size_t> sizes;
  int reach = 0;
};

Arena& arena() {
  static Arena* a = [] {
    auto* made = new Arena;
    void* p = mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) std::abort();
    made->base = static_cast<unsigned char*>(p);
    return made;
  }();
  return *a;
}

void protect(Arena& a, int how) {
  if (a.used) mprotect(a.base, a.used, how);
}

// ---- threads of a block
struct Thread {
  int index = 0;
  bool done = false, at_block = false;
  unsigned warp_mask = 0;  // the lanes it waits for; 0 = it does not wait
};

struct Fiber {
  context::fiber own;
  int thread = -1;  // -1: idle
};

struct Block {
  const std::function<void()>* kernel = nullptr;
  std::vector<Thread> threads;
  std::vector<Fiber*> of_thread;
  int at_block = 0, done = 0;
  // Two sets of slots a warp, used in turn, so that one barrier per exchange is enough.
  std::vector<unsigned char> slots;
  std::vector<unsigned> turns;  // exchanges done, by thread
};

thread_local Block block;
thread_local context::fiber scheduler;
thread_local Fiber* running = nullptr;
thread_local std::vector<std::unique_ptr<Fiber>> fibers;
thread_local std::vector<Fiber*> idle;
thread_local uint64_t launches = 0;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulator: block %u,%u, thread %d: %s\n", blockIdx.x, blockIdx.y,
               thread_index, what);
  std::abort();
}

void enter(int index) {
  thread_index = index;
  const unsigned i = unsigned(index), x = blockDim.x, y = blockDim.y;
  threadIdx = {i % x, i / x % y, i / x / y};
}

void leave() { scheduler = std::move(scheduler).resume(); }

// The body of every fiber: runs threads that are given to it, for ever.
context::fiber body(context::fiber&& back) {
  scheduler = std::move(back);
  for (;;) {
    Fiber* self = running;
    (*block.kernel)();
    block.threads[size_t(self->thread)].done = true;
    ++block.done;
    self->thread = -1;
    leave();
  }
}

void resume(Fiber* fiber) {
  running = fiber;
  enter(fiber->thread);
  const int thread = fiber->thread;
  fiber->own = std::move(fiber->own).resume();
  if (fiber->thread < 0) {
    block.of_thread[size_t(thread)] = nullptr;
    idle.push_back(fiber);
  }
}

void start(int thread) {
  if (idle.empty()) {
    fibers.push_back(std::make_unique<Fiber>());
    fibers.back()->own = context::fiber(std::allocator_arg, context::fixedsize_stack(kStack), body);
    idle.push_back(fibers.back().get());
  }
  Fiber* fiber = idle.back();
  idle.pop_back();
  fiber->thread = thread;
  block.of_thread[size_t(thread)] = fiber;
  resume(fiber);
}

bool may_go(const Thread& t) {
  if (t.at_block) return false;
  if (!t.warp_mask) return true;
  const size_t first = size_t(t.index) / 32 * 32;
  for (size_t lane = 0; lane < 32; ++lane) {
    if (!(t.warp_mask >> lane & 1)) continue;
    if (first + lane >= block.threads.size()) die("a lane of the mask is outside the block");
    const Thread& other = block.threads[first + lane];
    if (other.done) die("a lane of the mask has left the kernel");
    if (other.warp_mask && other.warp_mask != t.warp_mask) die("lanes wait for different masks");
    if (!other.warp_mask) return false;
  }
  return true;
}

void run_block(bool backwards) {
  const int n = int(block.threads.size());
  auto in_order = [&](auto f) {
    for (int i = 0; i < n; ++i) f(backwards ? n - 1 - i : i);
  };
  in_order([](int i) { start(i); });
  while (block.done < n) {
    bool moved = false;
    if (block.at_block == n - block.done) {
      if (block.done) die("some threads left the kernel, others wait at __syncthreads");
      block.at_block = 0;
      for (Thread& t : block.threads) t.at_block = false;
      moved = true;
    }
    // Whole masks are let go together, before any of their lanes can wait again.
    std::vector<int> go;
    in_order([&](int i) {
      const Thread& t = block.threads[size_t(i)];
      if (!t.done && may_go(t)) go.push_back(i);
    });
    for (int i : go) block.threads[size_t(i)].warp_mask = 0;
    for (int i : go) resume(block.of_thread[size_t(i)]);
    if (go.empty() && !moved) die("threads wait at different barriers");
  }
}

}  // namespace

Reach::Reach() {
  Arena& a = arena();
  std::lock_guard lock(a.mutex);
  if (a.reach++ == 0) protect(a, PROT_READ | PROT_WRITE);
}
Reach::~Reach() {
  Arena& a = arena();
  std::lock_guard lock(a.mutex);
  if (--a.reach == 0) protect(a, PROT_NONE);
}

void block_barrier() {
  Thread& t = block.threads[size_t(thread_index)];
  t.at_block = true;
  ++block.at_block;
  leave();
}

void warp_barrier(unsigned mask) {
  Thread& t = block.threads[size_t(thread_index)];
  if (!(mask >> (t.index % 32) & 1)) die("a lane waits for a mask it is not in");
  t.warp_mask = mask;
  leave();
}

const unsigned char* warp_exchange(unsigned mask, const void* value, size_t bytes) {
  if (bytes > 16) die("more than 16 bytes are exchanged");
  const size_t thread = size_t(thread_index), warp = thread / 32;
  const size_t turn = block.turns[thread]++ % 2;
  unsigned char* slots = block.slots.data() + (2 * warp + turn) * 32 * 16;
  std::memcpy(slots + thread % 32 * 16, value, bytes);
  warp_barrier(mask);
  return slots;
}

cudaError_t run(const cudaLaunchConfig_t& config, const std::function<void()>& kernel) {
  const dim3 g = config.gridDim, b = config.blockDim;
  const size_t threads = size_t(b.x) * b.y * b.z;
  if (threads == 0 || threads > 1024 || b.z > 64 || g.x == 0 || g.y == 0 || g.z == 0 ||
      g.y > 65535 || g.z > 65535 || g.x > 0x7fffffffu || config.dynamicSmemBytes > 227 * 1024) {
    return cudaErrorInvalidConfiguration;
  }
  ++work;
  Reach reach;
  const size_t blocks = size_t(g.x) * g.y * g.z, warps = (threads + 31) / 32;
  blockDim = b;
  gridDim = g;
  block.kernel = &kernel;
  block.slots.assign(warps * 2 * 32 * 16, 0);
  // The order of the blocks and of the threads in them; by chance, or a loop over two kernels would
  // run each in one order only.
  const bool backwards = (++launches * 0x9E3779B97F4A7C15u >> 63) != 0;
  for (size_t n = 0; n < blocks; ++n) {
    const size_t i = backwards ? blocks - 1 - n : n;
    blockIdx = {unsigned(i % g.x), unsigned(i / g.x % g.y), unsigned(i / g.x / g.y)};
    block.threads.assign(threads, {});
    for (size_t t = 0; t < threads; ++t) block.threads[t].index = int(t);
    block.of_thread.assign(threads, nullptr);
    block.turns.assign(threads, 0);
    block.at_block = block.done = 0;
    std::memset(brine::cuda::brine_shared, 0xff, config.dynamicSmemBytes);
    run_block(backwards);
  }
  return cudaSuccess;
}

}  // namespace emulator

using emulator::arena;
using emulator::kPage;

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    default:
      return "invalid argument";
  }
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* index) { return *index = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int index) { return index == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {"emulated device", emulator::kArena, 227 * 1024, 9, 0, 4, 1 << 20};
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = emulator::kArena;
  *free = emulator::kArena - arena().used;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** block, size_t bytes) {
  auto& a = arena();
  std::lock_guard lock(a.mutex);
  const size_t size = (bytes + kPage - 1) / kPage * kPage;
  auto& waiting = a.free[size];
  if (!waiting.empty()) {
    *block = waiting.back();
    waiting.pop_back();
    return cudaSuccess;
  }
  if (a.used + size > a.cap) return cudaErrorMemoryAllocation;
  *block = a.base + a.used;
  a.sizes[*block] = size;
  a.used += size;
  return cudaSuccess;
}
cudaError_t cudaFree(void* block) {
  auto& a = arena();
  std::lock_guard lock(a.mutex);
  a.free[a.sizes[block]].push_back(block);
  // Pages that nobody holds make no change of protection slower.
  madvise(block, a.sizes[block], MADV_DONTNEED);
  return cudaSuccess;
}
