// Runs a suite: prompts once, then every method at every k, and the results as an object.
#include "distill/evaluation/suites/suite.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "data/io/file_io.h"
#include "data/io/json.h"
#include "distill/evaluation/suites/contender.h"
#include "distill/evaluation/suites/grid.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/log/device_memory.h"
#include "tensor/comm/shared_work.h"

namespace brine::distill {
namespace {

const char* const kDense = "dense";
const std::string kAll = "all";  // the row of all tasks

// "a,b" is a and b.
std::vector<std::string> split_at_commas(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& word : words) {
    for (size_t at = 0; at <= word.size();) {
      const size_t end = std::min(word.find(',', at), word.size());
      out.push_back(word.substr(at, end - at));
      at = end + 1;
    }
  }
  return out;
}

// The part of a run that does not depend on the method.
struct SuiteRun {
  const SuiteCall& call;
  const data::Tokenizer& tokenizer;
  const Messages& messages;
  std::vector<PromptBlock> blocks;
  std::vector<int64_t> ks;  // empty: each method's default
  std::vector<MethodScores> rows = {};

  int64_t prompts() const {
    int64_t n = 0;
    for (const PromptBlock& block : blocks) n += int64_t(block.prompts.size());
    return n;
  }

  // Every k of the attention that the model has now.
  void add(const std::string& name, nn::LoadedModel& m) {
    const bool sparse = m.model->attention_traits().sparse;
    for (int64_t k : sparse && !ks.empty() ? ks : std::vector<int64_t>{0}) {
      const auto start = std::chrono::steady_clock::now();
      nn::RuntimeOptions options = call.options;
      options.k = k;
      ModelSolver solver(*m.model, tokenizer, options);
      MethodScores row = score_blocks(
          solver, blocks,
          {.batch_size = call.batch_size, .generate = call.grid.generate, .ranks = call.ranks});
      row.method = name;
      const data::Json kept = kept_keys_of(m.config, k);
      if (sparse && !kept.is_null()) row.k = kept.get<int64_t>();
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      messages.info("suite: ", name, row.k ? join(" k ", *row.k) : "", ", ", time.count(), " s");
      rows.push_back(std::move(row));
    }
  }
};

data::Json json_of(const MeanScore& m) {
  return {{"prompts", m.prompts},
          {"generated", m.generated_prompts ? data::Json(m.generated) : data::Json()},
          {"forced", m.forced},
          {"nll", m.nll}};
}

template <class T>
data::Json optional_json(const std::optional<T>& value) {
  return value ? data::Json(*value) : data::Json();
}

// `head` with the means of a method over a selection.
data::Json row_json(data::Json head, const MethodScores& row, const SuiteRun& run,
                    const Selection& which) {
  head["method"] = row.method;
  head["k"] = optional_json(row.k);
  head.update(json_of(mean_of(row, run.blocks, which)));
  return head;
}

std::vector<std::string> task_names(const SuiteRun& run) {
  std::vector<std::string> out;
  for (const PromptBlock& block : run.blocks) {
    if (out.empty() || out.back() != block.task->name) out.push_back(block.task->name);
  }
  return out;
}

data::Json cells_json(const SuiteRun& run) {
  data::Json out = data::Json::array();
  for (const PromptBlock& block : run.blocks) {
    for (int64_t depth : std::set<int64_t>(block.depths.begin(), block.depths.end())) {
      const data::Json head = {{"task", block.task->name},
                               {"length", block.length},
                               {"depth", depth < 0 ? data::Json() : data::Json(depth)}};
      const Selection which{.task = block.task->name, .length = block.length, .depth = depth};
      for (const MethodScores& row : run.rows) out.push_back(row_json(head, row, run, which));
    }
  }
  return out;
}

data::Json tasks_json(const SuiteRun& run) {
  data::Json out = data::Json::array();
  std::vector<std::string> names = task_names(run);
  names.push_back(kAll);
  for (const std::string& name : names) {
    data::Json head = data::Json::object();
    head["task"] = name;
    const Selection which{.task = name == kAll ? "" : name};
    for (const MethodScores& row : run.rows) out.push_back(row_json(head, row, run, which));
  }
  return out;
}

data::Json interval_json(double mean, int64_t prompts) {
  if (prompts == 0) return {};
  const Interval i = wilson(mean, prompts);
  return {i.low, i.high};
}

// Adds "interval" and "sparsest_k" if dense attention was scored.
void add_sparsest(data::Json& out, const SuiteRun& run) {
  const MethodScores* dense = nullptr;
  std::vector<std::string> methods;
  for (const MethodScores& row : run.rows) {
    if (row.method == kDense) dense = &row;
    if (row.k && (methods.empty() || methods.back() != row.method)) methods.push_back(row.method);
  }
  if (!dense) return;
  std::vector<std::string> names = task_names(run);
  names.push_back(kAll);
  for (const std::string& name : names) {
    const Selection which{.task = name == kAll ? "" : name};
    const MeanScore full = mean_of(*dense, run.blocks, which);
    out["interval"][name] = {{"generated", interval_json(full.generated, full.generated_prompts)},
                             {"forced", interval_json(full.forced, full.prompts)}};
    for (const std::string& method : methods) {
      const SparsestK k = sparsest_k(method, run.rows, *dense, run.blocks, which);
      out["sparsest_k"][method][name] = {{"generated", optional_json(k.generated)},
                                         {"forced", optional_json(k.forced)}};
    }
  }
}

// Every prompt as an object on a separate line: what other programs need to score it.
std::string prompt_lines(const SuiteRun& run) {
  std::string out;
  for (const PromptBlock& block : run.blocks) {
    for (size_t i = 0; i < block.prompts.size(); ++i) {
      const data::Prompt& p = block.prompts[i];
      const int64_t depth = block.depths[i];
      const data::Json line = {{"task", block.task->name},
                               {"length", block.length},
                               {"depth", depth < 0 ? data::Json() : data::Json(depth)},
                               {"prompt", p.text},
                               {"answer", run.tokenizer.decode(p.answer)},
                               {"references", p.references},
                               {"prompt_ids", p.ids},
                               {"answer_ids", p.answer},
                               {"scored", p.scored}};
      out += printable_json(line) + "\n";
    }
  }
  return out;
}

std::vector<Contender> contenders_of(const SuiteGrid& grid) {
  std::vector<Contender> out;
  const std::vector<std::string> words =
      grid.compare.empty() ? default_contenders() : split_at_commas(grid.compare);
  out.reserve(words.size());
  for (const std::string& text : words) out.push_back(parse_contender(text));
  return out;
}

bool has_dense(const std::vector<Contender>& contenders) {
  return std::any_of(contenders.begin(), contenders.end(),
                     [](const Contender& c) { return c.name == kDense; });
}

// Throws when k would have no effect.
void check_k(const SuiteCall& call, const nn::LoadedModel& m,
             const std::vector<Contender>& contenders) {
  const bool full = std::all_of(contenders.begin(), contenders.end(),
                                [](const Contender& c) { return nn::is_full_attention(c.method); });
  check(call.k.empty() || !full || m.model->attention_traits().sparse,
        "suite: --k has no effect on attention '", m.config.attention,
        "' next to full attention only");
}

void check_sizes(const SuiteGrid& grid, const nn::LoadedModel& m) {
  const int64_t positions = m.config.shape().max_positions;
  for (int64_t length : grid.lengths) {
    check(length <= positions, "suite: a length of ", length, " tokens does not fit the ",
          positions, " positions of ", m.directory);
  }
}

// The model that the contenders run on, in place of the student.
void become_base(nn::LoadedModel& m, const SuiteCall& call) {
  const int64_t vocabulary = m.config.shape().vocab_size;
  m = nn::LoadedModel{};  // one model at a time in memory
  m = nn::load_model(call.teacher);
  check_sizes(call.grid, m);
  check(m.config.shape().vocab_size == vocabulary, "suite: teacher ", call.teacher, " has ",
        m.config.shape().vocab_size, " tokens, the model ", vocabulary);
}

}  // namespace

