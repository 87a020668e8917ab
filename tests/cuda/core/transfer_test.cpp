// Concurrent copies: they are complete whatever happens to the memory at both ends, and waits are
// counted.
#include "tensor/functions/transfer.h"

#include <atomic>
#include <thread>

#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

Tensor doubled(const Tensor& x) {
  Tensor y = Tensor::like(x);
  BRINE_CALL(x, axpby, y, x, 2.0, 0.0);
  return y;
}

// Allocates freed memory of the size of x, if there is any, and overwrites it.
void write_over(const Tensor& x, Device device) {
  const Tensor other = Tensor::full(x.shape(), -7, x.dtype(), device);
}

int64_t waits_of(const std::function<void()>& f) {
  const int64_t before = cuda::waits();
  f();
  return cuda::waits() - before;
}

}  // namespace

TEST_CASE("cuda: downloads arrive in another thread, their sources let go and written over") {
  if (!has_device()) return;
  const Tensor x = normal({3, 1000}, 1), host = normal({7}, 2);
  Downloads arriving;
  std::vector<Tensor> got;
  CHECK(waits_of([&] {
          for (const Tensor& part : {x, x.transpose(0, 1), x.slice(1, 10, 500)}) {
            got.push_back(arriving.start(part.to(kCuda)));
            write_over(part, kCuda);
          }
          CHECK(arriving.start(host).shares_memory(host));
          CHECK_FALSE(arriving.start(Tensor()).defined());
          CHECK(arriving.start(Tensor::empty({0, 3}, Dtype::f32, kCuda)).numel() == 0);
        }) == 0);
  std::thread([downloads = std::move(arriving)]() mutable { downloads.finish(); }).join();
  check_close("whole", x, got[0], 0);
  check_close("transposed", x.transpose(0, 1).contiguous(), got[1], 0);
  check_close("part", x.slice(1, 10, 500).contiguous(), got[2], 0);
}

TEST_CASE("cuda: kernels get memory that no one had before while another thread waits for a copy") {
  if (!has_device()) return;
  const Tensor x = Tensor::full({int64_t(4) << 20}, 3, Dtype::f32, kCuda);
  Downloads arriving;
  Tensor got = arriving.start(x);
  std::atomic<bool> ended = false;
  std::thread writer([&] {
    arriving.finish();
    ended = true;
  });
  // Each is larger than all before it, so that the allocator has none to reuse.
  std::vector<Tensor> held;
  for (int64_t n = 10'000; (!ended || held.size() < 10) && held.size() < 100; n += 5'000)
    held.push_back(Tensor::full({n}, 7, Dtype::f32, kCuda));
  writer.join();
  for (const Tensor& h : held) check_close("held", Tensor::full(h.shape(), 7), h, 0);
  check_close("copied", Tensor::full(x.shape(), 3), got, 0);
}

TEST_CASE("cuda: unfinished downloads end before their memory is released") {
  if (!has_device()) return;
  const int64_t live = allocator_stats(kCuda).live, pinned = pinned_stats().live;
  const Tensor x = normal({500}, 1);
  {
    Downloads dropped, replaced;
    dropped.start(x.to(kCuda));
    replaced.start(x.to(kCuda));
    replaced = Downloads();
  }
  CHECK(allocator_stats(kCuda).live == live);
  CHECK(pinned_stats().live == pinned);
}

TEST_CASE("cuda: uploads are what kernels see, their sources let go and written over") {
  if (!has_device()) return;
  const Tensor x = normal({2, 700}, 1), y = normal({40}, 2);
  auto pinned_copy = [](const Tensor& t) {
    const PinnedMemory pinned(kCuda);
    return t.clone();
  };
  for (int turn = 0; turn < 3; ++turn) {
    Uploads coming;
    Tensor first, second;
    CHECK(waits_of([&] {
            first = coming.start(pinned_copy(x), kCuda);
            second = coming.start(pinned_copy(y), kCuda);
            {
              const PinnedMemory pinned(kCuda);
              write_over(x, kCpu);
            }
            coming.admit();
          }) == 0);
    check_close("first", doubled(x), doubled(first).to(kCpu), 0);
    check_close("second", doubled(y), doubled(second).to(kCpu), 0);
    // Work queued after the copies was waited for, so they are known to have ended.
    CHECK(waits_of([&] { coming = Uploads(); }) == 0);
  }
  CHECK(Uploads().start(x, kCpu).shares_memory(x));
}

TEST_CASE("cuda: an upload may go to memory that kernels have just used") {
  if (!has_device()) return;
  const PinnedMemory pinned(kCuda);
  const Tensor x = normal({900}, 1), z = normal({900}, 2);
  Tensor used = z.to(kCuda);
  const void* block = used.raw();
  const Tensor result = doubled(used);
  used = Tensor();
  Uploads coming;
  const Tensor sent = coming.start(x, kCuda);
  CHECK(sent.raw() == block);
  coming.admit();
  check_close("of the old", doubled(z), result.to(kCpu), 0);
  check_close("the new", x, sent.to(kCpu), 0);
}

TEST_CASE("cuda: pinned blocks are cached and reused, separately from other memory") {
  if (!has_device()) return;
  const int64_t live = pinned_stats().live;
  const void* first = nullptr;
  for (int turn = 0; turn < 3; ++turn) {
    const PinnedMemory pinned(kCuda);
    const int64_t calls = pinned_stats().system_calls;
    const Tensor a = Tensor::empty({1234});
    CHECK(pinned_stats().live > live);
    if (turn == 0) first = a.raw();
    if (turn > 0) CHECK((a.raw() == first && pinned_stats().system_calls == calls));
    const PinnedMemory not_now((Device()));
    const Tensor b = Tensor::empty({1234});
    CHECK(b.raw() != first);
  }
  CHECK(pinned_stats().live == live);
  CHECK(Tensor::empty({1234}).raw() != first);
}

TEST_CASE("cuda: small uploads do not wait until more than the staging memory is under way") {
  if (!has_device()) return;
  const Tensor x = normal({1 << 16}, 1);  // 256 KiB, 4 to a part of 8
  std::vector<Tensor> sent(40);
  auto send = [&](size_t count) {
    return waits_of([&] {
      for (size_t i = 0; i < count; ++i) sent[i] = x.to(kCuda);
    });
  };
  cuda::synchronize(kCuda);
  for (int step = 0; step < 5; ++step) {
    CHECK(send(27) == 0);
    cuda::synchronize(kCuda);
  }
  CHECK(send(40) > 0);
  for (const Tensor& t : sent) check_close("sent", x, t.to(kCpu), 0);
}

TEST_CASE("cuda: many scalars are read with one wait") {
  if (!has_device()) return;
  const Tensor x = normal({5}, 1, Dtype::f64).to(kCuda), y = normal({1}, 2).to(kCuda);
  std::vector<Tensor> scalars;
  for (int64_t i = 0; i < 5; ++i) scalars.push_back(x.slice(0, i, 1));
  scalars.push_back(y.view(Shape{}));
  std::vector<double> got;
  CHECK(waits_of([&] { got = items(scalars); }) == 1);
  std::vector<double> wanted = x.to_vector();
  wanted.push_back(y.item());
  CHECK(got == wanted);
  CHECK(items({}).empty());
}
