// What a launch costs the host: small tensors are uploaded once, shared memory is requested once
// for a kernel, memory returns without a wait; and kernels run on the device of their tensors.
#include <thread>

#include "tensor/cuda/core/small_uploads.h"
#include "tensor/functions/transfer.h"
#include "tensor/kernels/attention.h"
#include "tensor/mask/csr.h"
#include "tests/cuda/compare.h"
#include "tests/messages.h"
#include "tests/nn/attention/contract/contract.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;

namespace {

template <class F>
cuda::HostWork work_of(F&& f) {
  const cuda::HostWork before = cuda::host_work();
  f();
  cuda::HostWork done = cuda::host_work();
  done.launches -= before.launches;
  done.uploads -= before.uploads;
  done.attributes -= before.attributes;
  done.mallocs -= before.mallocs;
  done.frees -= before.frees;
  done.waiting_frees -= before.waiting_frees;
  return done;
}

// A variable of the environment while an object lives; only the emulator reads them.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;

 private:
  const char* name_;
};

// Row i of x, all of whose rows are 1, is 1 / length in the columns that sequence i sees.
void check_softmax(const Tensor& x, const Tensor& lengths) {
  Tensor y = Tensor::like(x);
  BRINE_CALL(x, softmax, y, x, 1.0, Visibility{.causal = false, .lengths = lengths});
  Tensor wanted = Tensor::like(x.to(kCpu));
  BRINE_CALL(wanted, softmax, wanted, x.to(kCpu), 1.0,
             Visibility{.causal = false, .lengths = lengths});
  check_close("softmax", wanted, y.to(kCpu), 1e-6);
}

Tensor lengths_from(int64_t first) {
  return Tensor::from(std::vector<int64_t>{first % 9, first / 9 % 9}, {2});
}

}  // namespace

TEST_CASE("cuda: lengths are uploaded once for all ops of a batch, and again when they change") {
  if (!has_device()) return;
  const Tensor x = Tensor::full({2, 1, 8, 8}, 1, Dtype::f32, kCuda);
  const Tensor lengths = Tensor::from(std::vector<int64_t>{7, 3}, {2}), same = lengths.clone();
  auto softmax = [&](const Tensor& row_lengths) {
    Tensor y = Tensor::like(x);
    BRINE_CALL(x, softmax, y, x, 1.0, Visibility{.causal = false, .lengths = row_lengths});
  };
  softmax(lengths);
  const cuda::HostWork work = work_of([&] {
    for (int layer = 0; layer < 12; ++layer) {
      softmax(lengths);
      softmax(same);
    }
  });
  CHECK(work.launches == 24);
  CHECK(work.uploads == 0);
  // The CPU changes them in place, as a decoding state does.
  lengths.data<int64_t>()[1] = 8;
  CHECK(work_of([&] { softmax(lengths); }).uploads == 1);
  check_softmax(x, lengths);
  check_softmax(x, same);
}

TEST_CASE("cuda: more small tensors than are kept, in any order, with the right numbers") {
  if (!has_device()) return;
  const Tensor x = Tensor::full({2, 1, 8, 8}, 1, Dtype::f32, kCuda);
  for (int64_t i = 0; i < 200; ++i) check_softmax(x, lengths_from(i * 37 % 80));
  // Of numbers that are too many for a slot.
  const int64_t n = 3000;
  const Tensor many = Tensor::full({n, 1, 1, 2}, 1, Dtype::f32, kCuda);
  const Tensor lengths = Tensor::full({n}, 1, Dtype::i64);
  CHECK(work_of([&] { check_softmax(many, lengths); }).uploads == 1);
  CHECK(work_of([&] { check_softmax(many, lengths); }).uploads == 1);
}

