// A distillation from start to end: a student with another attention method learns from a teacher,
// which runs next to it or was dumped before.
#pragma once

#include <string>
#include <vector>

#include "distill/runs/settings/recipe.h"
#include "distill/runs/stages/conversion.h"
#include "distill/runs/task_run.h"

namespace brine::distill {

// What is distilled: the sources and the recipe.
struct Distillation {
  std::string teacher = {};  // directory of the teacher, or "self"
  std::string model = {};    // a student, a model or run, that learns on; empty: a new one
  std::string dump = {};     // of the teacher; empty: the teacher runs next to the student
  bool trust_dump = false;   // no sample of it is compared with the teacher
  std::vector<std::string> data = {},
                           valid = {};  // text files or token shards; data: of a task a directory
  int64_t top_logits = 0;
  int64_t copies = 1;          // see WindowSource
  Stage stage = Stage::joint;  // attention: as a Conversion of that stage alone
  TextMixture text = {};       // of text; empty members: windows of sequence_length tokens
  TaskSettings task = {};
  Recipe recipe = {};

  void describe(data::Schema& s);
  bool on_task() const { return !task.task.empty(); }
  bool mixes() const { return text.lengths || text.retrieval_share; }
  bool self_taught() const { return teacher == "self"; }
};

// Loads teacher, student and data and resolves the recipe of `what`; a resumed run keeps its
// recipe unless one is named. The result refers to itself and to nothing of `what`.
std::unique_ptr<TrainingRun> prepare(Distillation& what, const RunOptions& options,
                                     const RunHost& host);

}  // namespace brine::distill
