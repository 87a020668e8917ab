// A model's perplexity on text by a named protocol, with its mask recall next to a teacher.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "data/tokenizer/tokenizer.h"
#include "distill/evaluation/evaluate.h"
#include "distill/evaluation/health/mask_health.h"
#include "distill/inputs/models.h"
#include "distill/log/device_memory.h"
#include "distill/log/messages.h"
#include "nn/generate/text_generation.h"

namespace brine::distill {

// How a perplexity is measured, by name: what is read, how it is joined and cut, what is predicted.
// docs/evaluation.md describes them; windows is the default.
enum class ProtocolName { windows, sea, gptq, stride };
inline constexpr data::Named<ProtocolName> kProtocolNames[] = {{ProtocolName::windows, "windows"},
                                                               {ProtocolName::sea, "sea"},
                                                               {ProtocolName::gptq, "gptq"},
                                                               {ProtocolName::stride, "stride"}};

// A named protocol's tokens and windows, ready for evaluation. `windows` is not made here: it reads
// text as training does.
struct Protocol {
  std::string name, split;
  std::vector<std::string> files;
  std::string bos;           // in words
  std::string warning = {};  // about the text; empty: none
  std::vector<int32_t> tokens = {};
  int64_t window = 0, stride = 0;
  bool strided = false;  // windows overlap, and each token is predicted once

  int64_t windows() const;
  int64_t dropped() const;  // tokens at the end that are in no window
};

struct ProtocolRequest {
  ProtocolName name;  // not windows
  std::vector<std::string> files;
  int64_t window = 0;     // 0: the protocol's default
  int64_t stride = 0;     // 0: half of the window; only of "stride"
  int64_t positions = 0;  // of the model; a longer window is an error
};
// Reads and tokenises the files, or maps one directory of token shards of joined lines. Throws when
// the text fills no window.
Protocol make_protocol(const ProtocolRequest& request, const data::Tokenizer& tokenizer);

// How a text was joined and cut.
struct TextCut {
  std::string name = {}, split = {};  // of the protocol; of its data, empty for adjacent windows
  std::vector<std::string> files = {};
  std::string joining = {}, bos = {};
  int64_t window = 0, stride = 0, windows = 0, scored_windows = 0;
  int64_t tokens = 0, dropped_tokens = 0, predicted_tokens = 0;
};
// An object with these keys.
data::Json to_json(const TextCut& cut);

// The whole protocol in one sentence, and by field; `scored` of its windows, `predicted` tokens.
std::string describe(const Protocol& protocol, int64_t scored, int64_t predicted);
TextCut cut_of(const Protocol& protocol, int64_t scored, int64_t predicted);

Perplexity score(const Protocol& protocol, nn::Model& model, const EvaluateCall& call);

// How a sparse attention is computed: by the sparse path, or by the T x T reference.
enum class AttentionPath { sparse, dense };
inline constexpr data::Named<AttentionPath> kAttentionPaths[] = {{AttentionPath::sparse, "sparse"},
                                                                 {AttentionPath::dense, "dense"}};

struct TextEvaluation {
  std::vector<std::string> data;  // text files or token shards
  ProtocolName protocol = ProtocolName::windows;
  std::string teacher;  // whose attention the mask should cover; empty: no mask recall
  int64_t sequence_length = 0, stride = 0;  // 0: the protocol's, else the model's positions
  int64_t batch_size = 8, max_windows = 0, loss_from = 0;
  int64_t k = 0, query_skip = 1;
  std::optional<nn::Cache> cache;  // read through one of this type; none: in one pass
  int64_t prefill = 512;           // tokens of a part that is read so
  AttentionPath path = AttentionPath::sparse;
  Communicator* ranks = nullptr;  // that divide the windows (EvaluateCall)

  std::optional<nn::CachedReading> reading() const {
    if (!cache) return std::nullopt;
    return nn::CachedReading{nn::cache_type(*cache), *cache == nn::Cache::q8, prefill};
  }
  nn::RuntimeOptions options() const {
    return {.k = k, .query_skip = query_skip, .dense_path = path == AttentionPath::dense};
  }
};

struct TextResult {
  std::string model, attention;
  std::optional<int64_t> k = {}, query_skip = {};  // where the method has them
  Dtype compute = Dtype::f32;
  std::string path = {};                                      // of a sparse method
  std::optional<std::pair<std::string, int64_t>> cache = {};  // its type, tokens of a part
  Perplexity perplexity = {};
  std::string protocol = {};  // in words
  TextCut cut = {};
  std::vector<MaskRow> mask_recall = {};  // by layer, with a teacher
  std::optional<double> keys_read = {};   // of full attention and of masks (KeysRead)
  // Of the start of the first window next to the model's dense attention: of a learned mask without
  // a teacher.
  std::optional<MaskHealth> mask_health = {};
  std::optional<DevicePeak> peak = {};
};
// `name`: the model's, which is calibrated on the first window if it must be. A mask that has
// degenerated is a warning.
TextResult evaluate_text(const std::string& name, const nn::LoadedModel& model,
                         const data::Tokenizer& tokenizer, const TextEvaluation& call,
                         const Messages& messages);
// "model", "attention", "k", "query_skip", "compute", "path", "perplexity", "nll", "tokens",
// "protocol", "cut", and what there is of "cache", "prefill", "keys_read", "mask_recall",
// "mask_health".
data::Json to_json(const TextResult& result);

}  // namespace brine::distill
