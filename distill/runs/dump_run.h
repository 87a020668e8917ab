// Dumping a teacher: runs it over a text or a task once and stores what distillation needs in HDF5.
#pragma once

#include <string>
#include <vector>

#include "data/dump/dump.h"
#include "distill/runs/task_run.h"

namespace brine::distill {

struct DumpRequest {
  std::string out;                // directory of the dump
  std::vector<std::string> data;  // text files or token shards, or the directory of the task
  std::string task, split = "train", fields, labels;
  data::DumpContent content = data::DumpContent::qk;
  data::DumpLogits logits = data::DumpLogits::top;
  Dtype dtype = Dtype::f16;
  bool value = false, context = true, output = true;
  int64_t columns = 64;     // for pooled content
  int64_t top_logits = 64;  // for logits = top
  int64_t windows = 0;      // drawn with the seed; 0 = all
  int64_t samples = 0;      // texts of a task, evenly spaced; 0 = all
  int64_t sequence_length = 0, batch_size = 4, shard_mib = 1024, deflate = 0;
  bool shuffle = false, dry_run = false;

  void describe(data::Schema& s);
};

// Runs a teacher with dense attention and writes the dump, or continues an unfinished one. Returns
// false when `host.stop` ended it early: the same request continues.
bool dump_teacher(const nn::LoadedModel& teacher, const data::Tokenizer& tokenizer,
                  const DumpRequest& request, const RunHost& host);

}  // namespace brine::distill
