// The keys that masks of blocks keep, counted while a text is evaluated.
#pragma once

#include <string>

#include "autograd/ops_blocks.h"
#include "distill/ranks/measure.h"
#include "nn/attention/observer.h"

namespace brine::distill {

// Asks a layer for its counts alone: the mask by keys of a long text is larger than the model.
class KeptKeysObserver : public nn::LayerObserver, public BatchMeasure {
 public:
  void prepare(nn::Tap& tap) const override { tap.request("kept_keys"); }
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override;
  std::string take() override;
  void add(const std::string& part) override;
  KeptKeys mean() const;  // over layers and rows

 private:
  struct Sum {
    double row = 0, tile = 0, rows = 0;
  };
  Sum sum_;
};

}  // namespace brine::distill
