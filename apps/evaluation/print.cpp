// Tables and lines of evaluations: text, the splits of a task, a suite of tasks.
#include "apps/evaluation/print.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "data/config/schema_text.h"

namespace brine {
namespace {

using distill::MaskRow;
using distill::RecallMeans;
using distill::SuiteRow;

// printf of numbers to a text, and to standard output.
template <class... Numbers>
std::string text_of(const char* format, Numbers... numbers) {
  char text[256];
  std::snprintf(text, sizeof text, format, numbers...);
  return text;
}
template <class... Numbers>
void print(const char* format, Numbers... numbers) {
  std::cout << text_of(format, numbers...);
}

std::string padded(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

void print_health(const distill::MaskHealth& h) {
  if (h.rows == 0) return;
  print("mask recall  %.3f, least head %.3f, 10th percentile %.3f, top-1 hit %.3f ", h.recall,
        h.least, h.tenth, h.top_hit);
  std::cout << "(the model's dense attention, start of the first window)\n";
}

void print(const distill::TextResult& r) {
  std::cout << "perplexity  " << data::show(r.perplexity.value()) << "  (" << r.protocol << ")\n";
  if (!r.mask_recall.empty()) std::cout << mask_table(r.mask_recall);
  if (r.mask_health) print_health(*r.mask_health);
  if (r.keys_read) print("keys read  %.1f of a row\n", *r.keys_read);
}

// Of so many classes that a line is readable.
void print_confusion(const distill::SplitResult& split) {
  const size_t classes = split.labels.size();
  if (classes == 0 || classes > 12) return;
  size_t width = 6;
  for (const std::string& label : split.labels) width = std::max(width, label.size());
  std::cout << "confusion  a row for each label, a column for each answer\n" << padded("", width);
  for (const std::string& label : split.labels) std::cout << "  " << padded(label, width);
  for (size_t i = 0; i < split.confusion.size(); ++i) {
    if (i % classes == 0) std::cout << "\n" << padded(split.labels[i / classes], width);
    std::cout << "  " << padded(std::to_string(split.confusion[i]), width);
  }
  std::cout << "\n";
}

void print(const distill::TaskResult& r) {
  for (const distill::SplitResult& split : r.splits) {
    std::cout << r.task << " " << split.name;
    for (size_t i = 0; i < split.scores.size(); ++i) {
      std::cout << "  " << split.scores[i].first
                << text_of(" %.4f (95 %% %.4f to %.4f)", split.scores[i].second,
                           split.intervals[i].low, split.intervals[i].high);
    }
    std::cout << "  texts " << split.texts
              << text_of("  mean_visible_length %.1f", split.mean_visible_length) << "  keys_kept "
              << (split.keys_kept ? text_of("%.4f", *split.keys_kept) : "unknown") << "\n";
    print_confusion(split);
    if (!split.mask_recall.empty()) std::cout << mask_table(split.mask_recall);
  }
}

// "0.96 1.00": a mean of generated and of forced answers, "-" where nothing was generated.
std::string pair_of(const distill::MeanScore& mean) {
  return (mean.generated_prompts ? text_of("%.2f", mean.generated) : "   -") +
         text_of(" %.2f", mean.forced);
}

std::string k_of(const std::optional<int64_t>& k) { return k ? std::to_string(*k) : "-"; }

// Different values of the rows, in their order.
template <class F>
auto distinct(const std::vector<SuiteRow>& rows, F&& value_of) {
  std::vector<decltype(value_of(rows[0]))> out;
  for (const SuiteRow& row : rows) {
    const auto value = value_of(row);
    if (std::find(out.begin(), out.end(), value) == out.end()) out.push_back(value);
  }
  return out;
}

// The k of the rows, ascending; a method that keeps every key has none.
std::vector<int64_t> ks_of(const std::vector<SuiteRow>& rows) {
  std::vector<int64_t> out;
  for (const SuiteRow& row : rows) {
    if (row.k) out.push_back(*row.k);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (out.empty()) out.push_back(0);
  return out;
}

// The cell of a method at k; of one without a k its only one.
std::string cell(const std::vector<SuiteRow>& rows, const std::string& task,
                 const std::string& method, int64_t k) {
  for (const SuiteRow& row : rows) {
    if (row.task == task && row.method == method && (!row.k || *row.k == k)) {
      return pair_of(row.mean);
    }
  }
  return "-";
}

// What it reads at k, over all tasks.
std::string keys_read_of(const std::vector<SuiteRow>& rows, const std::string& method, int64_t k) {
  std::string out = "-";
  for (const SuiteRow& row : rows) {  // that of all tasks is the last
    if (row.method != method || (row.k && *row.k != k) || row.mean.keys_read == 0) continue;
    out = text_of("%.1f", row.mean.keys_read);
  }
  return out;
}

size_t width_of(const std::string& method) { return std::max<size_t>(method.size(), 9) + 2; }

void print_means(const std::vector<SuiteRow>& rows, const std::vector<std::string>& tasks) {
  const auto methods = distinct(rows, [](const SuiteRow& row) { return row.method; });
  auto line = [&](const std::string& name, const std::string& k, auto&& cell_of) {
    std::cout << padded(name, 17) << padded(k, 6);
    for (const std::string& method : methods) {
      std::cout << padded(cell_of(method), width_of(method));
    }
    std::cout << "\n";
  };
  auto lines = [&](const std::string& name, auto&& cell_of) {
    for (int64_t k : ks_of(rows)) {
      line(name, k ? std::to_string(k) : "-", [&](auto& method) { return cell_of(method, k); });
    }
  };
  std::cout << "answers generated and predicted token by token: mean scores\n";
  line("task", "k", [](auto& method) { return method; });
  lines("keys read", [&](auto& method, int64_t k) { return keys_read_of(rows, method, k); });
  for (const std::string& task : tasks) {
    lines(task, [&](auto& method, int64_t k) { return cell(rows, task, method, k); });
  }
}

void print_sparsest(const std::vector<distill::SuiteFloor>& floors) {
  std::cout << "sparsest k that stays within dense's 95 % interval (Wilson, over prompts)\n"
            << padded("task", 17);
  for (const auto& [method, k] : floors[0].sparsest) std::cout << padded(method, width_of(method));
  std::cout << "\n";
  for (const distill::SuiteFloor& floor : floors) {
    std::cout << padded(floor.task, 17);
    for (const auto& [method, k] : floor.sparsest) {
      std::cout << padded(padded(k_of(k.generated), 4) + " " + padded(k_of(k.forced), 4),
                          width_of(method));
    }
    std::cout << "\n";
  }
}

void print(const distill::SuiteResult& r) {
  std::cout << "suite " << r.suite << ", lengths";
  for (int64_t length : r.lengths) std::cout << " " << length;
  std::cout << ", seed " << r.seed << ", " << r.prompts << " prompts\n";
  print_means(r.tasks, distinct(r.tasks, [](const SuiteRow& row) { return row.task; }));
  if (!r.floors.empty() && !r.floors[0].sparsest.empty()) print_sparsest(r.floors);
}

}  // namespace

std::string mask_table(const std::vector<MaskRow>& rows) {
  std::string out =
      "mask recall  by layer: teacher's attention mass inside the mask, rows with w > k\n"
      "  layer   mask    min    p10      top keys  best columns  sinks+recent  most recent"
      "   random  top-1 hit\n";
  for (const MaskRow& row : rows) {
    if (row.rows == 0) {
      out += "  " + row.layer + ": no row sees more than k keys\n";
      continue;
    }
    const RecallMeans& m = row.mean;
    out += "  " + padded(row.layer, 5) +
           text_of("  %5.3f  %5.3f  %5.3f", m[recall::kMask], row.least, row.tenth) +
           text_of("  %12.3f  %12.3f  %12.3f", m[recall::kTopKeys], m[recall::kBestColumns],
                   m[recall::kSinksRecent]) +
           text_of("  %11.3f  %7.3f  %9.3f\n", m[recall::kRecent], m[recall::kRandom],
                   m[recall::kTopHit]);
  }
  const RecallMeans& all = rows.back().mean;
  if (rows.back().rows == 0) return out;
  return out + text_of(
                   "mass on the 64 most recent and the 4 first keys: teacher  %.3f  %.3f, "
                   "mask  %.3f  %.3f\n",
                   all[recall::kNearAll], all[recall::kFirstAll], all[recall::kNearMask],
                   all[recall::kFirstMask]);
}

void print_evaluation(const distill::EvaluationResult& result) {
  std::visit([](const auto& r) { print(r); }, result);
}

}  // namespace brine
