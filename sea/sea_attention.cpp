// The block in the order of the paper; registers "sea".
#include "sea/sea_attention.h"

#include <optional>

#include "autograd/ops_sparse.h"
#include "sea/mask.h"
#include "tensor/cost_meter.h"

namespace brine::sea {
namespace {

void show(nn::Tap& tap, const Estimate& e, const Mask& mask, const Tensor& probabilities,
          const Tensor& average) {
  tap.put("C_perf", e.context);
  tap.put("Z", e.features);
  tap.put("scores", e.scores);
  tap.put("estimate", e.estimate);
  tap.put("n_sel", mask.selection.n_sel);
  tap.put("selected", mask.selection.selected);
  tap.put("row_pointers", mask.csr.row_pointers);
  tap.put("head_offsets", mask.csr.head_offsets);
  tap.put("columns", mask.csr.columns);
  tap.put("probabilities", probabilities);
  tap.put("scalers", e.gates);
  tap.put("c_avg", average);
}

}  // namespace

SeaAttention::SeaAttention(nn::Init& init, const nn::AttentionShape& shape, const SeaConfig& config)
    : config_(config), shape_(shape), estimator_(child<Estimator>("", init, shape, config)) {}

nn::AttentionTraits SeaAttention::traits() const {
  return {.causal = shape_.causal, .bidirectional = !shape_.causal, .linear = true, .sparse = true};
}

Tensor SeaAttention::forward(const nn::AttentionInput& in) {
  SelectConfig select = config_.selection();
  if (in.dials.k) select.k = in.dials.k;
  Estimate e = estimator_(in.q, in.k, in.v, in.see, in.dials.query_skip);
  std::optional<CostScope> part(std::in_place, "mask");
  Mask mask = make_mask(e.estimate, in.see, select);
  if (Tensor forced = in.tap ? in.tap->forced("selected") : Tensor(); forced.defined()) {
    mask.selection.selected = forced;
    mask.csr = build_csr(forced, in.see, select.k);
  }
  part.emplace("sparse attention");
  Tensor probabilities;
  Tensor context = masked_attention(in.q, in.k, in.v, mask.csr, in.dials.dense_path,
                                    in.tap ? &probabilities : nullptr);
  part.emplace("output");
  Tensor average = average_context(e.estimate, in.v, in.see);
  if (in.tap) {
    in.tap->put("V_I", estimator_.identity_rows(in.q.dim(0), in.q.dim(2), in.see));
    show(*in.tap, e, mask, probabilities, average);
  }
  return mix_outputs(context, average, e.gates, in.see);
}

namespace {
const nn::RegisterAttention<SeaAttention, SeaConfig> registration("sea");
}

}  // namespace brine::sea
