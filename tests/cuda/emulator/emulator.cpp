// Grids on the CPU; see cuda_runtime.h.
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

namespace emulator {
namespace {
constexpr size_t kUnasked = 48 * 1024;      // dynamic shared memory that needs no opt-in
constexpr size_t kMostShared = 227 * 1024;  // of a block of the device that is emulated
constexpr size_t kBand = 1024;              // after it; must not be written
}  // namespace
}  // namespace emulator

namespace brine::cuda {
// Dynamic shared memory, as tensor/cuda/core/common.cuh names it.
thread_local __attribute__((
    aligned(16))) unsigned char brine_shared[emulator::kMostShared + emulator::kBand];
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

bool is_on_device(const void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p), base = reinterpret_cast<uintptr_t>(arena().base);
  return at >= base && at < base + kArena;
}

// Shared memory that a block may have. Tests make it that of smaller devices, in KB.
size_t most_shared() {
  const char* smaller = std::getenv("BRINE_EMULATED_SHARED_KB");
  return smaller ? size_t(std::atoi(smaller)) * 1024 : kMostShared;
}

// The opt-in sizes that kernels requested.
struct Granted {
  std::mutex mutex;
  std::map<const void*, size_t> bytes;
};
Granted& granted() {
  static Granted* all = new Granted;
  return *all;
}
bool is_granted(const void* kernel, size_t bytes) {
  if (bytes <= kUnasked) return true;
  std::lock_guard lock(granted().mutex);
  return bytes <= granted().bytes[kernel];
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
  // Two sets of slots per warp, used alternately, so that one barrier per exchange is enough.
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

// The body of every fiber: runs the threads that it is given, for ever.
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

void multiply_add(float (&c)[4], const float (&a)[4], const float (&b)[2]) {
  constexpr unsigned kAll = 0xffffffffu;
  auto check_factor = [](float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (bits & 0x1fffu && std::isfinite(x)) die("a factor of tensor cores is not rounded to TF32");
  };
  for (float x : a) check_factor(x);
  for (float x : b) check_factor(x);
  float left[32][4], right[32][4];  // b in the first two
  std::memcpy(left, warp_exchange(kAll, a, sizeof a), sizeof left);
  std::memcpy(right, warp_exchange(kAll, b, sizeof b), sizeof right);
  const int g = lane() / 4, t = lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = i / 2, column = 2 * t + i % 2;
    for (int k = 0; k < 8; ++k) {
      c[i] += left[g * 4 + k % 4][row + k / 4 * 2] * right[column * 4 + k % 4][k / 4];
    }
  }
}

bool on_device(const void* p) { return is_on_device(p); }

bool holds_host_address(const void* words, size_t bytes) {
  for (size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
    void* word;
    std::memcpy(&word, static_cast<const char*>(words) + at, sizeof word);
    const auto address = reinterpret_cast<uintptr_t>(word);
    // Sizes are smaller, floating-point numbers larger than the addresses of programs.
    if (address >> 40 == 0 || address >> 47 != 0 || is_on_device(word)) continue;
    unsigned char in_memory;
    if (mincore(reinterpret_cast<void*>(address / kPage * kPage), 1, &in_memory) == 0) return true;
  }
  return false;
}

cudaError_t run(const cudaLaunchConfig_t& config, const void* kernel,
                const std::function<void()>& body) {
  const dim3 g = config.gridDim, b = config.blockDim;
  const size_t shared = config.dynamicSmemBytes;
  const size_t threads = size_t(b.x) * b.y * b.z;
  if (threads == 0 || threads > 1024 || b.z > 64 || g.x == 0 || g.y == 0 || g.z == 0 ||
      g.y > 65535 || g.z > 65535 || g.x > 0x7fffffffu) {
    return cudaErrorInvalidConfiguration;
  }
  if (!is_granted(kernel, shared) || !config.stream) return cudaErrorInvalidValue;
  ++work;
  Reach reach;
  const size_t blocks = size_t(g.x) * g.y * g.z, warps = (threads + 31) / 32;
  blockDim = b;
  gridDim = g;
  block.kernel = &body;
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
    unsigned char* memory = brine::cuda::brine_shared;
    std::memset(memory, 0xff, shared + kBand);
    run_block(backwards);
    const bool whole = std::all_of(memory + shared, memory + shared + kBand,
                                   [](unsigned char byte) { return byte == 0xff; });
    if (!whole) die("a kernel wrote beyond the dynamic shared memory");
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
    case cudaErrorIllegalAddress:
      return "an argument has an address of the host";
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
  *p = {"emulated device", emulator::kArena, 9, 0, 4, 1 << 20};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = int(emulator::most_shared());
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int bytes) {
  if (bytes < 0 || size_t(bytes) > emulator::most_shared()) return cudaErrorInvalidValue;
  std::lock_guard lock(emulator::granted().mutex);
  emulator::granted().bytes[kernel] = size_t(bytes);
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
  // Another thread may be running: then the protection is not changed.
  if (a.reach) mprotect(*block, size, PROT_READ | PROT_WRITE);
  return cudaSuccess;
}
cudaError_t cudaFree(void* block) {
  auto& a = arena();
  std::lock_guard lock(a.mutex);
  a.free[a.sizes[block]].push_back(block);
  // Released pages do not slow down changes of protection.
  madvise(block, a.sizes[block], MADV_DONTNEED);
  return cudaSuccess;
}
