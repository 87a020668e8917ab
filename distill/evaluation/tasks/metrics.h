// The metrics of GLUE. An undefined one (a constant has no correlation with anything) is 0, as in
// the benchmark.
#pragma once

#include <cstdint>
#include <span>

#include "data/tasks/task.h"
#include "distill/log/values.h"

namespace brine::distill {

// A confidence interval of a mean score.
struct Interval {
  double low = 0, high = 1;
};

// The 95 % score interval of Wilson (1927) of a share among n independent trials. For a mean of n
// scores between 0 and 1 it is at least as wide as theirs, whose variance is at most that of hits
// and misses. n = 0: [0, 1].
Interval wilson(double mean, int64_t n);

// Scores of a regression, or classes as numbers from 0 on. Both spans of a metric have the same
// size, at least 1.
using Scores = std::span<const double>;

// The metrics of a task under their usual names (accuracy, f1, matthews_correlation, pearson,
// spearmanr). f1 is of class 1 where there are two, else the mean over the classes.
Values score_task(const data::Task& task, Scores predicted, Scores truth);
// The 95 % interval of each of them: Wilson's of an accuracy, else between the 2.5th and the 97.5th
// percentile of 1,000 samples of as many texts, drawn with replacement by a fixed seed.
std::vector<Interval> score_intervals(const data::Task& task, Scores predicted, Scores truth);
// Counts of texts by true class (rows) and predicted one, [classes * classes].
std::vector<int64_t> confusion(int64_t classes, Scores predicted, Scores truth);

}  // namespace brine::distill
