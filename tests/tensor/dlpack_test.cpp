// DLPack in both directions: shared memory, layouts, types, ownership, and errors.
#include "tensor/dlpack.h"

#include <cstddef>
#include <vector>

#include "autograd/node.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

using namespace dlpack;

// A tensor of another library: its memory, and how often its deleter ran.
template <class M>
struct Foreign {
  std::vector<float> values;
  std::vector<int64_t> shape, strides;
  int deleted = 0;
  M managed = {};

  Foreign(std::vector<float> v, std::vector<int64_t> sizes, std::vector<int64_t> steps = {})
      : values(std::move(v)), shape(std::move(sizes)), strides(std::move(steps)) {
    managed.context = this;
    managed.deleter = [](M* self) { ++static_cast<Foreign*>(self->context)->deleted; };
    managed.tensor = {.data = values.data(),
                      .device = {1, 0},
                      .rank = int32_t(shape.size()),
                      .type = {2, 32, 1},
                      .shape = shape.data(),
                      .strides = strides.empty() ? nullptr : strides.data(),
                      .byte_offset = 0};
    if constexpr (std::is_same_v<M, ManagedVersioned>) managed.version = {1, 0};
  }
};

using Values = std::vector<double>;

// The refusal of a tensor after a change; the caller must still own it.
template <class Change>
std::string refusal(Change change) {
  Foreign<Managed> f({1, 2, 3, 4}, {2, 2});
  change(f.managed.tensor);
  const std::string text = message([&] { from_dlpack(&f.managed); });
  CHECK(f.deleted == 0);
  return text;
}

}  // namespace

TEST_CASE("dlpack: the structs have the layout of the specification") {
  CHECK(sizeof(DlDevice) == 8);
  CHECK(sizeof(DlType) == 4);
  CHECK(sizeof(DlTensor) == 48);
  CHECK(offsetof(DlTensor, rank) == 16);
  CHECK(offsetof(DlTensor, type) == 20);
  CHECK(offsetof(DlTensor, shape) == 24);
  CHECK(offsetof(DlTensor, byte_offset) == 40);
  CHECK(sizeof(Managed) == 64);
  CHECK(offsetof(Managed, deleter) == 56);
  CHECK(sizeof(ManagedVersioned) == 80);
  CHECK(offsetof(ManagedVersioned, deleter) == 16);
  CHECK(offsetof(ManagedVersioned, tensor) == 32);
}

TEST_CASE("dlpack: what goes out and comes in again is the same memory, in every type") {
  for (Dtype dtype :
       {Dtype::f32, Dtype::f64, Dtype::f16, Dtype::bf16, Dtype::i32, Dtype::i64, Dtype::u8}) {
    CAPTURE(dtype);
    const Tensor x = Tensor::from(std::vector<float>{0, 1, 2, 3, 4, 5}, {2, 3}).to(dtype);
    const Tensor old = from_dlpack(to_dlpack(x)), now = from_dlpack(to_dlpack_versioned(x));
    for (const Tensor& y : {old, now}) {
      CHECK(y.dtype() == dtype);
      CHECK(y.shape() == x.shape());
      CHECK(y.raw() == x.raw());
      CHECK(y.to_vector() == x.to_vector());
    }
    assign(now, Tensor::full({2, 3}, 9, dtype));
    CHECK(old.to_vector() == Values(6, 9));
  }
}

TEST_CASE(
    "dlpack: an exported view keeps its strides and its memory after the tensor is destroyed") {
  Tensor x = Tensor::from(std::vector<double>{0, 1, 2, 3, 4, 5}, {2, 3});
  Managed* managed = to_dlpack(x.transpose(0, 1).slice(0, 1, 2));
  x = {};
  CHECK(managed->tensor.rank == 2);
  CHECK(managed->tensor.shape[0] == 2);
  CHECK(managed->tensor.strides[0] == 1);
  CHECK(managed->tensor.strides[1] == 3);
  CHECK(managed->tensor.type.code == 2);
  CHECK(managed->tensor.type.bits == 64);
  CHECK(from_dlpack(managed).to_vector() == Values{1, 4, 2, 5});
}

