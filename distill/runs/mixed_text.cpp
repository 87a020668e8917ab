// Mixed windows of a run's text.
#include "distill/runs/mixed_text.h"

namespace brine::distill {

void use_mixed_text(TrainingRun& run, const MixedText& mixed, const RunHost& host) {
  MixedSource::Config config{.lengths = parse_lengths(*mixed.text.lengths),
                             .retrieval_share = *mixed.text.retrieval_share,
                             .step_windows = run.trainer.batch_size * run.trainer.accumulate,
                             .turns = mixed.turns,
                             .seed = host.seed + (mixed.variant << 32)};
  for (const int64_t n : config.lengths) window_of(n, run.config, "windows");
  const TextFiles& files = mixed.files;
  data::TokenCorpus corpus = load_run_texts(run, files.role, files.train, files, host);
  Retrieval retrieval(corpus.tokens, nn::tokenizer_of(mixed.model_directory),
                      run.tokenizer->vocab_size());
  run.train = std::make_unique<MixedSource>(corpus.tokens, std::move(retrieval), config);
  use_valid_text(run, files, host);
}

}  // namespace brine::distill
