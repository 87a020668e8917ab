// Grids on the CPU; see cuda_runtime.h.
#include <cuda_runtime.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>
#include <sys/mman.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tests/cuda/emulator/last_blocks.h"
#include "tests/cuda/emulator/launches.h"

namespace emulator {
namespace {
constexpr size_t kUnasked = 48 * 1024;     // dynamic shared memory that needs no opt-in
constexpr size_t kMaxShared = 227 * 1024;  // of a block of the device that is emulated
constexpr size_t kBand = 1024;             // after it; must not be written
}  // namespace
}  // namespace emulator

namespace brine::cuda {
const char*& last_launch();
// Dynamic shared memory, as tensor/cuda/core/common.cuh names it.
thread_local
    __attribute__((aligned(16))) unsigned char brine_shared[emulator::kMaxShared + emulator::kBand];
}  // namespace brine::cuda

// The code that g++ calls before the first use of brine_shared where it is declared in a function,
// whether there is any or not.
extern "C" void _ZTHN5brine4cuda12brine_sharedE() {}

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim, gridDim;

namespace emulator {

constinit thread_local int thread_index = 0;

namespace {

namespace context = boost::context;

constexpr size_t kStack = 256 * 1024;
constexpr size_t kArena = size_t(8) << 30;           // addresses, not memory
constexpr size_t kRecordedArena = size_t(32) << 40;  // while no kernel runs
constexpr size_t kPage = 4096;

// ---- launches that are recorded, and do not run
bool records = false;
std::vector<Launch> recorded;
std::vector<Operand> noted;
bool runs_last = false;
std::set<std::string> too_long;  // kernels whose last block takes minutes

// ---- the device's memory: one range of addresses, out of reach while no kernel runs
struct Arena {
  std::mutex mutex;
  unsigned char* base = nullptr;
  size_t used = 0, size = records ? kRecordedArena : kArena;
  std::map<std::pair<int, size_t>, std::vector<void*>> free;  // by device and size
  struct Piece {
    size_t size;
    int device;
  };
  std::map<const void*, Piece> pieces;
  int reach = 0;
  // A protection key of the processor, where it has them: a thread opens and closes all pieces by
  // writing a register, else by a change of every page.
  int key = -1;
};

Arena& arena() {
  static Arena* a = [] {
    auto* made = new Arena;
    void* p =
        mmap(nullptr, made->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) std::abort();
    made->base = static_cast<unsigned char*>(p);
    if (!records) made->key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return made;
  }();
  return *a;
}

bool is_on_device(const void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p), base = reinterpret_cast<uintptr_t>(arena().base);
  return at >= base && at < base + arena().size;
}

// What tests make of the device: a number of the environment.
int setting(const char* name, int otherwise) {
  const char* given = std::getenv(name);
  return given ? std::atoi(given) : otherwise;
}

// Shared memory that a block may have. Tests make it that of smaller devices, in KB.
size_t shared_limit() {
  const int smaller = setting("BRINE_EMULATED_SHARED_KB", 0);
  return smaller ? size_t(smaller) * 1024 : kMaxShared;
}

int device_count() { return std::min(setting("BRINE_EMULATED_DEVICES", 1), kDevices); }

thread_local int current = 0;
thread_local int ranges = 0;  // of NVTX, nested

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

thread_local int reach_of_thread = 0;

void protect(Arena& a, int how) {
  if (a.used) mprotect(a.base, a.used, how);
}

// ---- threads of a block
constexpr size_t kWarp = 32;

// Lanes as bits, the first lane lowest.
struct Warp {
  unsigned ready = 0;    // may go on
  unsigned waiting = 0;  // at a warp barrier, lane i for masks[i]
  unsigned whole = 0;    // of these, those that wait for all lanes
  unsigned done = 0;     // have left the kernel
  unsigned masks[kWarp];
};

// Stacks that begin at different offsets in their pages: at one offset, all of a block would share
// a set of the first cache, and each change of thread would miss it.
struct StaggeredStack {
  size_t offset;
  context::stack_context allocate() {
    context::stack_context stack;
    stack.size = kStack;
    void* memory = mmap(nullptr, kStack + kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    stack.sp = static_cast<char*>(memory) + kStack + offset;
    return stack;
  }
  void deallocate(context::stack_context& stack) {
    munmap(static_cast<char*>(stack.sp) - kStack - offset, kStack + kPage);
  }
};

struct Block {
  const std::function<void()>* kernel = nullptr;
  std::vector<Warp> warps;
  std::vector<context::fiber*> of_thread;
  std::vector<uint3> indices;  // of threads, as threadIdx
  int threads = 0, at_block = 0, done = 0;
  // Two sets of slots per warp, used alternately, so that one barrier per exchange is enough.
  std::vector<unsigned char> slots;
  std::vector<unsigned> turns;  // exchanges done, by thread
};

// The lanes of a warp that run one after the other. Each changes to the next one itself: by the
// scheduler it would be two changes of stacks.
struct Turn {
  unsigned go = 0;
  size_t first = 0;  // thread
  bool starting = false, backwards = false;
};

thread_local Block block;
thread_local Turn turn;
thread_local context::fiber scheduler;
thread_local context::fiber* left = nullptr;  // where the context that is left is kept
thread_local context::fiber* running = nullptr;
thread_local std::vector<std::unique_ptr<context::fiber>> fibers;
thread_local std::vector<context::fiber*> idle;
thread_local uint64_t launches = 0;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "emulator: block %u,%u, thread %d: %s\n", blockIdx.x, blockIdx.y,
               thread_index, what);
  std::abort();
}

