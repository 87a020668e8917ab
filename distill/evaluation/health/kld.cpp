// KL divergence of next-token distributions, and the paired ratio of perplexities.
#include "distill/evaluation/health/kld.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "data/io/json.h"
#include "distill/evaluation/health/mask_health.h"
#include "tensor/comm/bytes.h"
#include "tensor/functions/top_logits.h"

namespace brine::distill {
namespace {

std::vector<double> on_host(const Tensor& x) { return x.detach().to(Device{}).to_vector(); }

}  // namespace

// Exact for 1 and 2; else the expansion of Fisher and Cornish (1960) around the normal quantile,
// which is wrong by less than .004 from 3 on.
double student_t_95(int64_t freedom) {
  check(freedom >= 1, "student_t_95: ", freedom, " degrees of freedom, must be at least 1");
  if (freedom == 1) return 12.706205;
  if (freedom == 2) return 4.302653;
  const double z = 1.959963985, n = double(freedom), s = z * z;
  const double first = z * (s + 1) / 4, second = z * (5 * s * s + 16 * s + 3) / 96;
  const double third = z * (3 * s * s * s + 19 * s * s + 17 * s - 15) / 384;
  const double fourth =
      z * (79 * s * s * s * s + 776 * s * s * s + 1482 * s * s - 1920 * s - 945) / 92160;
  return z + first / n + second / (n * n) + third / (n * n * n) + fourth / (n * n * n * n);
}

PerplexityRatio perplexity_ratio(const std::vector<PairedWindow>& windows) {
  double difference = 0, tokens = 0, squares = 0;
  for (const PairedWindow& w : windows) {
    difference += w.model - w.teacher;
    tokens += double(w.tokens);
  }
  check(tokens > 0, "perplexity_ratio: no token is predicted");
  const double mean = difference / tokens, count = double(windows.size());
  PerplexityRatio out{.value = std::exp(mean), .low = {}, .high = {}};
  if (windows.size() < 2) return out;
  for (const PairedWindow& w : windows) {
    const double rest = w.model - w.teacher - mean * double(w.tokens);
    squares += rest * rest;
  }
  const double error = std::sqrt(count / (count - 1) * squares) / tokens;
  const double reach = student_t_95(int64_t(windows.size()) - 1) * error;
  out.low = std::exp(mean - reach);
  out.high = std::exp(mean + reach);
  return out;
}

void LogitComparison::begin(const Batch& batch) {
  const Tensor hidden = teacher_->hidden({.ids = batch.ids, .lengths = batch.lengths}).detach();
  hidden_ = hidden.contiguous().view({-1, hidden.dim(-1)});
  windows_ = batch.windows;
  length_ = batch.ids.dim(1);
}

void LogitComparison::rows(const LogitRows& rows) {
  const int64_t n = rows.target.numel();
  Tensor theirs = teacher_->logits(hidden_.slice(0, rows.first, n)).detach();
  theirs = theirs.view({n, theirs.dim(-1)});
  check(theirs.dim(1) == rows.logits.dim(1), "kld: the teacher has ", theirs.dim(1),
        " tokens, the model ", rows.logits.dim(1));
  const std::vector<double> kl = on_host(kl_logits(rows.logits, TopLogits{theirs, {}, {}}));
  const std::vector<double> loss = on_host(cross_entropy(theirs, rows.target));
  const std::vector<double> top = on_host(top_logits(rows.logits, 1).ids);
  const std::vector<double> their_top = on_host(top_logits(theirs, 1).ids);
  for (int64_t r = 0; r < n; ++r) {
    if (rows.target.data<int32_t>()[r] < 0) continue;
    const auto i = size_t(r);
    part_.kl.push_back(std::max(kl[i], 0.0));  // rounding may give -1e-8 for equal rows
    part_.same_top += top[i] == their_top[i];
    PairedWindow& w = part_.paired[windows_[size_t((rows.first + r) / length_)]];
    w.model += double(rows.loss.data<float>()[r]);
    w.teacher += loss[i];
    ++w.tokens;
  }
}

std::string LogitComparison::take() {
  ByteWriter out;
  out.list(part_.kl);
  out.number(part_.same_top);
  for (const auto& [number, window] : part_.paired) {
    out.number(number);
    out.number(window);
  }
  part_ = {};
  return out.bytes();
}

void LogitComparison::add(const std::string& part) {
  ByteReader in(part);
  const std::vector<double> kl = in.list<double>();
  all_.kl.insert(all_.kl.end(), kl.begin(), kl.end());
  all_.same_top += in.number<int64_t>();
  while (!in.done()) {
    const auto number = in.number<int64_t>();
    const auto window = in.number<PairedWindow>();
    PairedWindow& w = all_.paired[number];
    w.model += window.model;
    w.teacher += window.teacher;
    w.tokens += window.tokens;
  }
}

LogitDistance LogitComparison::result() const {
  std::vector<PairedWindow> windows;
  double sum = 0, teacher = 0;
  for (const auto& [number, w] : all_.paired) {
    windows.push_back(w);
    teacher += w.teacher;
  }
  for (double x : all_.kl) sum += x;
  const auto tokens = double(all_.kl.size());
  return {.kl_mean = sum / tokens,
          .kl_median = quantile(all_.kl, 0.5),
          .kl_p99 = quantile(all_.kl, 0.99),
          .same_top = double(all_.same_top) / tokens,
          .perplexity_teacher = std::exp(teacher / tokens),
          .ratio = perplexity_ratio(windows),
          .windows = int64_t(windows.size()),
          .tokens = int64_t(all_.kl.size())};
}

data::Json to_json(const LogitDistance& d) {
  return {{"kl_mean", d.kl_mean},
          {"kl_median", d.kl_median},
          {"kl_p99", d.kl_p99},
          {"same_top", d.same_top},
          {"perplexity_teacher", d.perplexity_teacher},
          {"perplexity_ratio", d.ratio.value},
          {"ratio_low", or_null(d.ratio.low)},
          {"ratio_high", or_null(d.ratio.high)},
          {"windows", d.windows},
          {"tokens", d.tokens}};
}

}  // namespace brine::distill
