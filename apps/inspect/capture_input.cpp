// The tokens that `brine inspect --capture` sends through a model.
#include "apps/inspect/capture_input.h"

#include <charconv>

#include "apps/cli/terminal.h"
#include "data/corpus/corpus.h"
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

std::vector<int32_t> capture_ids(const CaptureInput& in, const nn::LoadedModel& m) {
  check(int(!in.text.empty()) + int(!in.tokens.empty()) + int(!in.data.empty()) == 1,
        "--capture needs one of --text, --tokens and --data");
  if (!in.tokens.empty()) return parse_ids(in.tokens);
  const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
  const bool encoder = !m.config.shape().causal;
  if (!in.text.empty())
    return encoder ? tokenizer->encode_pair(in.text).ids : tokenizer->encode(in.text);
  const int64_t length = in.sequence_length ? in.sequence_length : m.config.shape().max_positions;
  const data::TokenCorpus corpus = data::load_corpus(in.data, *tokenizer, length);
  check(in.window < corpus.windows(), in.data[0], ": has ", corpus.windows(), " windows of ",
        length, " tokens, there is no window ", in.window);
  return corpus.window(in.window);
}

}  // namespace brine
