// The type of matrix products, one setting per thread.
#include "autograd/compute_type.h"

#include "tensor/base/error.h"
#include "tensor/kernels/dense.h"

namespace brine {
namespace {

thread_local Dtype present = Dtype::f32;

}  // namespace

ComputeType::ComputeType(Dtype type) : before_(present) {
  check(type == Dtype::f32 || type == Dtype::bf16 || type == Dtype::f16, "compute type: ", type,
        " given, wanted f32, bf16 or f16");
  present = type;
}

ComputeType::~ComputeType() { present = before_; }

Dtype compute_type() { return present; }

Dtype product_type(Dtype type) { return type == Dtype::f32 ? present : type; }

Dtype product_type(Dtype type, int64_t rows) { return rows > kFewRows ? product_type(type) : type; }

}  // namespace brine