void enter(int index) {
  thread_index = index;
  threadIdx = block.indices[size_t(index)];
}

void change(context::fiber& from, context::fiber& to) {
  left = &from;
  context::fiber back = std::move(to).resume();
  *left = std::move(back);
}

// The next thread of the turn; -1 if there is none.
int next_thread() {
  if (!turn.go) return -1;
  const int lane = turn.backwards ? 31 - __builtin_clz(turn.go) : __builtin_ctz(turn.go);
  turn.go &= ~(1u << lane);
  return int(turn.first) + lane;
}

void begin(context::fiber* fiber, int thread) {
  block.of_thread[size_t(thread)] = fiber;
  running = fiber;
  enter(thread);
}

context::fiber body(context::fiber&& back);

// Changes from a context to a thread; -1: to the scheduler.
void change_to(context::fiber& from, int thread) {
  if (thread < 0) return change(from, scheduler);
  if (turn.starting) {
    if (idle.empty()) {
      const size_t offset = (fibers.size() + 1) * 5 * 64 % kPage;
      fibers.push_back(
          std::make_unique<context::fiber>(std::allocator_arg, StaggeredStack{offset}, body));
      idle.push_back(fibers.back().get());
    }
    context::fiber* fiber = idle.back();
    idle.pop_back();
    begin(fiber, thread);
  } else {
    running = block.of_thread[size_t(thread)];
    enter(thread);
  }
  change(from, *running);
}

void leave() { change_to(*running, next_thread()); }

// The body of every fiber: runs the threads that it is given, for ever.
context::fiber body(context::fiber&& back) {
  *left = std::move(back);
  for (;;) {
    context::fiber* self = running;
    (*block.kernel)();
    block.warps[size_t(thread_index) / kWarp].done |= 1u << thread_index % kWarp;
    ++block.done;
    const int next = next_thread();
    if (next >= 0 && turn.starting) {
      begin(self, next);
      continue;
    }
    idle.push_back(self);
    change_to(*self, next);
  }
}

// The lanes of a warp whose masks are complete: each of a mask waits for that same mask.
unsigned complete(const Warp& warp, unsigned lanes) {
  if (warp.whole == lanes && lanes == ~0u) return lanes;
  unsigned out = 0;
  for (unsigned open = warp.waiting; open;) {
    const unsigned mask = warp.masks[__builtin_ctz(open)];
    if (mask & ~lanes) die("a lane of the mask is outside the block");
    if (mask & warp.done) die("a lane of the mask has left the kernel");
    for (unsigned rest = mask & warp.waiting; rest; rest &= rest - 1) {
      if (warp.masks[__builtin_ctz(rest)] != mask) die("lanes wait for different masks");
    }
    if ((mask & warp.waiting) == mask) out |= mask;
    open &= ~mask;
  }
  return out;
}

// Runs the lanes of a warp until each has left the kernel or waits for other warps.
void run_warp(size_t index, bool starting, bool backwards) {
  Warp& warp = block.warps[index];
  const size_t first = index * kWarp, count = std::min(kWarp, size_t(block.threads) - first);
  const unsigned lanes = count == kWarp ? ~0u : (1u << count) - 1;
  while (warp.ready) {
    turn = {std::exchange(warp.ready, 0), first, starting, backwards};
    change_to(scheduler, next_thread());
    starting = false;
    // All lanes of a mask are released together, before any of their lanes can wait again.
    warp.ready = complete(warp, lanes);
    warp.waiting &= ~warp.ready;
    warp.whole &= ~warp.ready;
  }
}

void run_block(bool backwards) {
  const size_t warps = block.warps.size();
  auto make_ready = [&] {
    for (size_t w = 0; w < warps; ++w) {
      const size_t count = std::min(kWarp, size_t(block.threads) - w * kWarp);
      block.warps[w].ready = count == kWarp ? ~0u : (1u << count) - 1;
    }
  };
  make_ready();
  for (bool starting = true; block.done < block.threads; starting = false) {
    for (size_t w = 0; w < warps; ++w) run_warp(backwards ? warps - 1 - w : w, starting, backwards);
    if (block.done == block.threads) return;
    if (block.at_block != block.threads - block.done) die("threads wait at different barriers");
    if (block.done) die("some threads left the kernel, others wait at __syncthreads");
    block.at_block = 0;
    make_ready();
  }
}

}  // namespace

