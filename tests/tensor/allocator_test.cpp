// The caching allocator: classes, reuse, caps, poison and guard bands.
#include "tensor/device/allocator.h"

#include <cmath>
#include <filesystem>

#include "tensor/device/machine_memory.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("size classes waste at most an eighth and never shrink a request") {
  for (size_t bytes = 0; bytes < 100000; bytes += 7) {
    const size_t size = size_class(bytes);
    CHECK(size >= bytes);
    CHECK(size % 64 == 0);
    if (bytes > 512) CHECK(double(size - bytes) <= 0.125 * double(bytes));
    CHECK(size_class(size) == size);
  }
}

TEST_CASE("blocks are aligned, reused, and counted") {
  trim();
  const AllocatorStats before = allocator_stats();
  for (size_t bytes : {size_t(0), size_t(1), size_t(63), size_t(1000), size_t(5) << 20}) {
    void* p = allocate(bytes, {});
    CHECK(reinterpret_cast<uintptr_t>(p) % 64 == 0);
    const int64_t calls = allocator_stats().system_calls;
    CHECK(allocator_stats().live > before.live);
    release(p, bytes, {});
    void* q = allocate(bytes, {});
    CHECK(p == q);
    CHECK(allocator_stats().system_calls == calls);
    release(q, bytes, {});
    CHECK(allocator_stats().live == before.live);
  }
  CHECK(allocator_stats().reserved > before.reserved);
  trim();
  CHECK(allocator_stats().reserved == before.reserved);
}

TEST_CASE("peaks rise, and fall only when reset") {
  reset_peak();
  const int64_t base = allocator_stats().peak_live;
  { Tensor big = Tensor::empty({1 << 20}); }
  CHECK(allocator_stats().peak_live >= base + (4 << 20));
  reset_peak();
  CHECK(allocator_stats().peak_live == base);
}

TEST_CASE("the machine's memory is what is available, or what the groups of the process leave") {
  Scratch root;
  auto file = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root / name).parent_path());
    root.write(name, text);
  };
  auto bytes = [&] { return available_memory(root.path().string()); };
  CHECK(std::isinf(bytes()));
  file("proc/meminfo", "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\n");
  CHECK(bytes() == 5000 * 1024);
  file("proc/self/cgroup", "0::/a/b\n");
  file("sys/fs/cgroup/a/b/memory.max", "max\n");
  file("sys/fs/cgroup/a/b/memory.current", "1000\n");
  CHECK(bytes() == 5000 * 1024);
  file("sys/fs/cgroup/a/memory.max", "300000\n");
  file("sys/fs/cgroup/a/memory.current", "120000\n");
  CHECK(bytes() == 180000);
  file("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 20000\n");  // is given back
  CHECK(bytes() == 200000);
  // The first version, in a container that sees its group as the top one.
  file("proc/self/cgroup", "5:cpu:/x\n4:memory:/not/here\n");
  file("sys/fs/cgroup/memory/memory.limit_in_bytes", "400000\n");
  file("sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  CHECK(bytes() == 300000);
  file("sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n");
  CHECK(bytes() == 0);
}

TEST_CASE("the cap is kept, and waiting blocks are given back first") {
  trim();
  const size_t base = size_t(allocator_stats().reserved);
  set_memory_cap(base + (3 << 20));
  { Tensor a = Tensor::empty({2 << 20}, Dtype::u8); }
  // 2 MiB wait in the cache; 2.5 MiB fit only when those go back.
  { Tensor b = Tensor::empty({5 << 19}, Dtype::u8); }
  CHECK_REFUSES(Tensor::empty({4 << 20}, Dtype::u8), "over the cap of");
  set_memory_cap(0);
  CHECK_NOTHROW(Tensor::empty({4 << 20}, Dtype::u8));
}

TEST_CASE("blocks of sizes that do not recur are returned") {
  trim();
  constexpr int64_t kMiB = int64_t(1) << 20;
  const int64_t before = allocator_stats().reserved, live = allocator_stats().live;
  // A batch of every length: never more than 300 MiB at once, one and a half gigabytes of sizes in
  // all.
  for (int64_t length = 100; length <= 150; ++length) {
    const auto bytes = size_t(length * kMiB);
    void *a = allocate(bytes, {}), *b = allocate(bytes, {});
    release(a, bytes, {});
    release(b, bytes, {});
    CHECK(allocator_stats().reserved - before <= (live + 320 * kMiB) * 3 / 2 + 64 * kMiB);
  }
  // Beside a large block half a GiB waits, not half of it.
  void* large = allocate(size_t(2000 * kMiB), {});
  for (int64_t length = 100; length <= 150; ++length) {
    const auto bytes = size_t(length * kMiB);
    void *x = allocate(bytes, {}), *y = allocate(bytes, {});
    release(x, bytes, {});
    release(y, bytes, {});
    CHECK(allocator_stats().reserved - before <= live + (2048 + 320 + 512 + 64) * kMiB);
  }
  release(large, size_t(2000 * kMiB), {});
  // The same sizes again and again are not given back.
  const int64_t calls = allocator_stats().system_calls;
  for (int n = 0; n < 10; ++n) release(allocate(150 * kMiB, {}), 150 * kMiB, {});
  CHECK(allocator_stats().system_calls == calls);
  trim();
}

TEST_CASE("an impossible size is refused with the sizes") {
  CHECK_THROWS_AS(Tensor::empty({int64_t(1) << 55}, Dtype::f32), Error);
  CHECK_REFUSES(Tensor::empty({int64_t(1) << 40, int64_t(1) << 40}), "too large");
  CHECK_THROWS_WITH_AS(Tensor::empty({3, -1}), doctest::Contains("negative size"), Error);
}

TEST_CASE("fresh memory is NaN under poison") {
  for (double x : Tensor::empty({33}).to_vector()) CHECK(std::isnan(x));
  for (double x : Tensor::empty({33}, Dtype::f64).to_vector()) CHECK(std::isnan(x));
  for (double x : Tensor::empty({33}, Dtype::bf16).to_vector()) CHECK(std::isnan(x));
}

TEST_CASE("a write outside a block is found on release") {
  set_guard_counting(true);
  for (int64_t at : {int64_t(-1), int64_t(10), int64_t(12)}) {
    const int64_t before = guard_violations();
    {
      Tensor x = Tensor::zeros({10});
      x.data<float>()[at] = 1;
    }
    CHECK(guard_violations() == before + 1);
  }
  const int64_t before = guard_violations();
  { Tensor x = Tensor::zeros({10}); }
  CHECK(guard_violations() == before);
  set_guard_counting(false);
}

TEST_CASE("guard bands cannot change under live blocks") {
  Tensor x = Tensor::empty({1});
  CHECK_THROWS_WITH_AS(set_guard_bands(false), doctest::Contains("are live"), Error);
}