TEST_CASE("dlpack: foreign tensors are used in place and deleted once, after the last view") {
  Foreign<Managed> f({0, 1, 2, 3, 4, 5, 6, 7}, {2, 2}, {4, 2});
  f.managed.tensor.byte_offset = 4;
  Tensor view;
  {
    Tensor x = from_dlpack(&f.managed);
    CHECK(x.to_vector() == Values{1, 3, 5, 7});
    CHECK_FALSE(x.is_unique());
    view = x.select(0, 1);
  }
  CHECK(f.deleted == 0);
  f.values[7] = 70;
  CHECK(view.to_vector() == Values{5, 70});
  view = {};
  CHECK(f.deleted == 1);
}

TEST_CASE("dlpack: scalars, empty tensors, broadcast axes and bool") {
  Foreign<ManagedVersioned> scalar({5}, {}), empty({}, {0, 3}), wide({1, 2}, {3, 2}, {0, 1});
  empty.managed.tensor.data = nullptr;
  CHECK(from_dlpack(&scalar.managed).to_vector() == Values{5});
  CHECK(from_dlpack(&empty.managed).shape() == Shape{0, 3});
  CHECK(from_dlpack(&wide.managed).to_vector() == Values{1, 2, 1, 2, 1, 2});
  CHECK(empty.deleted == 1);
  Foreign<Managed> flags({0}, {4});
  flags.managed.tensor.type = {6, 8, 1};
  CHECK(from_dlpack(&flags.managed).dtype() == Dtype::u8);
  Managed* out = to_dlpack(Tensor::zeros({2, 0}));
  CHECK(out->tensor.data == nullptr);
  out->deleter(out);
}

TEST_CASE("dlpack: read-only memory is copied and released at once") {
  Foreign<ManagedVersioned> f({1, 2}, {2});
  f.managed.flags = kReadOnly;
  Tensor x = from_dlpack(&f.managed);
  CHECK(f.deleted == 1);
  x.data<float>()[0] = 10;
  CHECK(f.values[0] == 1);
}

TEST_CASE("dlpack: refuses unsupported tensors, and the caller keeps the tensor") {
  int64_t negative[] = {-2, 1}, huge[] = {INT64_MAX, 1}, sizes[] = {1, 1, 1, 1, 1, 1, 1};
  check_says(refusal([](DlTensor& t) { t.device.type = 2; }),
             {"from_dlpack", "device type 2", "1"});
  CHECK(refusal([](DlTensor& t) {
          t.type = {5, 64, 1};
        }) == "from_dlpack: type code 5 of 64 bits and 1 lanes has no equivalent");
  CHECK(contains(refusal([](DlTensor& t) { t.type.lanes = 4; }), "4 lanes"));
  CHECK(refusal([&](DlTensor& t) { t.rank = 7, t.shape = sizes; }) ==
        "from_dlpack: 7 axes, at most 6 are supported");
  CHECK(refusal([&](DlTensor& t) { t.strides = negative; }) == "from_dlpack: negative stride -2");
  CHECK(refusal([&](DlTensor& t) { t.shape = negative; }) == "from_dlpack: negative size -2");
  CHECK(contains(refusal([&](DlTensor& t) { t.strides = huge, t.shape = sizes, sizes[0] = 3; }),
                 "is too large"));
  CHECK(contains(refusal([](DlTensor& t) { t.byte_offset = 2; }), "is not aligned"));
  CHECK(contains(refusal([](DlTensor& t) { t.data = nullptr; }), "no memory"));
  Foreign<ManagedVersioned> f({1}, {1});
  f.managed.version.major = 2;
  CHECK(message([&] { from_dlpack(&f.managed); }) == "from_dlpack: version 2.0 is not 1.x");
  CHECK(f.deleted == 0);
  CHECK(message([] { to_dlpack(Tensor()); }) == "to_dlpack: the tensor is undefined");
  CHECK(message([] { to_dlpack(require_grad(Tensor::zeros({1}))); }) ==
        "to_dlpack: the tensor is on the tape; detach() it first");
  CHECK_THROWS_AS(from_dlpack(static_cast<Managed*>(nullptr)), Error);
}

}  // namespace brine::test
