// Memory of the device: copies, errors, guard bands, the allocator's counts.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>

#include "tensor/device/accelerator.h"
#include "tensor/device/allocator.h"
#include "tests/cuda/compare.h"
#include "tests/messages.h"

using namespace brine;
using namespace brine::test;

namespace {

// The signal that ends a child process with this work; 0: none does.
int signal_of(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);  // the test program has another handler
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_CASE("cuda: tensors are copied to the device and back, whole and in parts") {
  if (!has_device()) return;
  const Tensor x = normal({3, 5, 7}, 1);
  for (const Tensor& part : {x, x.transpose(0, 2), x.slice(1, 1, 3), x.slice(0, 0, 0)}) {
    const Tensor device_part = part.to(kCuda);
    CHECK(device_part.device() == kCuda);
    CHECK(device_part.to(kCuda).shares_memory(device_part));
    check_close("there and back", part, device_part.to(kCpu), 0);
  }
  const Tensor to = Tensor::zeros({3, 5, 7}, Dtype::f64, kCuda);
  assign(to.slice(1, 2, 2), x.slice(1, 2, 2));
  const Tensor back = to.to(kCpu);
  check_close("assigned", x.slice(1, 2, 2).to(Dtype::f64), back.slice(1, 2, 2), 0);
  check_close("left alone", Tensor::zeros({3, 2, 7}, Dtype::f64), back.slice(1, 0, 2), 0);
  std::vector<Tensor> many, sent;  // more than the staging memory of uploads has at once
  for (uint64_t i = 0; i < 12; ++i) {
    many.push_back(normal({1 << 17}, 10 + i));
    Tensor passing = many.back().clone();
    sent.push_back(passing.to(kCuda));
    BRINE_CALL(passing, fill, passing, 0.0);  // the bytes were taken
  }
  for (size_t i = 0; i < many.size(); ++i) check_close("sent", many[i], sent[i].to(kCpu), 0);
  const Tensor large = normal({1 << 19}, 30);
  check_close("large", large, large.to(kCuda).to(kCpu), 0);
  CHECK(Tensor::full({1}, 2.5, Dtype::f32, kCuda).item() == 2.5);
}

TEST_CASE("cuda: what does not fit is refused with the sizes") {
  if (!has_device()) return;
  const cuda::MemoryInfo memory = cuda::memory_info(0);
  const std::string refusal =
      message([&] { Tensor::empty({int64_t(memory.total)}, Dtype::f32, kCuda); });
  CHECK_MESSAGE(contains(refusal, "cuda:0"), refusal);
  CHECK_MESSAGE(contains(refusal, std::to_string(memory.total) + " bytes free"), refusal);
  CHECK_MESSAGE(contains(refusal, "lower the batch"), refusal);
  CHECK(Tensor::zeros({4}, Dtype::f32, kCuda).to_vector() == std::vector<double>(4, 0.0));
}

TEST_CASE("cuda: blocks are released and reused; guard bands detect a violation") {
  if (!has_device()) return;
  trim(kCuda);
  void* first = Tensor::empty({1000}, Dtype::f32, kCuda).raw();
  const int64_t calls = allocator_stats(kCuda).system_calls;
  CHECK(Tensor::empty({1000}, Dtype::f32, kCuda).raw() == first);
  CHECK(allocator_stats(kCuda).system_calls == calls);
  CHECK(allocator_stats(kCuda).live == 0);

  set_guard_counting(true);  // gradcheck.h has switched the bands on
  const int64_t before = guard_violations();
  {
    const Tensor t = Tensor::empty({16}, Dtype::f32, kCuda);
    const float beyond = 1;
    cuda::upload(t.raw() + 16 * sizeof(float), &beyond, sizeof beyond, kCuda);
  }
  CHECK(guard_violations() == before + 1);
  set_guard_counting(false);
}

TEST_CASE("cuda: the host does not reach memory of the device, before a kernel and after it") {
  if (!has_device() || !cuda::emulated()) return;
  const Tensor x = Tensor::empty({1000}, Dtype::f32, kCuda);
  auto read = [&] { (void)*static_cast<volatile unsigned char*>(x.raw()); };
  auto write = [&] { *static_cast<volatile unsigned char*>(x.raw()) = 1; };
  auto check_out_of_reach = [&] {
    CHECK(signal_of(read) == SIGSEGV);
    CHECK(signal_of(write) == SIGSEGV);
    CHECK(signal_of([&] { std::thread(read).join(); }) == SIGSEGV);
  };
  check_out_of_reach();
  BRINE_CALL(x, fill, x, 1.0);
  check_out_of_reach();
  CHECK(x.to(kCpu).to_vector() == std::vector<double>(1000, 1.0));
  check_out_of_reach();
}

TEST_CASE("cuda: names of devices") {
  CHECK(parse_device("cpu") == kCpu);
  CHECK(contains(message([] { parse_device("gpu"); }), "wanted cpu, cuda or cuda:N"));
  CHECK(contains(message([] { parse_device("cuda:-1"); }), "wanted cpu, cuda or cuda:N"));
  CHECK(contains(message([] { parse_device("cuda:123"); }), "wanted cpu, cuda or cuda:N"));
  if (!has_device()) {
    CHECK(contains(message([] { parse_device("cuda"); }), cuda::why_none()));
    return;
  }
  CHECK(parse_device("cuda") == kCuda);
  CHECK(parse_device("cuda:0") == kCuda);
  CHECK(contains(message([] { parse_device("cuda:15"); }), "counted from 0"));
}
