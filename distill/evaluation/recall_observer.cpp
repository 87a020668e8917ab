// Mask recall by layer.
#include "distill/evaluation/recall_observer.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

namespace brine::distill {

RecallObserver::RecallObserver(nn::LoadedModel teacher, const nn::LoadedModel& model, int64_t k)
    : teacher_(std::move(teacher)), source_(teacher_.model) {
  const nn::ModelShape t = teacher_.config.shape(), m = model.config.shape();
  check(t.layers == m.layers && t.hidden_size == m.hidden_size && t.heads == m.heads &&
            t.causal == m.causal,
        "eval: the teacher in ", teacher_.directory, " differs in sizes from the model in ",
        model.directory);
  data::Schema keys;
  model.config.method().describe(keys);
  data::Json settings = keys.to_json();
  check(settings.contains("mode") && settings.contains("k"), "eval: attention method '",
        model.config.attention, "' has no mask, so no mask recall");
  select_.mode = parse_select_mode(settings["mode"]);
  own_k_ = settings["k"].get<int64_t>();
  layers_.resize(size_t(m.layers));
  restart(k);
}

void RecallObserver::restart(int64_t k) {
  select_.k = k ? k : own_k_;
  std::fill(layers_.begin(), layers_.end(), distill::Recall());
}

void RecallObserver::begin(const distill::Batch& batch) {
  visible_ = {.causal = teacher_.config.shape().causal, .lengths = batch.lengths};
  source_.begin(batch);
}

Tensor RecallObserver::observe(int64_t layer, const nn::Tap& tap, const Tensor&) {
  const Tensor& estimate = tap.get("estimate");  // [B, H, T, K]
  FlatCsr csr{.row_pointers = tap.get("row_pointers"),
              .head_offsets = tap.get("head_offsets"),
              .columns = tap.get("columns"),
              .batch = estimate.dim(0),
              .heads = estimate.dim(1),
              .length = estimate.dim(2),
              .keys = estimate.dim(2)};
  const distill::TeacherLayer t = source_.layer(layer);
  layers_[size_t(layer)] +=
      distill::attention_recall(attention_of(t), csr, estimate.dim(-1), visible_, select_);
  return {};
}

data::Json RecallObserver::table() const {
  data::Json rows = data::Json::array();
  auto add = [&rows](const std::string& name, const distill::Recall& recall) {
    distill::RecallMeans m = distill::mean(recall);
    rows.push_back({{"layer", name},
                    {"mask", m.mask},
                    {"top_keys", m.top_keys},
                    {"best_columns", m.best_columns},
                    {"most_recent", m.recent},
                    {"random", m.random},
                    {"rows", recall.rows}});
  };
  distill::Recall all;
  for (size_t i = 0; i < layers_.size(); ++i) {
    add(std::to_string(i), layers_[i]);
    all += layers_[i];
  }
  add("all", all);
  return rows;
}

void print_recall(const data::Json& rows) {
  std::cout << "mask recall  by layer: teacher's attention mass inside the mask, rows with w > k\n"
            << "  layer   mask  own top keys  best columns  most recent   random\n";
  for (const data::Json& row : rows) {
    if (row["rows"].get<int64_t>() == 0) {
      std::cout << "  " << row["layer"].get<std::string>() << ": no row sees more than k keys\n";
      continue;
    }
    char line[128];
    std::snprintf(line, sizeof line, "  %5s  %.3f         %.3f         %.3f        %.3f    %.3f\n",
                  row["layer"].get<std::string>().c_str(), row["mask"].get<double>(),
                  row["top_keys"].get<double>(), row["best_columns"].get<double>(),
                  row["most_recent"].get<double>(), row["random"].get<double>());
    std::cout << line;
  }
}

}  // namespace brine::distill
