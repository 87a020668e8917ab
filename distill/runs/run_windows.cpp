// The windows of a run: mixed, or those of a dump.
#include "distill/runs/run_windows.h"

#include <nlohmann/json.hpp>

#include "data/codec/sha256.h"

namespace brine::distill {

void use_mixed_text(TrainingRun& run, const MixedText& mixed, const RunHost& host) {
  MixedSource::Config config{.lengths = parse_lengths(*mixed.text.lengths),
                             .retrieval_share = *mixed.text.retrieval_share,
                             .step_windows = run.trainer.batch_size * run.trainer.accumulate,
                             .seed = host.seed + (mixed.variant << 32)};
  for (const int64_t n : config.lengths) window_of(n, run.config, "windows");
  const TextFiles& files = mixed.files;
  data::TokenCorpus corpus = load_run_texts(run, files.role, files.train, files, host);
  Retrieval retrieval(corpus.tokens, nn::tokenizer_of(mixed.model_directory),
                      run.tokenizer->vocab_size());
  run.train = std::make_unique<MixedSource>(corpus.tokens, std::move(retrieval), config);
  use_valid_text(run, files, host);
}

int64_t columns_of(const nn::ModelConfig& student) {
  data::Schema keys;
  student.method().describe(keys);
  return keys.find("columns") ? keys.to_json()["columns"].get<int64_t>() : 0;
}

std::shared_ptr<DumpTeacher> use_dump(TrainingRun& run, const GivenDump& given,
                                      const nn::LoadedModel& teacher, const TextFiles& text,
                                      const RunHost& host) {
  const std::string& dump = given.directory;
  const data::DumpSpec spec = data::read_manifest(dump).spec;
  const bool from_dump =
      spec.stores_tokens && (!spec.has_windows() || text.train.empty() || !run.tokenizer);
  check(from_dump || !text.train.empty(), dump,
        ": has the numbers of its windows, not their tokens, so --data is needed");
  check(from_dump || run.tokenizer, dump,
        ": has no tokens, and there is no teacher whose tokenizer reads --data");
  data::TokenCorpus corpus;
  if (!from_dump) corpus = load_run_texts(run, text.role, text.train, text, host);
  auto out = std::make_shared<DumpTeacher>(
      dump,
      DumpTeacher::Expected{.source = {.teacher_hash = teacher.model ? teacher.hash() : "",
                                       .tokenizer_hash = run.tokenizer ? run.tokenizer->hash() : "",
                                       .corpus_hash = from_dump ? "" : corpus.hash()},
                            .window = text.window,
                            .shape = run.config.shape(),
                            .columns = columns_of(run.config),
                            .own_tokens = from_dump});
  run.inputs["dump"] = data::sha256_file(dump + "/manifest.json");
  auto windows = out->samples(corpus.tokens, host.seed);
  if (!given.trusted) out->check_sample(teacher.model, windows->in_order(0, 1));
  run.train = std::move(windows);
  host.messages.info(dump, ": ", run.train->size(),
                     from_dump ? " windows of its own tokens" : " of these windows",
                     from_dump && !text.train.empty() ? "; the text of --data is not read" : "");
  return out;
}

}  // namespace brine::distill
