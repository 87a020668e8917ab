// The prompts of a suite, the scores of attention methods on them, and their means.
#include "distill/evaluation/suites/grid.h"

#include <algorithm>

#include "data/io/utf8.h"

namespace brine::distill {
namespace {

std::vector<int64_t> depths_of(const SuiteGrid& grid) {
  if (grid.depth_count == 0) return grid.depths;
  std::vector<int64_t> out;
  const int64_t last = std::max<int64_t>(grid.depth_count - 1, 1);
  out.reserve(size_t(grid.depth_count));
  for (int64_t i = 0; i < grid.depth_count; ++i) out.push_back((100 * i + last / 2) / last);
  return out;
}

std::vector<const data::PromptTask*> tasks_of(const SuiteGrid& grid) {
  std::vector<const data::PromptTask*> out;
  for (const std::string& name : grid.tasks) {
    const data::PromptTask* task = &data::prompt_task(name);
    check(std::find(out.begin(), out.end(), task) == out.end(), "suite: task ", name,
          " is a duplicate");
    out.push_back(task);
  }
  if (!out.empty()) return out;
  for (const data::PromptTask& task : data::prompt_tasks()) out.push_back(&task);
  return out;
}

data::Haystack haystack_of(const std::vector<std::string>& files) {
  if (files.empty()) return {};
  std::string text;
  for (const std::string& file : files) text += data::read_text(file) + "\n";
  return {text, files.front()};
}

bool matches(const Selection& which, const PromptBlock& block, int64_t depth) {
  return (which.task.empty() || which.task == block.task->name) &&
         (which.length == 0 || which.length == block.length) &&
         (!which.depth || *which.depth == depth);
}

// Whether the mean of a method is not below the interval around that of dense.
bool within(double mean, int64_t prompts, double dense, int64_t dense_prompts) {
  return prompts > 0 && dense_prompts > 0 && mean >= wilson(dense, dense_prompts).low;
}

}  // namespace

std::vector<PromptBlock> make_blocks(const SuiteCall& call, const data::Tokenizer& tokenizer) {
  const data::Haystack haystack = haystack_of(call.data);
  const data::PromptSource source{tokenizer, haystack};
  std::vector<PromptBlock> out;
  for (const data::PromptTask* task : tasks_of(call.grid)) {
    for (int64_t length : call.grid.lengths) {
      PromptBlock block{.task = task, .length = length};
      const std::vector<int64_t> depths =
          task->has_depth ? depths_of(call.grid) : std::vector<int64_t>{-1};
      for (int64_t depth : depths) {
        for (int64_t sample = 0; sample < call.grid.samples; ++sample) {
          block.depths.push_back(depth);
          block.prompts.push_back(data::make_prompt(*task, source,
                                                    {.length = length,
                                                     .depth = std::max<int64_t>(depth, 0),
                                                     .sample = sample,
                                                     .seed = call.seed,
                                                     .answer_tokens = call.grid.answer_tokens}));
        }
      }
      out.push_back(std::move(block));
    }
  }
  return out;
}

MethodScores score_blocks(Solver& solver, const std::vector<PromptBlock>& blocks,
                          const ScoreCall& call) {
  MethodScores out;
  for (const PromptBlock& block : blocks) {
    out.scores.push_back(score_prompts(solver, block.prompts, call));
  }
  return out;
}

MeanScore mean_of(const MethodScores& method, const std::vector<PromptBlock>& blocks,
                  const Selection& which) {
  MeanScore out;
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (size_t i = 0; i < blocks[b].prompts.size(); ++i) {
      if (!matches(which, blocks[b], blocks[b].depths[i])) continue;
      const PromptScore& s = method.scores[b][i];
      ++out.prompts;
      out.forced += s.forced;
      out.nll += s.nll;
      if (b < method.keys_read.size()) out.keys_read += method.keys_read[b];
      if (!s.has_generated()) continue;
      ++out.generated_prompts;
      out.generated += s.generated;
    }
  }
  if (out.prompts) out.forced /= double(out.prompts);
  if (out.prompts) out.nll /= double(out.prompts);
  if (out.prompts) out.keys_read /= double(out.prompts);
  if (out.generated_prompts) out.generated /= double(out.generated_prompts);
  return out;
}

SparsestK sparsest_k(const std::string& method, const std::vector<MethodScores>& rows,
                     const MethodScores& dense, const std::vector<PromptBlock>& blocks,
                     const Selection& which) {
  std::vector<const MethodScores*> method_rows;
  for (const MethodScores& row : rows) {
    if (row.method == method && row.k) method_rows.push_back(&row);
  }
  std::sort(method_rows.begin(), method_rows.end(),
            [](const MethodScores* a, const MethodScores* b) { return *a->k > *b->k; });
  const MeanScore full = mean_of(dense, blocks, which);
  SparsestK out;
  bool generated = true, forced = true;
  for (const MethodScores* row : method_rows) {
    const MeanScore mean = mean_of(*row, blocks, which);
    generated = generated && within(mean.generated, mean.generated_prompts, full.generated,
                                    full.generated_prompts);
    forced = forced && within(mean.forced, mean.prompts, full.forced, full.prompts);
    if (generated) out.generated = row->k;
    if (forced) out.forced = row->k;
  }
  return out;
}

}  // namespace brine::distill
