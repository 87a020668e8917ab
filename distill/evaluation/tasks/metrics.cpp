// Metrics from predictions and truth.
#include "distill/evaluation/tasks/metrics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tensor/base/error.h"
#include "tensor/base/random.h"

namespace brine::distill {
namespace {

void check_sizes(Scores predicted, Scores truth) {
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

// How many texts have each class: as predicted, in truth, and as both.
class Counts {
 public:
  explicit Counts(size_t classes) : predicted_(classes), truth_(classes), both_(classes) {}
  Counts(Scores predicted, Scores truth) : Counts(classes_of(predicted, truth)) {
    for (size_t i = 0; i < truth.size(); ++i) add(int32_t(predicted[i]), int32_t(truth[i]));
  }

  size_t classes() const { return truth_.size(); }
  void add(int32_t predicted, int32_t truth) {
    ++predicted_[size_t(predicted)];
    ++truth_[size_t(truth)];
    both_[size_t(truth)] += predicted == truth;
    right_ += predicted == truth;
    ++texts_;
  }
  double accuracy() const { return right_ / texts_; }
  // 2 TP / (2 TP + FP + FN) of one class against the others.
  double f1(size_t c) const {
    const bool occurs = c < truth_.size() && predicted_[c] + truth_[c] > 0;
    return occurs ? 2 * both_[c] / (predicted_[c] + truth_[c]) : 0;
  }
  // The mean over the classes that occur on either side.
  double mean_f1() const {
    double sum = 0, classes = 0;
    for (size_t c = 0; c < truth_.size(); ++c) {
      sum += f1(c);
      classes += predicted_[c] + truth_[c] > 0;
    }
    return sum / classes;
  }
  // Matthews correlation for any number of classes (R_K of Gorodkin, 2004; two classes: phi).
  double matthews() const {
    const double n = texts_, spread = std::sqrt((n * n - dot(predicted_, predicted_)) *
                                                (n * n - dot(truth_, truth_)));
    return spread > 0 ? (right_ * n - dot(predicted_, truth_)) / spread : 0;
  }

 private:
  using Numbers = std::vector<double>;
  static double dot(const Numbers& a, const Numbers& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  }
  static size_t classes_of(Scores predicted, Scores truth) {
    check_sizes(predicted, truth);
    int32_t classes = 0;
    for (const Scores side : {predicted, truth}) {
      for (const double c : side) {
        check(c >= 0, "metrics: a class is negative");
        classes = std::max(classes, int32_t(c) + 1);
      }
    }
    return size_t(classes);
  }

  Numbers predicted_, truth_, both_;
  double right_ = 0, texts_ = 0;
};

// The metrics of a task of classes under their names.
Values score_classes(const data::Task& task, const Counts& counts) {
  Values out;
  for (const data::Metric metric : task.metrics) {
    if (metric == data::Metric::accuracy)
      out.emplace_back("accuracy", counts.accuracy());
    else if (metric == data::Metric::f1)
      out.emplace_back("f1", task.labels.size() > 2 ? counts.mean_f1() : counts.f1(1));
    else
      out.emplace_back("matthews_correlation", counts.matthews());
  }
  return out;
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

// Pearson correlation of the ranks; equal values share their mean rank.
double spearman(Scores predicted, Scores truth) {
  return pearson(ranks_of(predicted), ranks_of(truth));
}

}  // namespace

Values score_task(const data::Task& task, Scores predicted, Scores truth) {
  if (!task.regression()) return score_classes(task, Counts(predicted, truth));
  Values out;
  for (const data::Metric metric : task.metrics) {
    if (metric == data::Metric::pearson)
      out.emplace_back("pearson", pearson(predicted, truth));
    else
      out.emplace_back("spearmanr", spearman(predicted, truth));
  }
  return out;
}

std::vector<Interval> score_intervals(const data::Task& task, Scores predicted, Scores truth) {
  constexpr size_t kSamples = 1000, kOutside = 25;  // on each side
  const Values scores = score_task(task, predicted, truth);
  const size_t n = truth.size();
  const size_t classes = task.regression() ? 0 : Counts(predicted, truth).classes();
  std::vector<std::vector<double>> drawn(scores.size());
  std::vector<double> p(n), t(n);
  const bool all_shares = scores.size() == 1 && scores[0].first == "accuracy";
  for (size_t sample = 0; sample < kSamples && !all_shares; ++sample) {
    const RandomSlice random{.seed = 1, .stream = sample};
    Counts counts(classes);
    for (size_t i = 0; i < n; ++i) {
      const size_t at = random.word(i) % n;
      if (classes > 0) {
        counts.add(int32_t(predicted[at]), int32_t(truth[at]));
      } else {
        p[i] = predicted[at];
        t[i] = truth[at];
      }
    }
    const Values values = classes > 0 ? score_classes(task, counts) : score_task(task, p, t);
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

Interval wilson(double mean, int64_t n) {
  check(n >= 0 && mean >= 0 && mean <= 1, "wilson: a mean of ", mean, " over ", n, " trials");
  if (n == 0) return {};
  constexpr double z = 1.959963984540054;  // of 97.5 %
  const double N = double(n), z2 = z * z;
  const double center = (mean + z2 / (2 * N)) / (1 + z2 / N);
  const double half = z / (1 + z2 / N) * std::sqrt(mean * (1 - mean) / N + z2 / (4 * N * N));
  // Rounding must not leave a mean of 0 or 1 outside.
  return {std::clamp(center - half, 0., mean), std::clamp(center + half, mean, 1.)};
}

}  // namespace brine::distill