Reach::Reach() {
  Arena& a = arena();
  if (a.key >= 0) {
    if (reach_of_thread++ == 0) pkey_set(a.key, 0);
    return;
  }
  std::lock_guard lock(a.mutex);
  if (a.reach++ == 0) protect(a, PROT_READ | PROT_WRITE);
}
Reach::~Reach() {
  Arena& a = arena();
  if (a.key >= 0) {
    if (--reach_of_thread == 0) pkey_set(a.key, PKEY_DISABLE_ACCESS);
    return;
  }
  std::lock_guard lock(a.mutex);
  if (--a.reach == 0) protect(a, PROT_NONE);
}

void block_barrier() {
  ++block.at_block;
  leave();
}

void warp_barrier(unsigned mask) {
  Warp& warp = block.warps[size_t(thread_index) / kWarp];
  const unsigned lane = unsigned(thread_index) % kWarp;
  if (!(mask >> lane & 1)) die("a lane waits for a mask it is not in");
  warp.masks[lane] = mask;
  warp.waiting |= 1u << lane;
  warp.whole |= unsigned(mask == ~0u) << lane;
  leave();
}

const unsigned char* warp_exchange(unsigned mask, const void* value, size_t bytes) {
  if (bytes > 16) die("more than 16 bytes are exchanged");
  const size_t thread = size_t(thread_index), warp = thread / 32;
  const size_t turn = block.turns[thread]++ % 2;
  unsigned char* slots = block.slots.data() + (2 * warp + turn) * 32 * 16;
  unsigned char* slot = slots + thread % 32 * 16;
  bytes == 4 ? std::memcpy(slot, value, 4) : std::memcpy(slot, value, bytes);  // 4: without a call
  warp_barrier(mask);
  return slots;
}

bool on_device(const void* p) { return is_on_device(p); }

void record_launches() { records = true; }
void run_last_blocks(const std::set<std::string>& except) {
  runs_last = true;
  too_long = except;
}
void run_no_blocks() { runs_last = false; }
bool recording() { return records; }
std::vector<Launch> take_launches() { return std::exchange(recorded, {}); }
void record(Launch launch) {
  launch.operands = std::exchange(noted, {});
  recorded.push_back(std::move(launch));
}

Operand block_of(const void* address) {
  Arena& a = arena();
  std::lock_guard lock(a.mutex);
  const auto next = is_on_device(address) ? a.pieces.upper_bound(address) : a.pieces.begin();
  if (next == a.pieces.begin()) return {nullptr, 0};
  const auto& [block, piece] = *std::prev(next);
  return {block, piece.size};
}

void note_operands(const void* argument, size_t bytes) {
  for (size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
    const void* word;
    std::memcpy(&word, static_cast<const char*>(argument) + at, sizeof word);
    if (const Operand found = block_of(word); found.block) noted.push_back(found);
  }
}

int current_device() { return current; }

int device_of(const void* memory) {
  if (!is_on_device(memory)) return -1;
  Arena& a = arena();
  std::lock_guard lock(a.mutex);
  const auto next = a.pieces.upper_bound(memory);
  return next == a.pieces.begin() ? -1 : std::prev(next)->second.device;
}