void SuiteGrid::describe(data::Schema& s) {
  s.choice("suite", suite, std::vector<std::string>{"ruler"},
           "Score tasks whose answers are in their prompts (docs/evaluation.md)");
  std::string names;
  for (const data::PromptTask& task : data::prompt_tasks())
    names += (names.empty() ? "" : ", ") + task.name;
  s.field("tasks", tasks, "Tasks: " + names + "; none: all");
  s.field("lengths", lengths, "Suite: tokens of prompt and answer", {.min = 1});
  s.field("depths", depths, "Suite: places of the needle, percent of the haystack",
          {.min = 0, .max = 100});
  s.field("depth_count", depth_count, "Suite: so many depths from 0 to 100 instead",
          {.min = 0, .max = 101});
  s.field("samples", samples, "Suite: prompts of a task, length and depth", {.min = 1});
  s.field(
      "compare", compare,
      "Suite: methods to compare, METHOD:KEY=VALUE; none: dense, top keys, sinks and recent keys");
  s.field("generate", generate, "Suite: also score greedy decoding, not only token by token");
  s.field("answer_tokens", answer_tokens, "Suite: tokens to generate; 0 = as RULER", {.min = 0});
  s.field("write_prompts", write_prompts,
          "Suite: file to which the prompts and their answers are written, JSON lines");
}

