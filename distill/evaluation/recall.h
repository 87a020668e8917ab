// Mask recall: how much of the teacher's attention a sparse mask covers.
#pragma once

#include <vector>

#include "tensor/teacher.h"

namespace brine::distill {

// Teacher mass on the mask, and on other masks with as many keys, over the rows that see more than
// k keys. All are sums over rows, per head, so that batches and layers can be added; mean()
// divides.
struct Recall {
  std::vector<double> mask;
  std::vector<double> top_keys;      // the teacher's own largest keys: the upper bound
  std::vector<double> best_columns;  // the teacher's own columns: the upper bound of column
                                     // selection
  std::vector<double>
      recent;  // the budget spread evenly over the most recent (encoder: nearest) keys
  std::vector<double> random;  // expected, for keys drawn at random
  int64_t rows = 0;            // per head

  // An empty Recall gets the other's heads; otherwise the numbers of heads must agree.
  Recall& operator+=(const Recall& other);
};

// Means over rows and heads; 0 where there were no rows.
struct RecallMeans {
  double mask = 0, top_keys = 0, best_columns = 0, recent = 0, random = 0;
};
RecallMeans mean(const Recall& recall);

// The budget of each group of `config.mode` is the number of entries that the mask has there; the
// teacher's own columns are select_columns() of its mass in K columns.
Recall attention_recall(const TeacherAttention& teacher, const FlatCsr& csr, int64_t K,
                        const Visibility& visible, const SelectConfig& config);

}  // namespace brine::distill
