// The samples of a dump as the windows of a run.
#pragma once

#include <memory>
#include <string>

#include "distill/runs/training_run.h"
#include "distill/teachers/dump_teacher.h"

namespace brine::distill {

inline constexpr const char* kTrustDumpHelp =
    "Do not compare a sample of the dump with the teacher first";

// The columns of the student's estimate; 0 when its attention method has none.
int64_t columns_of(const nn::ModelConfig& student);

struct GivenDump {
  std::string directory;
  bool trusted = false;  // no sample of it is compared
};
// Opens a dump of text and sets run.train to its samples: windows of `text`, or where there is none
// of their own tokens. run.config is the student's; tokenizer and teacher, which may be empty, must
// be the dump's, and the first sample what the teacher gives. Records the dump's hash with the
// run's inputs.
std::shared_ptr<DumpTeacher> use_dump(TrainingRun& run, const GivenDump& given,
                                      const nn::LoadedModel& teacher, const TextFiles& text,
                                      const RunHost& host);

}  // namespace brine::distill