bool holds_host_address(const void* words, size_t bytes) {
  for (size_t at = 0; at + sizeof(void*) <= bytes; at += sizeof(void*)) {
    void* word;
    std::memcpy(&word, static_cast<const char*>(words) + at, sizeof word);
    const auto address = reinterpret_cast<uintptr_t>(word);
    // Sizes are smaller, floating-point numbers larger than the addresses of programs.
    if (address >> 40 == 0 || address >> 47 != 0) continue;
    if (is_on_device(word)) {
      if (device_of(word) != current) return true;
      continue;
    }
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
  if (!is_granted(kernel, shared) || device_of_stream(config.stream) != current) {
    return cudaErrorInvalidValue;
  }
  if (ranges == 0) die("a kernel is launched outside a range with its name");
  ++work[current];
  const size_t blocks = size_t(g.x) * g.y * g.z, warps = (threads + 31) / 32;
  blockDim = b;
  gridDim = g;
  block.kernel = &body;
  block.slots.assign(warps * 2 * 32 * 16, 0);
  block.indices.resize(threads);
  for (unsigned i = 0; i < threads; ++i) block.indices[i] = {i % b.x, i / b.x % b.y, i / b.x / b.y};
  // The order of the blocks and of the threads in them; by chance, or a loop over two kernels would
  // run each in one order only.
  const bool backwards = (++launches * 0x9E3779B97F4A7C15u >> 63) != 0;
  auto run_one = [&](size_t i) {
    blockIdx = {unsigned(i % g.x), unsigned(i / g.x % g.y), unsigned(i / g.x / g.y)};
    block.threads = int(threads);
    block.warps.assign(warps, {});
    block.of_thread.assign(threads, nullptr);
    block.turns.assign(threads, 0);
    block.at_block = block.done = 0;
    unsigned char* memory = brine::cuda::brine_shared;
    std::memset(memory, 0xff, shared + kBand);
    run_block(backwards);
    // All bytes of the band are equal to the next one, and the first is what was written.
    const unsigned char* band = memory + shared;
    if (band[0] != 0xff || std::memcmp(band, band + 1, kBand - 1) != 0)
      die("a kernel wrote beyond the dynamic shared memory");
  };
  if (records) {
    const std::string name = brine::cuda::last_launch();
    record({name, {g.x, g.y, g.z}, {b.x, b.y, b.z}, shared, {}});
    if (!runs_last || too_long.count(name)) return cudaSuccess;
    const std::vector<Operand> operands = recorded.back().operands;
    auto open = [&](int how) {
      for (const Operand& o : operands) mprotect(const_cast<void*>(o.block), o.bytes, how);
    };
    open(PROT_READ | PROT_WRITE);
    run_one(blocks - 1);
    open(PROT_NONE);
    return cudaSuccess;
  }
  Reach reach;
  for (size_t n = 0; n < blocks; ++n) run_one(backwards ? blocks - 1 - n : n);
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
      return "an argument has an address of the host or of another device";
    default:
      return "invalid argument";
  }
}
int nvtxRangePushA(const char* name) {
  if (!name || !*name) emulator::die("a range has no name");
  return emulator::ranges++;
}
int nvtxRangePop() { return --emulator::ranges; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { return *n = emulator::device_count(), cudaSuccess; }
cudaError_t cudaGetDevice(int* index) { return *index = emulator::current, cudaSuccess; }
cudaError_t cudaSetDevice(int index) {
  if (index < 0 || index >= emulator::kDevices) return cudaErrorInvalidValue;
  emulator::current = index;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int index) {
  *p = {"emulated device", {{char(index)}}, arena().size, 9, 0, 4, 1 << 20};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  *value = what == cudaDevAttrMemoryPoolsSupported ? emulator::setting("BRINE_EMULATED_POOLS", 1)
                                                   : int(emulator::shared_limit());
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* of, const void*) {
  *of = {size_t(emulator::setting("BRINE_EMULATED_STATIC_SHARED", 0)),
         emulator::setting("BRINE_EMULATED_PTX", 90)};
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int bytes) {
  if (bytes < 0 || size_t(bytes) > emulator::shared_limit()) return cudaErrorInvalidValue;
  std::lock_guard lock(emulator::granted().mutex);
  emulator::granted().bytes[kernel] = size_t(bytes);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = arena().size;
  *free = arena().size - arena().used;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** block, size_t bytes) {
  auto& a = arena();
  std::lock_guard lock(a.mutex);
  const size_t size = (bytes + kPage - 1) / kPage * kPage;
  auto& waiting = a.free[{emulator::current, size}];
  if (!waiting.empty()) {
    *block = waiting.back();
    waiting.pop_back();
    return cudaSuccess;
  }
  if (a.used + size > a.size) return cudaErrorMemoryAllocation;
  *block = a.base + a.used;
  a.pieces[*block] = {size, emulator::current};
  a.used += size;
  if (a.key >= 0 && pkey_mprotect(*block, size, PROT_READ | PROT_WRITE, a.key) != 0) std::abort();
  // Another thread may be running: then the protection is not changed.
  if (a.reach) mprotect(*block, size, PROT_READ | PROT_WRITE);
  return cudaSuccess;
}
cudaError_t cudaFree(void* block) {
  auto& a = arena();
  std::lock_guard lock(a.mutex);
  const auto [size, device] = a.pieces[block];
  a.free[{device, size}].push_back(block);
  // Released pages do not slow down changes of protection.
  madvise(block, size, MADV_DONTNEED);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int index) {
  *pool = reinterpret_cast<cudaMemPool_t>(arena().base + index);  // a name, not memory
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
cudaError_t cudaMallocAsync(void** block, size_t bytes, cudaStream_t stream) {
  if (emulator::device_of_stream(stream) != emulator::current) return cudaErrorInvalidValue;
  return cudaMalloc(block, bytes);
}
cudaError_t cudaFreeAsync(void* block, cudaStream_t stream) {
  if (emulator::device_of(block) != emulator::device_of_stream(stream))
    return cudaErrorInvalidValue;
  return cudaFree(block);
}
