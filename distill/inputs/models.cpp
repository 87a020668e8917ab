// Tokens that a model has rows for against those of its tokenizer, loading with reports, and
// windows of texts.
#include "distill/inputs/models.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "nn/io/shared_student.h"
#include "tensor/base/error.h"

namespace brine::distill {

namespace {

void compare_counts(const nn::ModelConfig& config, const data::Tokenizer& tokenizer,
                    const Messages& messages, Tokens tokens, const char* role) {
  constexpr int64_t kPadding = 128;
  const int64_t model = config.shape().vocab_size, known = tokenizer.vocab_size();
  const std::string both = join("the ", role, " has ", model, " tokens, the tokenizer ", known);
  if (known > model) {
    const std::string first = join(both, "; '", tokenizer.token_of(int32_t(known - 1)),
                                   "' has no row in the embedding: ");
    check(tokens == Tokens::copied, first, "give the ", role,
          "'s own tokenizer, or a model that was resized for these tokens");
    messages.warning(first, "a text that contains it is refused");
  } else if (model > known + kPadding) {
    messages.warning(both, "; is it the model's own?");
  } else if (model > known) {
    messages.info(both, "; the others are padding");
  }
}

}  // namespace

void compare_vocabularies(const nn::ModelConfig& config, const data::Tokenizer& tokenizer,
                          const Messages& messages, Tokens tokens) {
  for (const std::string& note : tokenizer.notes()) messages.warning(note);
  compare_counts(config, tokenizer, messages, tokens, "model");
}

void compare_teacher(const std::string& teacher, const data::Tokenizer& tokenizer,
                     const Messages& messages) {
  if (teacher.empty() || teacher == kSelf) return;
  compare_counts(nn::load_config(teacher), tokenizer, messages, Tokens::read, "teacher");
}

namespace {

void check_whole(const nn::LoadedModel& loaded) {
  check(loaded.config.family().is_whole(), loaded.directory, ": ", nn::kBlocksAlone);
}

}  // namespace

std::unique_ptr<data::Tokenizer> tokenizer_of(const nn::LoadedModel& loaded,
                                              const Messages& messages, Tokens tokens) {
  check_whole(loaded);
  std::unique_ptr<data::Tokenizer> tokenizer = nn::tokenizer_of(loaded.directory);
  compare_vocabularies(loaded.config, *tokenizer, messages, tokens);
  return tokenizer;
}

std::unique_ptr<data::Tokenizer> tokenizer_to_export(const nn::LoadedModel& loaded,
                                                     const Messages& messages) {
  check_whole(loaded);
  if (nn::tokenizer_location(loaded.directory).empty()) {
    messages.warning(loaded.directory, ": no tokenizer next to the model, so none is written");
    return nullptr;
  }
  std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_of(loaded, messages, Tokens::copied);
  const std::string replaced = nn::tokenizer_warning(loaded.config, *tokenizer);
  if (!replaced.empty()) messages.warning(replaced);
  return tokenizer;
}

void OtherAttention::describe(data::Schema& s) {
  config.describe_attention(s, "Under another attention method, without training");
  s.collect("attention", keys);
}

void use_attention(nn::LoadedModel& m, const std::string& method, const data::Json& settings) {
  const bool own = method == m.config.attention;
  if (method.empty() || (own && settings.empty())) return;
  check(!own || !settings.contains("preset"),
        "--preset has no effect with the model's own attention");
  nn::attention_method(method);  // throws for an unknown name and lists the known ones
  m.config.attention = method;
  data::Schema keys = data::schema_of(m.config.method());
  for (const auto& [key, value] : settings.items()) {
    check(keys.find(key), "attention '", method, "' has no setting ", key);
    keys.set(key, value);
  }
  nn::replace_attention(m);
}

void use_attention(nn::LoadedModel& m, const std::string& method) {
  use_attention(m, method, data::Json::object());
}

void use_attention(nn::LoadedModel& m, OtherAttention& other) {
  if (other.config.attention.empty()) return;
  const data::Json all = data::schema_of(other.config.method()).to_json();
  data::Json settings = data::Json::object();
  for (const std::string& key : other.keys) {
    if (all.contains(key)) settings[key] = all.at(key);
  }
  use_attention(m, other.config.attention, settings);
}

void calibrate_on(const nn::LoadedModel& m, const Tensor& ids, const Messages& messages) {
  if (!m.uncalibrated) return;
  const int64_t tokens = nn::calibrate_attention(m, ids);
  const int64_t block = m.model->attention_traits().k_step;
  if (tokens < block) {
    return messages.info(m.config.attention, ": key_scale is 1 everywhere: the first ", tokens,
                         " tokens fill no block of ", block);
  }
  messages.info(m.config.attention, ": key_scale calibrated on the first ",
                tokens < 1000
                    ? std::to_string(tokens)
                    : join(tokens / 1000, ",", std::to_string(1000 + tokens % 1000).substr(1)),
                " tokens");
}

void refuse_classifier(const nn::LoadedModel& model, const char* command) {
  check(model.model->labels() == 0 || model.model->has_logits(), command, ": ", model.directory,
        " classifies texts; --task names their task in eval, dump and distill, --task tsv takes "
        "files of your own");
}

void warn_if_all_kept(const nn::ModelConfig& config, int64_t k, int64_t tokens,
                      const Messages& messages) {
  const std::optional<int64_t> configured = config.method().mask().k;
  if (!configured || (k ? k : *configured) < tokens) return;
  messages.warning(config.attention, ": k = ", k ? k : *configured,
                   " keeps every key of texts of at most ", tokens,
                   " tokens, so this attention is full attention; give a smaller --k");
}

nn::LoadedModel load_model(const std::string& path, const Messages& messages,
                           const nn::LoadOptions& options) {
  nn::LoadedModel loaded = nn::load_model(path, options);
  for (const std::string& why : loaded.notes) messages.warning("checkpoint skipped: ", why);
  for (const std::string& line : loaded.remarks) messages.info(line);
  return loaded;
}

data::TokenCorpus load_texts(const std::vector<std::string>& files,
                             const data::Tokenizer& tokenizer, int64_t window,
                             const Messages& messages) {
  data::TokenCorpus corpus = data::load_corpus(files, tokenizer, std::max<int64_t>(window, 2));
  std::string name = files.size() == 1 ? files[0] : join(files.size(), " files");
  messages.info(name, ": ", corpus.tokens->size(), " tokens, ", corpus.windows(), " windows of ",
                corpus.window_tokens, ", ", corpus.dropped(), " tokens at the end dropped");
  return corpus;
}

std::unique_ptr<WindowSource> windows_of(data::TokenCorpus corpus, int64_t window, uint64_t seed) {
  return std::make_unique<WindowSource>(std::move(corpus.tokens), window, seed);
}

int64_t window_of(int64_t asked, const nn::ModelConfig& config, const std::string& what) {
  const int64_t positions = config.shape().max_positions;
  const int64_t window = asked ? asked : positions;
  check(window <= positions, what, ": sequence_length ", window, " is longer than the model's ",
        positions, " positions");
  return window;
}

}  // namespace brine::distill
