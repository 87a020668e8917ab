// Losses and mask recall by layer.
#include "distill/runs/stages/block_report.h"

#include "distill/evaluation/health/mask_health.h"

namespace brine::distill {
namespace {

FlatCsr mask_of(const nn::Tap& block) {
  const Tensor& q = block.get("q");  // [B, H, T, d]
  return {.row_pointers = block.get("row_pointers"),
          .head_offsets = block.get("head_offsets"),
          .columns = block.get("columns"),
          .batch = q.dim(0),
          .heads = q.dim(1),
          .length = q.dim(2),
          .keys = q.dim(2)};
}

// K of the best columns that the mask is compared with.
int64_t columns_of(const nn::Tap& block) {
  constexpr int64_t kColumns = 64;  // of a mask without columns
  return block.has("estimate") ? block.get("estimate").dim(-1) : kColumns;
}

}  // namespace

BlockReport::BlockReport(const nn::ModelConfig& student) : layers_(size_t(student.shape().layers)) {
  const nn::MaskSettings mask = student.method().mask();
  if (mask.mode && mask.k) select_ = {.k = *mask.k, .mode = *mask.mode};
}

void BlockReport::add(const BlockView& view, double share) {
  Layer& layer = layers_.at(size_t(view.layer));
  layer.loss += share * view.loss;
  if (!select_ || !view.block.has("row_pointers")) return;
  layer.recall += attention_recall(attention_of(view.teacher), mask_of(view.block),
                                   columns_of(view.block), view.visible, *select_);
}

Values BlockReport::values() const {
  double sum = 0, worst = 0;
  int64_t at = 0;
  Values by_layer;
  std::vector<Recall> recalls;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    sum += layer.loss;
    if (layer.loss > worst) worst = layer.loss, at = int64_t(i);
    by_layer.emplace_back(join("layer.", i, ".loss"), layer.loss);
    if (layer.recall.rows == 0) continue;
    by_layer.emplace_back(join("layer.", i, ".recall"), layer.recall.mean(recall::kMask));
    recalls.push_back(layer.recall);
  }
  Values out = {{"block_loss", sum / double(layers_.size())},
                {"worst_loss", worst},
                {"worst_layer", double(at)}};
  for (const auto& [name, value] : log_values(mask_health(recalls))) {
    out.emplace_back("block_" + name, value);
  }
  out.insert(out.end(), by_layer.begin(), by_layer.end());
  return out;
}

}  // namespace brine::distill
