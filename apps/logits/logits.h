// What `brine logits` computes: a model's logits of a prompt or of windows of text.
#pragma once

#include <string>
#include <vector>

#include "data/config/schema.h"
#include "data/io/json.h"
#include "distill/evaluation/evaluate_text.h"
#include "nn/io/model_io.h"

namespace brine {

struct LogitRequest {
  std::string prompt;             // one text with the tokens that the tokenizer adds
  std::vector<std::string> data;  // text files or token shards
  std::string out;
  distill::OtherAttention attention;  // for use_attention(), which write_logits() does not call
  int64_t sequence_length = 0, max_windows = 0;
  int64_t k = 0, query_skip = 1;
  distill::AttentionPath path = distill::AttentionPath::sparse;

  void describe(data::Schema& s);
  // Throws unless one of prompt and data is given and `out` can be written.
  void validate() const;
};

// Writes `out` with "logits", f32 [T, V] of a prompt or [n, T, V] of n windows, and the ids
// "tokens", i32 [T] or [n, T]. One window is in memory at a time, and of its logits as many rows as
// fit in 64 MB. Returns "attention", "k", "query_skip", "compute", "path", "out", "shape" and
// "tokens", a list of ids or a list of lists. Throws, with nothing written, when the model has no
// head for tokens or the prompt is longer than its positions.
data::Json write_logits(nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                        const LogitRequest& what, const distill::Messages& messages);

}  // namespace brine
