// The switch, one per thread.
#include "autograd/compute_type.h"

#include "tensor/error.h"

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

}  // namespace brine