TEST_CASE("cuda: a pass of SEA over a padded batch uploads none of its lengths again") {
  if (!has_device()) return;
  set_default_device(kCuda);
  Block block = make_block("sea", true, Dtype::f32);
  Inputs in = inputs(3, 37, Dtype::f32);
  for (Tensor* x : {&in.q, &in.k, &in.v, &in.hidden}) *x = x->to(kCuda);
  const Tensor lengths = lengths_of({37, 0, 22}), dy = normal({3, 37, kHeads * kSize}, 7).to(kCuda);
  const TeacherAttention teacher{{}, in.q.detach(), in.k.detach()};
  // With the loss of the estimate, without which no gradient reaches the decoder's convolutions.
  auto learn = [&](const Tensor& row_lengths) {
    nn::Tap tap("sea");
    const Visibility visible{.causal = true, .lengths = row_lengths};
    const Tensor y = block.module->forward(
        {.q = in.q, .k = in.k, .v = in.v, .hidden = in.hidden, .visible = visible, .tap = &tap});
    const Tensor& scores = tap.get("scores");
    const TeacherSummary summary = summarize_teacher(teacher, scores.dim(3), visible);
    backward(attach_loss(y, sum(approx_loss(scores, summary, visible))), dy);
  };
  learn(lengths);
  int convolutions = 0;
  for (const auto& p : block.module->named_parameters()) {
    if (p.path.find("conv") == std::string::npos) continue;
    CHECK(square_sum(grad(p.parameter->value)).to_vector()[0] > 0);
    ++convolutions;
  }
  CHECK(convolutions > 0);
  cuda::synchronize(kCuda);
  const cuda::HostWork work = work_of([&] { learn(lengths.clone()); });
  set_default_device(kCpu);
  MESSAGE("a pass of SEA forward and backward: " << work.launches << " launches, " << work.uploads
                                                 << " uploads");
  CHECK(work.launches > 50);
  CHECK(work.uploads == 0);
  CHECK(work.attributes == 0);
}

TEST_CASE("cuda: small tensors in use keep their numbers while many others are uploaded") {
  if (!has_device()) return;
  // Rows of one table, each gathered by different ids while the first ids are still held.
  const Tensor first = Tensor::from(std::vector<int64_t>{1001, 1002}, {2});
  const auto held = cuda::small_upload(first, kCuda);
  std::vector<std::shared_ptr<const void>> others;
  for (int64_t i = 0; i < 100; ++i) {
    const auto other = cuda::small_upload(Tensor::from(std::vector<int64_t>{i, i}, {2}), kCuda);
    CHECK(other != held);
    if (i % 2) others.push_back(other);
  }
  for (size_t i = 0; i < others.size(); ++i) {
    for (size_t j = 0; j < i; ++j) CHECK(others[i] != others[j]);
  }
  CHECK(cuda::small_upload(first.clone(), kCuda) == held);
  CHECK(work_of([&] { cuda::small_upload(first, kCuda); }).uploads == 0);
}

namespace {

void attend(Device device, int64_t d) {
  const Tensor q = Tensor::full({1, 1, 70, d}, 0.5, Dtype::f32, device);
  const Tensor y = Tensor::empty({1, 70, d}, Dtype::f32, device);
  const Tensor lse = Tensor::empty({1, 1, 70}, Dtype::f32, device);
  BRINE_CALL(q, flash_attention, y, lse, q, q, q, Visibility{.causal = false}, 1.0);
  check_close("values", Tensor::full(y.shape(), 0.5), y.to(Device{}), 1e-6);
}

}  // namespace

TEST_CASE("cuda: shared memory is requested once for a kernel") {
  if (!has_device()) return;
  attend(kCuda, 128);
  CHECK(work_of([&] {
          for (int i = 0; i < 5; ++i) attend(kCuda, 128);
        }).attributes == 0);
}

TEST_CASE("cuda: the limit of shared memory counts what a kernel declares itself") {
  if (!has_device() || !cuda::emulated()) return;
  const Setting declared("BRINE_EMULATED_STATIC_SHARED", "40000");
  const Setting small("BRINE_EMULATED_SHARED_KB", "64"), four("BRINE_EMULATED_DEVICES", "4");
  // A device that nothing else uses: a kernel's declaration is read at its first launch on a
  // device.
  const Device fourth{DeviceType::cuda, 3};
  const std::string said = message([&] { attend(fourth, 64); });
  CHECK_MESSAGE(contains(said, "flash_attention: a block needs "), said);
  CHECK_MESSAGE(contains(said, "bytes of shared memory of 65536"), said);
  trim(fourth);
}

