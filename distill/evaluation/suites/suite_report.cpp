// The results of a suite for people: a table of means, and the sparsest sufficient k.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "distill/evaluation/suites/suite.h"

namespace brine::distill {
namespace {

// "0.96 1.00": a mean of generated and of forced answers, "-" where nothing was generated.
std::string pair_of(const data::Json& row) {
  char generated[16] = "   -", forced[16];
  if (!row["generated"].is_null())
    std::snprintf(generated, sizeof generated, "%.2f", row["generated"].get<double>());
  std::snprintf(forced, sizeof forced, "%.2f", row["forced"].get<double>());
  return join(generated, " ", forced);
}

std::string k_of(const data::Json& k) {
  return k.is_null() ? "-" : std::to_string(k.get<int64_t>());
}

std::string padded(const std::string& text, size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

std::vector<std::string> methods_of(const data::Json& rows) {
  std::vector<std::string> out;
  for (const data::Json& row : rows) {
    const auto name = row["method"].get<std::string>();
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  return out;
}

// The k of the rows, ascending; a method that keeps every key has none.
std::vector<int64_t> ks_of(const data::Json& rows) {
  std::vector<int64_t> out;
  for (const data::Json& row : rows) {
    if (!row["k"].is_null()) out.push_back(row["k"].get<int64_t>());
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (out.empty()) out.push_back(0);
  return out;
}

// The cell of a method at k; of one without a k its only one.
std::string cell(const data::Json& rows, const std::string& task, const std::string& method,
                 int64_t k) {
  for (const data::Json& row : rows) {
    if (row["task"] == task && row["method"] == method && (row["k"].is_null() || row["k"] == k))
      return pair_of(row);
  }
  return "-";
}

size_t width_of(const std::string& method) { return std::max<size_t>(method.size(), 9) + 2; }

void print_means(const data::Json& rows, const std::vector<std::string>& tasks) {
  const std::vector<std::string> methods = methods_of(rows);
  std::cout << "answers generated and predicted token by token: mean scores\n"
            << padded("task", 17) << padded("k", 6);
  for (const std::string& method : methods) std::cout << padded(method, width_of(method));
  std::cout << "\n";
  for (const std::string& task : tasks) {
    for (int64_t k : ks_of(rows)) {
      std::cout << padded(task, 17) << padded(k ? std::to_string(k) : "-", 6);
      for (const std::string& method : methods)
        std::cout << padded(cell(rows, task, method, k), width_of(method));
      std::cout << "\n";
    }
  }
}

void print_sparsest(const data::Json& sparsest, const std::vector<std::string>& tasks) {
  std::cout << "sparsest k that stays within dense's 95 % interval (Wilson, over prompts)\n"
            << padded("task", 17);
  for (const auto& [method, values] : sparsest.items())
    std::cout << padded(method, width_of(method));
  std::cout << "\n";
  for (const std::string& task : tasks) {
    std::cout << padded(task, 17);
    for (const auto& [method, values] : sparsest.items()) {
      const data::Json& k = values.at(task);
      std::cout << padded(padded(k_of(k["generated"]), 4) + " " + padded(k_of(k["forced"]), 4),
                          width_of(method));
    }
    std::cout << "\n";
  }
}

}  // namespace

void print_suite(const data::Json& out) {
  std::vector<std::string> tasks;
  for (const data::Json& row : out.at("tasks")) {
    const auto name = row["task"].get<std::string>();
    if (tasks.empty() || tasks.back() != name) tasks.push_back(name);
  }
  std::cout << "suite " << out.at("suite").get<std::string>() << ", lengths";
  for (const data::Json& length : out.at("lengths")) std::cout << " " << length;
  std::cout << ", seed " << out.at("seed") << ", " << out.at("prompts") << " prompts\n";
  print_means(out.at("tasks"), tasks);
  if (out.contains("sparsest_k")) print_sparsest(out["sparsest_k"], tasks);
}

}  // namespace brine::distill
