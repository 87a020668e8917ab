// The random projections of the Performer (Choromanski et al. 2021).
#pragma once

#include "nn/layers/module.h"
#include "tensor/base/random.h"

namespace brine::nn {

// The number of features for heads of size d: floor(d ln d / divisor), at least 1.
int64_t feature_count(int64_t d, double divisor);

// R [m, d]: blocks of d orthogonal directions (rows of an orthogonal matrix drawn uniformly, the
// last block cut off), each row scaled by the length of a separate Gaussian d-vector.
Tensor random_projection(int64_t m, int64_t d, const RandomSlice& slice, Dtype dtype);
// The same from the stream of `init`, on the CPU.
Tensor random_projection(Init& init, int64_t m, int64_t d, Dtype dtype);

// R as a buffer.
struct RandomProjection : Module {
  RandomProjection(Init& init, int64_t m, int64_t d);

  Buffer& projection;  // [m, d]
};

}  // namespace brine::nn
