// Runs a suite: prompts once, then every method at every k; which methods are compared.
#include "distill/evaluation/suites/suite.h"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "distill/evaluation/evaluate.h"
#include "distill/evaluation/suites/grid.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/inputs/models.h"
#include "nn/io/shared_student.h"
#include "tensor/comm/shared_work.h"

namespace brine::distill {

namespace {

void apply(const Contender& contender, nn::AttentionMethod& method) {
  data::Schema schema = data::schema_of(method);
  for (const auto& [key, value] : contender.settings) {
    schema.set_text(key, {value}, contender.name + ": " + key);
  }
}

}  // namespace

Contender parse_contender(const std::string& text) {
  const std::vector<std::string> parts = data::split(text, ':');
  Contender out{.name = text, .method = parts[0]};
  if (const auto preset = nn::attention_presets().find(parts[0]);
      preset != nn::attention_presets().end()) {
    out.method = preset->second;
    out.settings.emplace_back("preset", preset->first);
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    check(equals != std::string::npos, "suite: '", text,
          "' is not of the form METHOD:KEY=VALUE at '", parts[i], "'");
    out.settings.emplace_back(parts[i].substr(0, equals), parts[i].substr(equals + 1));
  }
  apply(out, *nn::attention_method(out.method));
  return out;
}

std::vector<std::string> default_contenders(int64_t step, int64_t min_k, bool cached) {
  std::vector<std::string> out = {"dense"};
  if (!cached && nn::attention_methods().count("top")) out.push_back("top");
  const int64_t block = step > 1 ? step : 4;
  out.push_back(join("recent:block=", block, ":sinks=", min_k < 2 * block ? 0 : 1));
  return out;
}

void use_contender(nn::LoadedModel& m, const Contender& contender) {
  // The same attention without T x T maps.
  const bool full = nn::is_full_attention(contender.method);
  m.config.attention = full ? "flash" : contender.method;
  m.config.methods[m.config.attention] = nn::attention_method(m.config.attention);
  if (!full) apply(contender, m.config.method());
  nn::replace_attention(m);
}

namespace {

const char* const kDense = "dense";
const char* const kStudent = "student";
const std::string kAll = "all";  // the row of all tasks

// "a,b" is a and b.
std::vector<std::string> split_at_commas(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& word : words)
    for (const std::string& part : data::split(word, ',')) out.push_back(part);
  return out;
}

// Of the tasks, and "all".
std::vector<std::string> task_names(const std::vector<PromptBlock>& blocks) {
  std::vector<std::string> out;
  for (const PromptBlock& block : blocks) {
    if (out.empty() || out.back() != block.task->name) out.push_back(block.task->name);
  }
  out.push_back(kAll);
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

  static Tensor ids_of(const data::Prompt& prompt) {
    return Tensor::from(prompt.ids, {1, int64_t(prompt.ids.size())});
  }

  // The k with which causal rows, in blocks, read as many keys as the student at each of its k.
  std::vector<int64_t> ks_of_as_many(int64_t block) const {
    std::vector<int64_t> lengths, out;
    for (const PromptBlock& b : blocks) lengths.push_back(int64_t(b.prompts.front().ids.size()));
    for (const MethodScores& row : rows) {
      if (row.method != kStudent) continue;
      const double sum = std::accumulate(row.keys_read.begin(), row.keys_read.end(), 0.0);
      const int64_t k = k_of_window(sum / double(row.keys_read.size()), lengths, block);
      out.push_back(std::max(k, 2 * block));  // a block beside the first
    }
    return out;
  }

  // The attention that the model has now, at every one of these k; without any, at its default.
  void add(const std::string& name, nn::LoadedModel& m, const std::vector<int64_t>& at) {
    calibrate_on(m, ids_of(blocks.front().prompts.front()), messages);
    const bool sparse = m.model->attention_traits().sparse;
    for (int64_t k : sparse && !at.empty() ? at : std::vector<int64_t>{0}) {
      const auto start = std::chrono::steady_clock::now();
      nn::RuntimeOptions options = call.options;
      options.k = k;
      ModelSolver solver(*m.model, tokenizer, options, call.reading);
      MethodScores row = score_blocks(
          solver, blocks,
          {.batch_size = call.batch_size, .generate = call.grid.generate, .ranks = call.ranks});
      row.method = name;
      for (const PromptBlock& block : blocks)
        row.keys_read.push_back(keys_read(*m.model, ids_of(block.prompts.front()), options));
      if (sparse) row.k = kept_keys_of(m.config, k);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
      std::string means;  // what is left of a run that is stopped later
      for (const std::string& task : task_names(blocks)) {
        const double right = mean_of(row, blocks, {.task = task == kAll ? "" : task}).forced;
        means += join(", ", task, " ", std::round(right * 1e4) / 1e4);
      }
      messages.info("suite: ", name, row.k ? join(" k ", *row.k) : "", means, ", ", time.count(),
                    " s");
      rows.push_back(std::move(row));
    }
  }
};

std::vector<SuiteRow> cells_of(const SuiteRun& run) {
  std::vector<SuiteRow> out;
  for (const PromptBlock& block : run.blocks) {
    for (int64_t depth : std::set<int64_t>(block.depths.begin(), block.depths.end())) {
      const Selection which{.task = block.task->name, .length = block.length, .depth = depth};
      for (const MethodScores& row : run.rows) {
        out.push_back({.task = block.task->name,
                       .length = block.length,
                       .depth = depth < 0 ? std::optional<int64_t>() : depth,
                       .method = row.method,
                       .k = row.k,
                       .mean = mean_of(row, run.blocks, which)});
      }
    }
  }
  return out;
}

std::vector<SuiteRow> tasks_of(const SuiteRun& run) {
  std::vector<SuiteRow> out;
  for (const std::string& name : task_names(run.blocks)) {
    const Selection which{.task = name == kAll ? "" : name};
    for (const MethodScores& row : run.rows) {
      out.push_back({.task = name,
                     .method = row.method,
                     .k = row.k,
                     .mean = mean_of(row, run.blocks, which)});
    }
  }
  return out;
}

std::optional<Interval> interval_of(double mean, int64_t prompts) {
  return prompts == 0 ? std::optional<Interval>() : wilson(mean, prompts);
}

// None if dense attention was not scored.
std::vector<SuiteFloor> floors_of(const SuiteRun& run) {
  const MethodScores* dense = nullptr;
  std::vector<std::string> methods;
  for (const MethodScores& row : run.rows) {
    if (row.method == kDense) dense = &row;
    if (row.k && (methods.empty() || methods.back() != row.method)) methods.push_back(row.method);
  }
  std::vector<SuiteFloor> out;
  if (!dense) return out;
  for (const std::string& name : task_names(run.blocks)) {
    const Selection which{.task = name == kAll ? "" : name};
    const MeanScore full = mean_of(*dense, run.blocks, which);
    SuiteFloor floor{.task = name,
                     .generated = interval_of(full.generated, full.generated_prompts),
                     .forced = interval_of(full.forced, full.prompts)};
    for (const std::string& method : methods) {
      floor.sparsest.emplace_back(method, sparsest_k(method, run.rows, *dense, run.blocks, which));
    }
    out.push_back(std::move(floor));
  }
  return out;
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

// `step`: AttentionTraits::k_step of the student; `min_k`: of all.
std::vector<Contender> contenders_of(const SuiteCall& call, int64_t step, int64_t min_k) {
  std::vector<Contender> out;
  const std::vector<std::string>& asked = call.grid.compare;
  const std::vector<std::string> words =
      asked.empty() ? default_contenders(step, min_k, call.reading.has_value())
                    : split_at_commas(asked);
  out.reserve(words.size());
  for (const std::string& text : words) {
    out.push_back(parse_contender(text));
    out.back().as_many = asked.empty() && step > 1 && !nn::is_full_attention(out.back().method);
  }
  return out;
}

bool has_dense(const std::vector<Contender>& contenders) {
  return std::ranges::find(contenders, kDense, &Contender::name) != contenders.end();
}

// Throws when k would have no effect.
void check_k(const SuiteCall& call, const nn::LoadedModel& m,
             const std::vector<Contender>& contenders) {
  const bool full = std::ranges::all_of(contenders, [](const Contender& c) {
    return nn::is_full_attention(c.method) || c.names("k");
  });
  check(call.k.empty() || !full || m.model->attention_traits().sparse,
        "suite: --k has no effect on attention '", m.config.attention,
        "' next to full attention and methods that name their k");
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
  s.field("tasks", tasks, "Tasks: " + data::names_of(data::prompt_tasks()) + "; none: all");
  s.field("lengths", lengths, "Suite: tokens of prompt and answer", {.min = 1});
  s.field("depths", depths, "Suite: positions of the needle, percent of the haystack",
          {.min = 0, .max = 100});
  s.field("depth_count", depth_count, "Suite: so many depths from 0 to 100 instead",
          {.min = 0, .max = 101});
  s.field("samples", samples, "Suite: prompts of a task, length and depth", {.min = 1});
  s.field(
      "compare", compare,
      "Suite: methods to compare, METHOD:KEY=VALUE; none: dense, top keys, a window with sinks");
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

SuiteResult evaluate_suite(const std::string& name, nn::LoadedModel& m,
                           const data::Tokenizer& tokenizer, const SuiteCall& given,
                           const Messages& messages) {
  SuiteCall call = given;
  call.grid.tasks = split_at_commas(given.grid.tasks);
  const int64_t step = m.model->attention_traits().k_step;
  const std::vector<Contender> contenders = contenders_of(
      call, step,
      call.k.empty() ? m.config.method().mask().k.value_or(1 << 20) : std::ranges::min(call.k));
  check_k(call, m, contenders);
  check_sizes(call.grid, m);
  SuiteRun run{call, tokenizer, messages, make_blocks(call, tokenizer), call.k};
  const auto write_prompts = [&] {
    if (!call.grid.write_prompts.empty())
      data::write_file_atomic(call.grid.write_prompts, prompt_lines(run));
  };
  if (call.ranks) do_work_of_first(*call.ranks, "prompts", write_prompts);
  if (!call.ranks) write_prompts();
  const std::optional<int64_t> default_k = kept_keys_of(m.config, 0);
  if (run.ks.empty() && default_k) run.ks = {*default_k};
  SuiteResult out{.suite = call.grid.suite,
                  .model = name,
                  .attention = m.config.attention,
                  .teacher = call.teacher,
                  .seed = call.seed,
                  .lengths = call.grid.lengths,
                  .samples = call.grid.samples,
                  .prompts = run.prompts()};
  if (m.model->attention_traits().query_skip) out.query_skip = call.options.query_skip;
  const bool is_dense = nn::is_full_attention(m.config.attention) && call.teacher.empty();
  if (!is_dense || !has_dense(contenders)) run.add(kStudent, m, run.ks);
  if (!call.teacher.empty() && !contenders.empty()) become_base(m, call);
  for (const Contender& contender : contenders) {
    use_contender(m, contender);
    const int64_t block = m.model->attention_traits().k_step;
    run.add(contender.name, m,
            contender.as_many      ? run.ks_of_as_many(block)
            : contender.names("k") ? std::vector<int64_t>{}
                                   : run.ks);
  }
  out.rows = cells_of(run);
  out.tasks = tasks_of(run);
  out.floors = floors_of(run);
  out.peak = device_peak();
  return out;
}

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
  if (r.cache) {
    out["cache"] = r.cache->first;
    out["prefill"] = r.cache->second;
  }
  for (const SuiteRow& row : r.rows) {
    data::Json object = {
        {"task", row.task}, {"length", or_null(row.length)}, {"depth", or_null(row.depth)}};
    add_means(object, row);
    out["rows"].push_back(object);
  }
  for (const SuiteRow& row : r.tasks) {
    data::Json object = {{"task", row.task}};
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