std::initializer_list<const char*> SuiteGrid::keys() {
  static constexpr std::initializer_list<const char*> all = {
      "tasks",   "lengths",  "depths",        "depth_count",  "samples",
      "compare", "generate", "answer_tokens", "write_prompts"};
  return all;
}

data::Json evaluate_suite(const std::string& name, nn::LoadedModel& m,
                          const data::Tokenizer& tokenizer, const SuiteCall& given,
                          const Messages& messages) {
  SuiteCall call = given;
  call.grid.tasks = split_at_commas(given.grid.tasks);
  const std::vector<Contender> contenders = contenders_of(call.grid);
  check_k(call, m, contenders);
  check_sizes(call.grid, m);
  SuiteRun run{call, tokenizer, messages, make_blocks(call, tokenizer), call.k};
  const auto write_prompts = [&] {
    if (!call.grid.write_prompts.empty())
      data::write_file_atomic(call.grid.write_prompts, prompt_lines(run));
  };
  if (call.ranks) do_work_of_first(*call.ranks, "prompts", write_prompts);
  if (!call.ranks) write_prompts();
  const data::Json default_k = kept_keys_of(m.config, 0);
  if (run.ks.empty() && !default_k.is_null()) run.ks = {default_k.get<int64_t>()};
  data::Json out = {
      {"suite", call.grid.suite},
      {"model", name},
      {"attention", m.config.attention},
      {"query_skip",
       m.model->attention_traits().query_skip ? data::Json(call.options.query_skip) : data::Json()},
      {"oversample", oversample_of(m.config, call.options.oversample)},
      {"teacher", call.teacher.empty() ? data::Json() : data::Json(call.teacher)},
      {"seed", call.seed},
      {"lengths", call.grid.lengths},
      {"samples", call.grid.samples},
      {"prompts", run.prompts()}};
  const bool is_dense = nn::is_full_attention(m.config.attention) && call.teacher.empty();
  if (!is_dense || !has_dense(contenders)) run.add("student", m);
  if (!call.teacher.empty() && !contenders.empty()) become_base(m, call);
  for (const Contender& contender : contenders) {
    use_contender(m, contender);
    run.add(contender.name, m);
  }
  out["rows"] = cells_json(run);
  out["tasks"] = tasks_json(run);
  add_sparsest(out, run);
  add_peak_memory(out);
  return out;
}

}  // namespace brine::distill
