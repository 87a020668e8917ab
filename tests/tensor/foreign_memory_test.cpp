// Tensors over memory that the allocator did not give, and the kinds of errors.
#include <cstdlib>
#include <memory>
#include <vector>

#include "autograd/ops.h"
#include "tensor/device/allocator.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"

namespace brine::test {

TEST_CASE("foreign memory: read and written in place, freed once by the last tensor") {
  int freed = 0;
  float values[6] = {0, 1, 2, 3, 4, 5};
  std::shared_ptr<void> owner(values, [&](void* p) {
    CHECK(p == values);
    ++freed;
  });
  const int64_t live = allocator_stats().live;
  Tensor row;
  {
    Tensor x = Tensor::from_memory(values, {2, 3}, Dtype::f32, std::move(owner));
    CHECK(allocator_stats().live == live);
    CHECK(x.data<float>() == values);
    CHECK(x.is_contiguous());
    values[4] = 40;
    row = x.select(0, 1);
  }
  CHECK(freed == 0);
  CHECK(row.to_vector() == std::vector<double>{3, 40, 5});
  assign(row, Tensor::full({3}, 7));
  CHECK(values[3] == 7);
  CHECK(values[2] == 2);
  row = {};
  CHECK(freed == 1);
}

TEST_CASE("foreign memory: is never taken for memory that may be overwritten") {
  double values[2] = {1, 2};
  Tensor x = Tensor::from_memory(values, {2}, Dtype::f64, nullptr);
  CHECK_FALSE(x.is_unique());
  CHECK(Tensor::zeros({2}).is_unique());
  Tensor y = scale(x, 3);
  CHECK(values[1] == 2);
  CHECK(y.to_vector() == std::vector<double>{3, 6});
}

TEST_CASE("foreign memory: refuses no memory and wrong alignment; empty tensors need none") {
  alignas(8) unsigned char bytes[16] = {};
  CHECK(message([&] { Tensor::from_memory(nullptr, {2}, Dtype::f32, nullptr); }) ==
        "Tensor::from_memory: no memory for [2]");
  CHECK(message([&] {
          Tensor::from_memory(bytes + 2, {2}, Dtype::f32, nullptr);
        }).ends_with("is not aligned to the 4 bytes of f32"));
  CHECK(Tensor::from_memory(bytes + 2, {2}, Dtype::f16, nullptr).numel() == 2);
  CHECK(Tensor::from_memory(nullptr, {0, 3}, Dtype::f32, nullptr).to_vector().empty());
  CHECK_THROWS_AS(Tensor::from_memory(bytes, {-1}, Dtype::u8, nullptr), Error);
}

TEST_CASE("errors: a kind besides the message") {
  auto kind = [](auto f) {
    try {
      f();
    } catch (const Error& e) {
      return std::string(name_of(e.kind)) + ": " + e.what();
    }
    return std::string();
  };
  CHECK(kind([] { check(false, "op: ", 3); }) == "invalid argument: op: 3");
  CHECK(kind([] { check_format(false, "a.bin: torn"); }) == "format: a.bin: torn");
  CHECK(kind([] { check_found(false, "a.bin: absent"); }) == "not found: a.bin: absent");
  CHECK(kind([] { throw Error("x", ErrorKind::io); }) == "io: x");
  trim();
  set_memory_cap(size_t(allocator_stats().reserved) + (1 << 20));
  CHECK(kind([] { Tensor::empty({1 << 22}); }).starts_with("out of memory: allocate: "));
  set_memory_cap(0);
}

}  // namespace brine::test
