// The teacher's mass in blocks of keys.
#include <cmath>

#include "autograd/ops_blocks.h"
#include "autograd/ops_teacher.h"
#include "tensor/kernels/teacher.h"
#include "tensor/mask/blocks.h"

namespace brine {

Tensor block_mass(const Tensor& q, const Tensor& k, const BlockConfig& config,
                  const Visibility& visible, const Tensor& tiles) {
  const char* op = "block_mass";
  check_blocks(op, config);
  check(q.rank() == 4 && k.rank() == 4 && q.dim(0) == k.dim(0) && k.dim(1) >= 1 &&
            q.dim(1) % k.dim(1) == 0 && q.dim(3) == k.dim(3) && q.dtype() == k.dtype(),
        op, ": q must be [B, H, rows, d] and k [B, G, T, d], got ", q.dtype(), " ", q.shape(),
        " and ", k.dtype(), " ", k.shape());
  check_visibility(op, visible, q.dim(0), k.dim(2));
  const int64_t rows = q.dim(2), T = k.dim(2), count = (rows + config.tile - 1) / config.tile;
  check(tiles.defined() ? tiles.shape() == Shape{count} && tiles.dtype() == Dtype::i32 : rows == T,
        op, ": ", rows, " rows of ", T, " tokens need their tiles, i32 [", count, "]");
  const int64_t last_block = std::max<int64_t>(T - 1, 0) / config.block;
  const Dtype type = q.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32;
  const int64_t columns = std::max<int64_t>(1, std::min(last_block, config.columns));
  const Tensor mass = Tensor::empty({q.dim(0), q.dim(1), rows, columns}, type, q.device());
  BRINE_CALL(q, block_mass, mass, q.detach().to(type).contiguous(),
             k.detach().to(type).contiguous(), tiles, config, visible,
             1 / std::sqrt(double(q.dim(3))));
  return mass;
}

}  // namespace brine
