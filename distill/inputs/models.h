// Models, tokenizers and texts from files, compared with each other, with what their files say
// reported.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "data/corpus/corpus.h"
#include "distill/batches/batch.h"
#include "distill/log/messages.h"
#include "nn/io/model_io.h"
#include "nn/models/model_config.h"

namespace brine::distill {

// The teacher of this name is the model itself, with dense attention.
inline constexpr const char* kSelf = "self";

// Whether a command gives a model the tokens of a text, or only writes the tokenizer's files.
enum class Tokens : uint8_t { read, copied };
// Compares the tokens that a model has rows for with those of its tokenizer; every command that
// takes a tokenizer calls this before its work. More tokens than rows are an error, or a warning
// where they are only copied. A few more rows pad the vocabulary to a round number, many cause a
// warning. Also warns of the tokenizer's notes().
void compare_vocabularies(const nn::ModelConfig& config, const data::Tokenizer& tokenizer,
                          const Messages& messages, Tokens tokens = Tokens::read);
// The same for a teacher that reads the tokens next to a model; `teacher` may be "" or "self".
void compare_teacher(const std::string& teacher, const data::Tokenizer& tokenizer,
                     const Messages& messages);
// The tokenizer next to a model, compared with it.
std::unique_ptr<data::Tokenizer> tokenizer_of(const nn::LoadedModel& loaded,
                                              const Messages& messages,
                                              Tokens tokens = Tokens::read);
// The tokenizer to write with a model, null if there is none; warns of that, and of a tokenizer
// with too many tokens or that transformers would replace.
std::unique_ptr<data::Tokenizer> tokenizer_to_export(const nn::LoadedModel& loaded,
                                                     const Messages& messages);
// Another attention method for a loaded model, as commands take it: --attention METHOD and
// --attention.KEY VALUE.
struct OtherAttention {
  nn::ModelConfig config;           // of which the attention counts
  std::set<std::string> keys = {};  // its keys that were set

  OtherAttention() { config.attention.clear(); }
  void describe(data::Schema& s);
};
// Replaces the attention of a loaded model by another method with these settings, an object by
// key, without training; "" changes nothing.
void use_attention(nn::LoadedModel& model, const std::string& method, const data::Json& settings);
void use_attention(nn::LoadedModel& model, const std::string& method);
void use_attention(nn::LoadedModel& model, OtherAttention& other);
// Calibrates the attention of a model that use_attention() gave one (nn::calibrate_attention) on
// the start of a text, ids [1, T], and says so.
void calibrate_on(const nn::LoadedModel& model, const Tensor& ids, const Messages& messages);
// Throws for a model that classifies texts and predicts no tokens: a command needs a task then.
void refuse_classifier(const nn::LoadedModel& model, const char* command);
// Warns of a mask that hides nothing: k (0: as configured) covers texts of at most `tokens`.
void warn_if_all_kept(const nn::ModelConfig& config, int64_t k, int64_t tokens,
                      const Messages& messages);

// Loads a model and reports how its files were read and which damaged checkpoints of its run were
// skipped.
nn::LoadedModel load_model(const std::string& path, const Messages& messages,
                           const nn::LoadOptions& options = {});

// Text files as tokens for windows of `window` tokens; reports the numbers of windows and tokens
// and what is dropped.
data::TokenCorpus load_texts(const std::vector<std::string>& files,
                             const data::Tokenizer& tokenizer, int64_t window,
                             const Messages& messages);

// All windows of a corpus that load_texts() gave for the same `window`.
std::unique_ptr<WindowSource> windows_of(data::TokenCorpus corpus, int64_t window, uint64_t seed);

// The length of a run's windows: `asked`, or for 0 all positions. Throws when it is too long.
int64_t window_of(int64_t asked, const nn::ModelConfig& config, const std::string& what);

}  // namespace brine::distill
