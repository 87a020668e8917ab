// The backward pass of the last micro-batch that a rank adds up in a step: gradients leave while it
// runs.
#pragma once

#include <string>
#include <vector>

#include "autograd/node.h"
#include "nn/optim/parameter_store.h"
#include "tensor/comm/bucket_sum.h"

namespace brine::distill {

class LastPass : private BackwardWatch {
 public:
  // `sum` adds up the store's gradients. Both must outlive it; at its end parameters may get
  // gradients again.
  LastPass(const nn::ParameterStore& store, BucketSum& sum);
  ~LastPass() override;
  LastPass(const LastPass&) = delete;
  LastPass& operator=(const LastPass&) = delete;

  // brine::backward(y, dy), after which nothing more is added to the parameters whose paths begin
  // with `prefix`.
  void backward(const Tensor& y, Tensor dy = {}, const std::string& prefix = "");

 private:
  void complete(size_t leaf) override;
  void between_ops() override;

  BucketSum& sum_;
  struct Leaf {
    std::string path;
    Tensor value;
    int64_t first_bucket, end_bucket;
    bool is_complete = false;
  };
  std::vector<Leaf> leaves_;
  std::vector<int64_t> incomplete_;       // leaves of each bucket
  std::vector<size_t> now_;               // of the pass that runs: its leaves
  int64_t before_op_ = 0, after_op_ = 0;  // bytes that had left at the last two calls between ops
};

}  // namespace brine::distill
