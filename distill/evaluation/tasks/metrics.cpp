// Metrics from predictions and truth.
#include "distill/evaluation/tasks/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tensor/base/error.h"
#include "tensor/base/random.h"

namespace brine::distill {
namespace {

template <class T>
void check_sizes(std::span<const T> predicted, std::span<const T> truth) {
  check(!truth.empty() && predicted.size() == truth.size(), "metrics: ", predicted.size(),
        " predictions for ", truth.size(), " rows");
}

// ranks[i] of values[i], from 1 on.
std::vector<double> ranks_of(Scores values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t first = 0, last = 0; first < order.size(); first = last) {
    while (last < order.size() && values[order[last]] == values[order[first]]) ++last;
    for (size_t i = first; i < last; ++i) ranks[order[i]] = double(first + 1 + last) / 2;
  }
  return ranks;
}

// The mean over the classes that occur on either side.
double mean_f1(Classes predicted, Classes truth) {
  std::set<int32_t> classes(predicted.begin(), predicted.end());
  classes.insert(truth.begin(), truth.end());
  double sum = 0;
  for (const int32_t c : classes) sum += f1(predicted, truth, c);
  return sum / double(classes.size());
}

}  // namespace

double accuracy(Classes predicted, Classes truth) {
  check_sizes(predicted, truth);
  int64_t right = 0;
  for (size_t i = 0; i < truth.size(); ++i) right += predicted[i] == truth[i];
  return double(right) / double(truth.size());
}

double f1(Classes predicted, Classes truth, int32_t positive) {
  check_sizes(predicted, truth);
  int64_t both = 0, either = 0;  // either: the sum of the two counts
  for (size_t i = 0; i < truth.size(); ++i) {
    bool p = predicted[i] == positive, t = truth[i] == positive;
    both += p && t;
    either += int64_t(p) + int64_t(t);
  }
  return either ? 2 * double(both) / double(either) : 0;
}

double matthews(Classes predicted, Classes truth) {
  check_sizes(predicted, truth);
  int32_t classes = 0;
  for (int32_t c : predicted) classes = std::max(classes, c + 1);
  for (int32_t c : truth) classes = std::max(classes, c + 1);
  std::vector<double> p(size_t(classes), 0), t(size_t(classes), 0);
  double right = 0, n = double(truth.size());
  for (size_t i = 0; i < truth.size(); ++i) {
    check(predicted[i] >= 0 && truth[i] >= 0, "metrics: a class is negative");
    ++p[size_t(predicted[i])];
    ++t[size_t(truth[i])];
    right += predicted[i] == truth[i];
  }
  double pt = std::inner_product(p.begin(), p.end(), t.begin(), 0.0);
  double pp = std::inner_product(p.begin(), p.end(), p.begin(), 0.0);
  double tt = std::inner_product(t.begin(), t.end(), t.begin(), 0.0);
  double spread = std::sqrt((n * n - pp) * (n * n - tt));
  return spread > 0 ? (right * n - pt) / spread : 0;
}

double pearson(Scores predicted, Scores truth) {
  check_sizes(predicted, truth);
  double n = double(truth.size());
  double mean_p = std::accumulate(predicted.begin(), predicted.end(), 0.0) / n;
  double mean_t = std::accumulate(truth.begin(), truth.end(), 0.0) / n;
  double pt = 0, pp = 0, tt = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    double p = predicted[i] - mean_p, t = truth[i] - mean_t;
    pt += p * t;
    pp += p * p;
    tt += t * t;
  }
  double spread = std::sqrt(pp * tt);
  return spread > 0 ? std::clamp(pt / spread, -1.0, 1.0) : 0;
}

double spearman(Scores predicted, Scores truth) {
  check_sizes(predicted, truth);
  return pearson(ranks_of(predicted), ranks_of(truth));
}

Values score_task(const data::Task& task, Scores predicted, Scores truth) {
  std::vector<int32_t> p, t;
  if (!task.regression()) {
    p.assign(predicted.begin(), predicted.end());
    t.assign(truth.begin(), truth.end());
  }
  Values out;
  for (data::Metric metric : task.metrics) {
    switch (metric) {
      case data::Metric::accuracy:
        out.emplace_back("accuracy", accuracy(p, t));
        break;
      case data::Metric::f1:
        out.emplace_back("f1", task.labels.size() > 2 ? mean_f1(p, t) : f1(p, t));
        break;
      case data::Metric::matthews:
        out.emplace_back("matthews_correlation", matthews(p, t));
        break;
      case data::Metric::pearson:
        out.emplace_back("pearson", pearson(predicted, truth));
        break;
      case data::Metric::spearman:
        out.emplace_back("spearmanr", spearman(predicted, truth));
        break;
    }
  }
  return out;
}

std::vector<Interval> score_intervals(const data::Task& task, Scores predicted, Scores truth) {
  constexpr size_t kSamples = 1000, kOutside = 25;  // on each side
  const Values scores = score_task(task, predicted, truth);
  const size_t n = truth.size();
  std::vector<std::vector<double>> drawn(scores.size());
  std::vector<double> p(n), t(n);
  const bool all_shares = scores.size() == 1 && scores[0].first == "accuracy";
  for (size_t sample = 0; sample < kSamples && !all_shares; ++sample) {
    const RandomSlice random{.seed = 1, .stream = sample};
    for (size_t i = 0; i < n; ++i) {
      const size_t at = random.word(i) % n;
      p[i] = predicted[at];
      t[i] = truth[at];
    }
    const Values values = score_task(task, p, t);
    for (size_t m = 0; m < values.size(); ++m) drawn[m].push_back(values[m].second);
  }
  std::vector<Interval> out;
  for (size_t m = 0; m < scores.size(); ++m) {
    if (scores[m].first == "accuracy") {
      out.push_back(wilson(scores[m].second, int64_t(n)));
      continue;
    }
    std::sort(drawn[m].begin(), drawn[m].end());
    out.push_back({.low = drawn[m][kOutside], .high = drawn[m][kSamples - 1 - kOutside]});
  }
  return out;
}

std::vector<int64_t> confusion(int64_t classes, Scores predicted, Scores truth) {
  check_sizes(predicted, truth);
  std::vector<int64_t> out(size_t(classes * classes));
  for (size_t i = 0; i < truth.size(); ++i)
    ++out.at(size_t(int64_t(truth[i]) * classes + int64_t(predicted[i])));
  return out;
}

}  // namespace brine::distill
