// A bucket is complete when all leaves are whose gradients are in it.
#include "distill/ranks/last_pass.h"

#include <algorithm>
#include <utility>

namespace brine::distill {

LastPass::LastPass(const nn::ParameterStore& store, BucketSum& sum)
    : sum_(sum), incomplete_(size_t(sum.buckets()), 0) {
  for (const nn::ParameterStore::Leaf& leaf : store.leaves()) {
    Leaf own{leaf.path, leaf.value, sum.buckets(), 0};
    for (int64_t b = 0; b < sum.buckets(); ++b) {
      const SlotRange r = sum.range_of(b);
      if (std::max(r.begin, leaf.offset) >= std::min(r.end, leaf.offset + leaf.size)) continue;
      own.first_bucket = std::min(own.first_bucket, b);
      own.end_bucket = b + 1;
      ++incomplete_[size_t(b)];
    }
    leaves_.push_back(std::move(own));
  }
}

LastPass::~LastPass() {
  std::vector<Tensor> values;
  for (const Leaf& leaf : leaves_) values.push_back(leaf.value);
  reopen(values);
}

void LastPass::backward(const Tensor& y, Tensor dy, const std::string& prefix) {
  std::vector<Tensor> values;
  now_.clear();
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (leaves_[i].path.rfind(prefix, 0) != 0) continue;
    now_.push_back(i);
    values.push_back(leaves_[i].value);
  }
  brine::backward(y, std::move(dy), values, *this);
  // The last call comes after the last op, when all that is left has become complete at once.
  sum_.backward_ended(before_op_);
}

void LastPass::complete(size_t leaf) {
  Leaf& own = leaves_[now_[leaf]];
  check(!own.is_complete, "backward: the gradient of ", own.path, " was complete before this pass");
  own.is_complete = true;
  for (int64_t b = own.first_bucket; b < own.end_bucket; ++b)
    if (--incomplete_[size_t(b)] == 0) sum_.complete(b);
}

void LastPass::between_ops() {
  sum_.advance();
  before_op_ = std::exchange(after_op_, sum_.bytes());
}

}  // namespace brine::distill
