// Mask recall: sums and means.
#include "distill/evaluation/recall.h"

#include "autograd/ops_teacher.h"

namespace brine::distill {
namespace {

void add(std::vector<double>& sum, const std::vector<double>& x) {
  if (sum.empty()) sum.assign(x.size(), 0);
  check(sum.size() == x.size(), "recall: ", x.size(), " heads cannot be added to ", sum.size());
  for (size_t h = 0; h < x.size(); ++h) sum[h] += x[h];
}

double mean_of(const std::vector<double>& sums, int64_t rows) {
  double sum = 0;
  for (double x : sums) sum += x;
  return rows > 0 && !sums.empty() ? sum / double(rows) / double(sums.size()) : 0;
}

}  // namespace

Recall& Recall::operator+=(const Recall& other) {
  add(mask, other.mask);
  add(top_keys, other.top_keys);
  add(best_columns, other.best_columns);
  add(recent, other.recent);
  add(random, other.random);
  rows += other.rows;
  return *this;
}

RecallMeans mean(const Recall& r) {
  return {mean_of(r.mask, r.rows), mean_of(r.top_keys, r.rows), mean_of(r.best_columns, r.rows),
          mean_of(r.recent, r.rows), mean_of(r.random, r.rows)};
}

Recall attention_recall(const TeacherAttention& given, const FlatCsr& csr, int64_t K,
                        const Visibility& visible, const SelectConfig& config) {
  const RecallSums got = recall_sums(given, csr, K, visible, config);
  const Tensor sums = got.sums.to(Device{});
  const int64_t H = csr.heads;
  auto way = [&](int64_t i) {
    const double* from = sums.data<double>() + i * H;
    return std::vector<double>(from, from + H);
  };
  return {way(0), way(1), way(2), way(3), way(4), got.rows.to(Device{}).data<int64_t>()[0]};
}

}  // namespace brine::distill
