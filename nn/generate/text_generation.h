// What a generation of text is: prompts, length, sampling, where it ends, states in and out.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "nn/generate/generation.h"
#include "nn/io/model_io.h"

namespace brine::nn {

// The type of the keys and values that a decoding state keeps; exact: features too, in f32; q8:
// codes of 8 bits.
enum class Cache : uint8_t { f32, bf16, f16, q8, exact };
inline constexpr data::Named<Cache> kCaches[] = {{Cache::f32, "f32"},
                                                 {Cache::bf16, "bf16"},
                                                 {Cache::f16, "f16"},
                                                 {Cache::q8, "q8"},
                                                 {Cache::exact, "exact"}};
// As StateRequest::cache.
std::optional<Dtype> cache_type(Cache cache);

struct TextGeneration {
  std::vector<std::string> prompt;
  std::string prompt_file;  // one prompt a line
  std::string document;     // a file that is one prompt
  int64_t tokens = 64;      // to add to each prompt
  Sampling how;
  std::vector<std::string> stop, stop_token;  // texts and tokens that end a continuation
  bool ignore_eos = false;                    // the tokenizer's eos does not end one
  int64_t k = 0, query_skip = 1;              // RuntimeOptions
  Cache cache = Cache::f32;
  std::optional<int64_t> prefill;      // tokens of a prompt that are read at once
  std::string save_state, load_state;  // files of Generation

  void describe(data::Schema& s);
  // The texts of `prompt` or of the file. Throws when both are there or nothing is to be continued,
  // and when the directory of save_state is missing.
  std::vector<std::string> prompts() const;
  // `ends`: end_tokens(). Throws when the tokenizer does not have one of the stop tokens.
  GenerationRequest request(const data::Tokenizer& tokenizer, const std::vector<int32_t>& ends,
                            uint64_t seed) const;
};

// The tokens that end a text, as in transformers: those of generation_config.json, else those of
// config.json; of a model whose files have none, the tokenizer's end of text. Throws for a
// generation_config.json that cannot be read.
std::vector<int32_t> end_tokens(const LoadedModel& model, const data::Tokenizer& tokenizer);

// One line that names the settings of generation_config.json that change a text and that a
// generation does not apply: penalties, suppressed tokens, beams, a length that would end it; keys
// of sampling if the file samples and the command has none of its own. Empty if there are none.
std::string unapplied_settings(const LoadedModel& model, const TextGeneration& what,
                               int64_t prompt_tokens);

// A generation that has read its prompts, or the states of load_state and the prompts after them.
// A prompt without a state begins as data::prompt_tokens() says, which `warn` is for; after one it
// continues the text. `before`, if given, sees what prompts need before they are read; if it
// returns false they are not. The model and the tokenizer must outlive it.
Generation begin_generation(LoadedModel& model, const data::Tokenizer& tokenizer,
                            const TextGeneration& what, const std::vector<std::string>& prompts,
                            uint64_t seed, const std::function<void(const std::string&)>& warn = {},
                            const std::function<bool(const GenerationMemory&)>& before = {});

// The text that each sequence has now, without the tokens that the tokenizer puts in front of it.
std::vector<std::string> texts_of(const Generation& generation, const data::Tokenizer& tokenizer);

}  // namespace brine::nn
