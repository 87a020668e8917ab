// The meta device: shapes without memory and without values.
#include "tensor/device/allocator.h"
#include "tensor/functions/transfer.h"
#include "tensor/kernels/dense.h"
#include "tensor/mask/csr.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

Tensor meta(const Shape& shape, Dtype dtype = Dtype::f32) {
  return Tensor::empty(shape, dtype, Device::meta);
}

}  // namespace

TEST_CASE("meta: tensors of any size have shapes and views and take no memory") {
  const int64_t before = allocator_stats().live;
  Tensor x = Tensor::zeros({1 << 20, 1 << 20}, Dtype::f64, Device::meta);
  CHECK(x.device() == Device::meta);
  CHECK(join(x.slice(0, 0, 2)) == "Tensor [2, 1048576] f64 meta without values");
  CHECK(x.numel() == int64_t(1) << 40);
  Tensor y = x.slice(0, 1, 6).transpose(0, 1);
  CHECK(y.shape() == Shape{1 << 20, 6});
  CHECK(y.shares_memory(x));
  CHECK_FALSE(y.is_contiguous());
  CHECK(y.contiguous().is_contiguous());
  CHECK(y.clone().device() == Device::meta);
  CHECK(x.to(Dtype::f32).dtype() == Dtype::f32);
  CHECK(Tensor::full({3}, 2, Dtype::f32, Device::meta).is_unique());
  CHECK(allocator_stats().live == before);
  CHECK_REFUSES(meta({int64_t(1) << 40, int64_t(1) << 40}), "is too large");
}

TEST_CASE("meta: values are never read, only shapes come from other devices") {
  const Tensor x = meta({1}), host = Tensor::zeros({1});
  auto refusal = [](const char* op) {
    return join(op, ": a tensor on the meta device has no values");
  };
  CHECK_THROWS_WITH_AS(x.data<float>(), refusal("data").c_str(), Error);
  CHECK_THROWS_WITH_AS(x.raw(), refusal("data").c_str(), Error);
  CHECK_THROWS_WITH_AS(x.item(), refusal("item").c_str(), Error);
  CHECK_THROWS_WITH_AS(x.to_vector(), refusal("to_vector").c_str(), Error);
  CHECK_THROWS_WITH_AS(x.to(Device{}), refusal("to").c_str(), Error);
  CHECK_THROWS_WITH_AS(assign(host, x), refusal("to").c_str(), Error);
  CHECK_THROWS_WITH_AS(items({x}), refusal("to_vector").c_str(), Error);
  CHECK_THROWS_WITH_AS(Downloads().start(x), refusal("Downloads").c_str(), Error);
  CHECK(x.to(Device::meta).shares_memory(x));
  CHECK(host.to(Device::meta).shape() == Shape{1});
  CHECK(Uploads().start(host, Device::meta).device() == Device::meta);
  assign(x, host);
}

TEST_CASE("meta: a kernel does nothing and its arguments are not evaluated") {
  const Tensor x = meta({4});
  int evaluated = 0;
  auto number = [&] { return double(++evaluated); };
  BRINE_CALL(x, fill, x, number());
  CHECK(evaluated == 0);
  const Tensor host = Tensor::zeros({4});
  BRINE_CALL(host, fill, host, number());
  CHECK(evaluated == 1);
  CHECK(host.to_vector() == std::vector<double>{1, 1, 1, 1});
  // A CPU kernel with a tensor without memory throws.
  CHECK_THROWS_WITH_AS(BRINE_CALL(host, copy, host, x), doctest::Contains("has no values"), Error);
}

TEST_CASE("meta: it cannot be the default device and has no allocator") {
  CHECK_REFUSES(set_default_device(Device::meta), "cannot be the default");
  CHECK(default_device() == Device{});
  CHECK_THROWS_WITH_AS(parse_device("meta"), doctest::Contains("wanted cpu, cuda"), Error);
  CHECK_THROWS_WITH_AS(allocate(64, Device::meta), doctest::Contains("has no memory"), Error);
  CHECK_THROWS_WITH_AS(Tensor::from_memory(nullptr, {0}, Dtype::f32, nullptr, Device::meta),
                       doctest::Contains("has no memory"), Error);
  CHECK_THROWS_WITH_AS(allocator_stats(Device::meta), doctest::Contains("has no memory"), Error);
}

TEST_CASE("meta: values that the CPU computes for a tensor are computed for other devices only") {
  auto ones = [](const Tensor& t) { BRINE_CALL(t, fill, t, 1.0); };
  CHECK(Tensor::filled({2}, Dtype::f32, Device{}, ones).to_vector() == std::vector<double>{1, 1});
  bool called = false;
  const Tensor x =
      Tensor::filled({2}, Dtype::f32, Device::meta, [&](const Tensor&) { called = true; });
  CHECK_FALSE(called);
  CHECK(x.device() == Device::meta);
}

TEST_CASE("meta: a mask has the entries of its budget, all of them where k keys are visible") {
  const int64_t B = 2, H = 3, T = 50, K = 16;
  for (bool causal : {true, false}) {
    for (int64_t k : {1, 7, 50, 64}) {
      for (bool full : {true, false}) {
        CAPTURE(causal);
        CAPTURE(k);
        CAPTURE(full);
        const Visibility visible{
            .causal = causal,
            .lengths = full ? Tensor() : Tensor::from(std::vector<int64_t>{50, 9}, {2})};
        auto entries = [&](const Tensor& estimate) {
          const SelectConfig config{.k = k, .mode = SelectMode::per_query};
          const Selection s = select_columns(estimate, visible, config);
          CHECK(s.selected.device() == estimate.device());
          return build_csr(s.selected, visible, k, 0, s.max_entries).columns.numel();
        };
        const int64_t on_meta = entries(meta({B, H, T, K}));
        const int64_t real = entries(normal({B, H, T, K}, 3, Dtype::f32));
        if (k >= T) CHECK(on_meta == real);
        CHECK(double(on_meta) == doctest::Approx(double(real)).epsilon(k == 1 ? 1.5 : 0.3));
        if (full && !causal) CHECK(on_meta == B * H * T * std::min(k, T));
      }
    }
  }
}

}  // namespace brine::test
