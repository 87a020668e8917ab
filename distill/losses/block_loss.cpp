// The loss of the scores of blocks, level by level.
#include "distill/losses/block_loss.h"

#include "autograd/ops.h"
#include "tensor/mask/blocks.h"

namespace brine::distill {
namespace {

constexpr int kLevels = 32;

Tensor rows_of(const Tensor& x, const Tensor& rows) {
  return gather(x, 2, rows.view({1, 1, rows.numel(), 1}));
}

// The teacher's mass of the first N blocks of `keys` keys: [B, H, n, N].
Tensor masses(const TeacherAttention& teacher, const Tensor& rows, const Tensor& tiles,
              const BlockConfig& config, int z, int64_t N, const Visibility& visible) {
  if (!teacher.map.defined()) {
    return slice(block_mass(rows_of(teacher.q.detach(), rows), teacher.k, config, visible, tiles),
                 3, 0, N);
  }
  const Tensor map = rows_of(teacher.map.detach(), rows);
  const int64_t keys = config.block << z;
  return sum(reshape(slice(map, 3, 0, N * keys), {map.dim(0), map.dim(1), map.dim(2), N, keys}),
             {4});
}

}  // namespace

Tensor block_approx_loss(const nn::Tap& student, const TeacherAttention& teacher,
                         const Visibility& visible) {
  const std::vector<double> sizes = student.get("block_sizes").to_vector();
  const BlockConfig config{
      .block = int64_t(sizes[0]), .tile = int64_t(sizes[1]), .columns = int64_t(sizes[2])};
  const Tensor& any = teacher.map.defined() ? teacher.map : teacher.q;
  const int64_t B = any.dim(0), H = any.dim(1), T = any.dim(2);
  const RowWidths widths(visible, T);
  std::vector<std::pair<Tensor, std::vector<double>>> terms;  // KL of rows, 1 where they count
  double rows = 0;
  for (int z = 0; z < kLevels; ++z) {
    if (!student.has(join("block_scores_", z))) continue;
    const Tensor& scores = student.get(join("block_scores_", z));
    const Tensor& at = student.get(join("block_rows_", z));
    const int64_t n = at.numel(), N = scores.dim(3);
    const Tensor tau =
        masses(teacher, at, student.get(join("block_tiles_", z)), config, z, N, visible)
            .to(scores.dtype());
    const Tensor mass = maximum(tau, 1e-30);
    const TopLogits wanted{.values = reshape(log(mass), {B * H * n, N}),
                           .ids = {},
                           .lse = reshape(log(sum(mass, {3})), {B * H * n})};
    std::vector<double> counts;
    for (int64_t r = 0; r < B * H * n; ++r) {
      const int64_t t = at.data<int64_t>()[r % n];
      const bool counted = t < widths.valid(r / (H * n)) && ((t / config.block) >> z) > 0;
      counts.push_back(counted);
      rows += counted;
    }
    terms.emplace_back(kl_logits(reshape(scores, {B * H * n, N}), wanted), std::move(counts));
  }
  Tensor total;
  for (auto& [kl, counts] : terms) {
    for (double& count : counts) count /= std::max(rows, 1.0);
    const Tensor weight = Tensor::from(counts, kl.shape()).to(kl.dtype()).to(kl.device());
    const Tensor term = dot(kl, weight);
    total = total.defined() ? add(total, term) : term;
  }
  if (total.defined()) return total;
  return Tensor::zeros({1}, any.dtype() == Dtype::f64 ? Dtype::f64 : Dtype::f32, any.device());
}

}  // namespace brine::distill
