// KL divergence of next-token distributions, and the paired ratio of perplexities.
#include "distill/evaluation/health/kld.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "distill/evaluation/health/mask_health.h"
#include "tensor/comm/bytes.h"
#include "tensor/functions/top_logits.h"

namespace brine::distill {
namespace {

std::vector<double> on_host(const Tensor& x) { return x.detach().to(Device{}).to_vector(); }

data::Json json_of(const std::optional<double>& x) { return x ? data::Json(*x) : data::Json(); }

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

data::Json LogitComparison::table() const {
  std::vector<PairedWindow> windows;
  double sum = 0, teacher = 0;
  for (const auto& [number, w] : all_.paired) {
    windows.push_back(w);
    teacher += w.teacher;
  }
  for (double x : all_.kl) sum += x;
  const PerplexityRatio ratio = perplexity_ratio(windows);
  const auto tokens = double(all_.kl.size());
  return {{"kl_mean", sum / tokens},
          {"kl_median", quantile(all_.kl, 0.5)},
          {"kl_p99", quantile(all_.kl, 0.99)},
          {"same_top", double(all_.same_top) / tokens},
          {"perplexity_teacher", std::exp(teacher / tokens)},
          {"perplexity_ratio", ratio.value},
          {"ratio_low", json_of(ratio.low)},
          {"ratio_high", json_of(ratio.high)},
          {"windows", windows.size()},
          {"tokens", all_.kl.size()}};
}

void print_kld(const data::Json& t) {
  char text[256];
  std::snprintf(text, sizeof text,
                "KL to the teacher  mean %.4f  median %.4f  99th percentile %.4f nats, top token "
                "equal %.2f %%\n",
                t.at("kl_mean").get<double>(), t.at("kl_median").get<double>(),
                t.at("kl_p99").get<double>(), 100 * t.at("same_top").get<double>());
  std::cout << text;
  std::snprintf(text, sizeof text, "perplexity over the teacher's %.4f: ratio %.4f",
                t.at("perplexity_teacher").get<double>(), t.at("perplexity_ratio").get<double>());
  std::cout << text;
  if (!t.at("ratio_low").is_null()) {
    std::snprintf(text, sizeof text, ", 95 %% from %.4f to %.4f by %lld paired windows",
                  t.at("ratio_low").get<double>(), t.at("ratio_high").get<double>(),
                  (long long)t.at("windows").get<int64_t>());
    std::cout << text;
  }
  std::cout << "\n";
}

}  // namespace brine::distill