TEST_CASE("cuda: memory returns to the system in stream order, without a wait") {
  if (!has_device()) return;
  trim(kCuda);
  const int64_t waits = cuda::waits();
  const cuda::HostWork work = work_of([] {
    // Batches of ever new sizes: blocks that waited longest are returned.
    for (int64_t i = 1; i <= 60; ++i) Tensor::empty({i * 100000}, Dtype::f32, kCuda);
    trim(kCuda);
  });
  CHECK(work.mallocs >= 20);  // one for each class of sizes
  CHECK(work.frees == work.mallocs);
  if (cuda::emulated()) CHECK(work.waiting_frees == 0);  // a GPU may have no pools
  if (cuda::emulated()) CHECK(cuda::waits() == waits);   // guard bands read without counting
}

TEST_CASE("cuda: kernels go to the device of their tensors, from any thread") {
  const Setting two("BRINE_EMULATED_DEVICES", "2");
  if (!has_device() || cuda::device_count() < 2) return;
  const Device second{DeviceType::cuda, 1};
  auto compute = [&](Device device) {
    const Tensor x = normal({40, 50}, 1), w = normal({50, 30}, 2);
    const Tensor device_x = x.to(device), device_w = w.to(device);
    Tensor expected = Tensor::empty({40, 30}), y = Tensor::empty({40, 30}, Dtype::f32, device);
    BRINE_CALL(expected, matmul, expected, x, w, false, false, 1, 0);
    // Another device in between.
    const Tensor other = Tensor::full({5}, 3, Dtype::f32, device == kCuda ? second : kCuda);
    BRINE_CALL(y, matmul, y, device_x, device_w, false, false, 1, 0);
    check_close("matmul", expected, y.to(kCpu), 1e-5);
    check_close("other", Tensor::full({5}, 3), other.to(kCpu), 0);
    attend(device, 64);
    check_softmax(Tensor::full({2, 1, 8, 8}, 1, Dtype::f32, device), lengths_from(23));
    const SelectConfig config{.k = 3, .mode = SelectMode::per_query};
    const Selection chosen = select_columns(normal({1, 2, 30, 8}, 4).to(device), {}, config);
    const FlatCsr csr = build_csr(chosen.selected, {}, 3, 0, chosen.max_entries);
    CHECK(csr.columns.device() == device);
    Downloads arriving;
    const Tensor got = arriving.start(y);
    arriving.finish();
    check_close("copied", expected, got, 1e-5);
  };
  for (Device device : {kCuda, second, kCuda}) {
    CAPTURE(int(device.index));
    compute(device);
    std::thread([&] { compute(device); }).join();
  }
  trim(second);
}

TEST_CASE("cuda: a question about a device leaves the thread on its own") {
  const Setting two("BRINE_EMULATED_DEVICES", "2");
  if (!has_device() || cuda::device_count() < 2) return;
  cuda::use_device(0);
  CHECK(cuda::is_idle({DeviceType::cuda, 1}));
  CHECK(cuda::exchange_device(0) == 0);
  void* const second = cuda::stream_handle(1);
  CHECK(cuda::exchange_device(0) == 0);
  CHECK(second != cuda::stream_handle(0));
}

TEST_CASE("cuda: a device without pools of memory still gets and returns it") {
  const Setting three("BRINE_EMULATED_DEVICES", "3"), none("BRINE_EMULATED_POOLS", "0");
  if (!has_device() || !cuda::emulated()) return;
  const Device third{DeviceType::cuda, 2};  // used here only: what it has is looked for once
  const cuda::HostWork work = work_of([&] {
    attend(third, 32);
    trim(third);
  });
  CHECK(work.mallocs > 0);
  CHECK(work.waiting_frees == work.frees);
  CHECK(work.frees > 0);
}
