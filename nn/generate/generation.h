// Continuing prompts token by token, as a batch; each sequence ends by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/safetensors/safetensors.h"
#include "data/tokenizer/tokenizer.h"
#include "nn/models/model_state.h"

namespace brine::nn {

// A text that arrives in pieces of bytes, token by token, and is returned in whole characters; a
// stop text ends it.

class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the bytes of a token. True when a stop text is complete: the whole text is then the part
  // before the earliest one, and further tokens are ignored.
  bool push(std::string_view bytes);
  // The text that can be shown now and was not yet: whole UTF-8 characters, and nothing that may
  // become the beginning of a stop text. `ended`: no more tokens follow, so all of it.
  std::string take(bool ended);

  const std::string& text() const { return text_; }

 private:
  std::vector<std::string> stops_;
  std::string text_;
  size_t shown_ = 0;
  bool stopped_ = false;
};

// The number of bytes at the start of `text` that are whole characters: a character cut off at the
// end is excluded, invalid bytes count as characters.
size_t whole_characters(std::string_view text);

struct Sampling {
  double temperature = 0.8;  // 0 takes the likeliest token
  int64_t top_k = 0;         // only the k likeliest; 0 = all
  double top_p = 0.95;       // then only the likeliest that have this share of the remaining mass
};

// One of the ids 0 .. logits.size() - 1, selected by a number `uniform` in (0, 1). Of equally
// likely tokens the lower id counts as the likelier. Throws when a logit is NaN or all are
// infinite.
int32_t sample(std::span<const float> logits, const Sampling& how, double uniform);

struct GenerationRequest {
  int64_t tokens = 64;  // to add to each prompt
  Sampling how;
  uint64_t seed = 1;
  std::vector<int32_t> stop_tokens;  // any of them ends a sequence, as its last token
  std::vector<std::string> stops;    // a text that ends it; the text and everything after it are
                                     // cut off
  // Called after every token with the number and the new text of its sequence; true ends it, as a
  // stop text does but with nothing cut off.
  std::function<bool(size_t i, const std::string& text)> stop_when = {};
  RuntimeOptions options;
  std::optional<Dtype> cache = {};  // StateRequest::cache and coded
  bool coded = false;
  int64_t part = 0;          // of a prompt, in tokens: prefill()
  int64_t vocabulary = 0;    // ids of the tokenizer: others are never sampled
  bool keep_states = false;  // for save()
};

// Why a continuation ended.
enum class Finish : uint8_t { tokens, stop_token, stop_text, positions };
inline constexpr data::Named<Finish> kFinishes[] = {{Finish::tokens, "tokens"},
                                                    {Finish::stop_token, "stop token"},
                                                    {Finish::stop_text, "stop text"},
                                                    {Finish::positions, "positions"}};

// One prompt and its continuation. Token n of sequence i is drawn with the n-th number of the i-th
// stream of the seed: the same alone, in a batch, and when continued.
struct Sequence {
  std::vector<int32_t> ids;      // the prompt and the tokens added
  int64_t prompt_tokens = 0;     // of ids
  int64_t drawn = 0;             // tokens that were sampled, over all continuations
  std::optional<Finish> finish;  // empty: it goes on
  TextStream text{{}};           // of the tokens added now
};

// What a generation needs beyond the model: bytes of the state, and of what is computed at once.
struct GenerationMemory {
  int64_t tokens = 0, state = 0, part = 0;
  int64_t sum() const { return state + part; }
};

class Generation {
 public:
  // Called for every token that sequence i got, in order of time.
  using OnToken = std::function<void(size_t i, Sequence&)>;
  // The bytes of one token.
  using Spell = std::function<std::string(int32_t)>;

  Generation(Model& model, GenerationRequest request, Spell spell);

  // Either prompts...
  void start(const std::vector<std::vector<int32_t>>& prompts);
  // ...or the file of save(), each sequence continued by `more` (one list for each, or none at
  // all). The file must be from a model with this hash, decoded with these options. Errors name the
  // file. `before`, if given, gets the memory that this takes; false: nothing is read.
  void load(const data::Path& path, const std::string& model_hash,
            const std::vector<std::vector<int32_t>>& more,
            const std::function<bool(const GenerationMemory&)>& before = {});

  void run(const OnToken& on_token = {});
  // The states of all sequences (request.keep_states), to continue from later.
  void save(const data::Path& path, const std::string& model_hash) const;

  const std::vector<Sequence>& sequences() const { return sequences_; }
  double prompt_seconds() const { return prompt_seconds_; }  // spent in start() or load()
  double run_seconds() const { return run_seconds_; }
  int64_t steps() const { return steps_; }
  int64_t state_bytes() const { return state_ ? state_->bytes() : 0; }

 private:
  void make_room();
  // Samples from row `row` of the logits for the sequence in that slot; true when it continues.
  bool extend(const Tensor& logits, int64_t row);
  void put_aside(int64_t slot);

  Model& model_;
  GenerationRequest request_;
  Spell spell_;
  std::vector<Sequence> sequences_;
  std::unique_ptr<ModelState> state_;
  std::vector<size_t> in_slot_;  // the sequence in a slot
  std::vector<Tensor> hidden_;   // [1, E] of each sequence, after its last token; before run()
  std::vector<std::vector<NamedTensor>> finished_;  // states of sequences, by sequence
  double prompt_seconds_ = 0, run_seconds_ = 0;
  int64_t steps_ = 0;
};

// Of `sequences` sequences, the longest prompt of `longest` tokens.
GenerationMemory memory_of(const Model& model, const GenerationRequest& request, int64_t sequences,
                           int64_t longest);
// Of hidden_through_cache(), which reads one sequence of `tokens` tokens after another.
GenerationMemory memory_of(const Model& model, const CachedReading& reading,
                           const RuntimeOptions& options, int64_t tokens);
// The free bytes of the machine, or of the GPU that is used.
double free_memory();
// Throws an Error that begins with `who` if that is less.
void check_fits(const GenerationMemory& memory, const std::string& who);

struct LoadedModel;  // of model_io.h
// Gives a model that is not calibrated what the one had that wrote a file of save().
void take_calibration(const LoadedModel& model, const data::Path& path);

}  // namespace brine::nn
