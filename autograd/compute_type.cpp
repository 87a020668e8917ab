// The switch, one per thread.
#include "autograd/compute_type.h"

#include "tensor/error.h"
#include "tensor/kernels_decoding.h"

namespace brine {
namespace {

thread_local Dtype present = Dtype::f32;

}  // namespace

ComputeType::ComputeType(Dtype type) : before_(present) {
  check(type == Dtype::f32 || type == Dtype::bf16, "compute type: ", type,
        " given, wanted f32 or bf16");
  present = type;
}

ComputeType::~ComputeType() { present = before_; }

Dtype compute_type() { return present; }

bool rounds_inputs(Dtype type, int64_t rows) {
  return present == Dtype::bf16 && type == Dtype::f32 && rows > kFewRows;
}

}  // namespace brine
