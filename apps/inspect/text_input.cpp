// The tokens of a text.
#include "apps/inspect/text_input.h"

#include <algorithm>
#include <charconv>

#include "apps/terminal/terminal.h"
#include "data/corpus/corpus.h"
#include "data/tokenizer/prompt_tokens.h"
#include "distill/runs/training_run.h"

namespace brine {
namespace {

// "1,2,3"
std::vector<int32_t> parse_ids(const std::string& list) {
  std::vector<int32_t> ids;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    int32_t id = -1;
    const auto [rest, error] = std::from_chars(list.data() + at, list.data() + end, id);
    check(error == std::errc() && rest == list.data() + end && id >= 0,
          "--tokens must be ids separated by commas, got \"", list, "\"");
    ids.push_back(id);
    at = end + 1;
  }
  return ids;
}

}  // namespace

void TextInput::describe(data::Schema& s) {
  // An empty value would otherwise be the same as none.
  s.field("text", text, "Maps: this text, with the tokens that the tokenizer adds to a text",
          {.then = [this] { check(!text.empty(), "--text is empty, wanted a text"); }});
  s.field("tokens", tokens, "Maps: these token ids, 1,2,3",
          {.then = [this] { check(!tokens.empty(), "--tokens is empty, wanted ids: 1,2,3"); }});
  s.field("data", data, "Maps: a window of these text files", {.then = [this] {
            const bool good = std::find(data.begin(), data.end(), "") == data.end();
            check(good, "--data has an empty name, wanted files");
          }});
  s.field("window", window, "Maps: which window of the text files", {.min = 0});
  s.field("sequence_length", sequence_length, "Maps: tokens of a window; 0 = the model's positions",
          {.min = 0});
  s.field("k", k, "Maps: kept keys per query and head; 0 = as trained", {.min = 0});
}

std::vector<int32_t> TextInput::ids(const nn::LoadedModel& m, const std::string& command) const {
  check(sources() == 1, command, " needs one of --text, --tokens and --data");
  if (!tokens.empty()) return parse_ids(tokens);
  const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
  if (!text.empty()) {
    return data::prompt_tokens(*tokenizer, text, [&](const std::string& warning) {
      log_warning(command, ": --text: ", warning);
    });
  }
  const int64_t length = sequence_length ? sequence_length : m.config.shape().max_positions;
  const data::TokenCorpus corpus = data::load_corpus(data, *tokenizer, length);
  check(window < corpus.windows(), data[0], ": has ", corpus.windows(), " windows of ", length,
        " tokens, there is no window ", window);
  return corpus.window(window);
}

}  // namespace brine
