// The results of a suite as JSON.
#include "distill/evaluation/suites/suite_result.h"

#include <nlohmann/json.hpp>

#include "data/io/json.h"

namespace brine::distill {
namespace {

void add_means(data::Json& out, const SuiteRow& row) {
  out["method"] = row.method;
  out["k"] = or_null(row.k);
  out["keys_read"] = row.mean.keys_read > 0 ? data::Json(row.mean.keys_read) : data::Json();
  out["prompts"] = row.mean.prompts;
  out["generated"] = row.mean.generated_prompts ? data::Json(row.mean.generated) : data::Json();
  out["forced"] = row.mean.forced;
  out["nll"] = row.mean.nll;
}

data::Json interval_json(const std::optional<Interval>& i) {
  return i ? data::Json{i->low, i->high} : data::Json();
}

}  // namespace

data::Json to_json(const SuiteResult& r) {
  data::Json out = {{"suite", r.suite},
                    {"model", r.model},
                    {"attention", r.attention},
                    {"query_skip", or_null(r.query_skip)},
                    {"teacher", r.teacher.empty() ? data::Json() : data::Json(r.teacher)},
                    {"seed", r.seed},
                    {"lengths", r.lengths},
                    {"samples", r.samples},
                    {"prompts", r.prompts},
                    {"rows", data::Json::array()},
                    {"tasks", data::Json::array()}};
  for (const SuiteRow& row : r.rows) {
    data::Json object = {
        {"task", row.task}, {"length", or_null(row.length)}, {"depth", or_null(row.depth)}};
    add_means(object, row);
    out["rows"].push_back(object);
  }
  for (const SuiteRow& row : r.tasks) {
    data::Json object = data::Json::object();
    object["task"] = row.task;
    add_means(object, row);
    out["tasks"].push_back(object);
  }
  for (const SuiteFloor& floor : r.floors) {
    out["interval"][floor.task] = {{"generated", interval_json(floor.generated)},
                                   {"forced", interval_json(floor.forced)}};
    for (const auto& [method, k] : floor.sparsest) {
      out["sparsest_k"][method][floor.task] = {{"generated", or_null(k.generated)},
                                               {"forced", or_null(k.forced)}};
    }
  }
  add_json(out, r.peak);
  return out;
}

}  // namespace brine::distill
