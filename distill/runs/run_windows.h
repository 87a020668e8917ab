// The windows of a run: of mixed lengths with retrieval among them, or the samples of a dump.
#pragma once

#include <string>

#include "distill/batches/mixed_source.h"
#include "distill/runs/training_run.h"
#include "distill/teachers/dump_teacher.h"

namespace brine::distill {

// Sets the batches of a run whose model, tokenizer and trainer settings are decided. `text` is
// decided; `model_directory` is the place of the tokenizer. `variant`: another order and other
// retrieval with the same seed.
struct MixedText {
  const TextMixture& text;
  const TextFiles& files;  // `window` is that of the text to evaluate on
  std::string model_directory;
  uint64_t variant = 0;
};
void use_mixed_text(TrainingRun& run, const MixedText& mixed, const RunHost& host);

inline constexpr const char* kTrustDumpHelp =
    "Do not compare a sample of the dump with the teacher first";

// The columns of the student's estimate; 0 when its attention method has none.
int64_t columns_of(const nn::ModelConfig& student);

struct GivenDump {
  std::string directory;
  bool trusted = false;  // no sample of it is compared
};
// Opens a dump of text and sets run.train to its samples: windows of `text`, or where there is none
// of their stored tokens. run.config is the student's; tokenizer and teacher, which may be empty,
// must be the dump's, and the first sample what the teacher gives. Records the dump's hash with the
// run's inputs.
std::shared_ptr<DumpTeacher> use_dump(TrainingRun& run, const GivenDump& given,
                                      const nn::LoadedModel& teacher, const TextFiles& text,
                                      const RunHost& host);

}  // namespace brine::distill
