// The keys that rows read: what masks are compared by.
#pragma once

#include <string>

#include "distill/ranks/measure.h"
#include "nn/models/model.h"

namespace brine::distill {

// A mean over layers, heads and rows: of a mask of blocks the keys of the tile's list up to the
// row, of another mask those of the row.
class KeysRead : public nn::LayerObserver, public BatchMeasure {
 public:
  // A mask of blocks gives its counts alone: its keys would take more memory than the model.
  void prepare(nn::Tap& tap) const override { tap.request("kept_keys"); }
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override;
  std::string take() override;
  void add(const std::string& part) override;
  double mean() const { return sum_.rows > 0 ? sum_.keys / sum_.rows : 0; }

 private:
  struct Sum {
    double keys = 0, rows = 0;
  };
  Sum sum_;
};

// Of full attention over windows of T tokens.
double keys_of_all(const nn::ModelShape& shape, int64_t T);
// Of a pass over ids [1, T]; 0 for a method that is neither full nor a mask.
double keys_read(nn::Model& model, const Tensor& ids, const nn::RuntimeOptions& options = {});

}  // namespace brine::distill
