// What a capture is: the tokens that go through the model, and how its attention is computed.
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

}  // namespace

void CaptureInput::describe(data::Schema& s) {
  s.field("text", text, "Capture: this text; an encoder's with its [CLS] and [SEP]");
  s.field("tokens", tokens, "Capture: these token ids, 1,2,3");
  s.field("data", data, "Capture: a window of these text files");
  s.field("window", window, "Capture: which window of the text files", {.min = 0});
  s.field("sequence_length", sequence_length,
          "Capture: tokens of a window; 0 = the model's positions", {.min = 0});
  s.field("k", k, "Capture: kept keys per query and head; 0 = as trained", {.min = 0});
  s.choice("path", path, distill::kAttentionPaths,
           "Capture: dense is the T x T reference, of flash attention too");
}

CaptureCall capture_call(const CaptureInput& in, nn::LoadedModel& m) {
  const bool dense = in.path == distill::AttentionPath::dense;
  if (dense && nn::is_full_attention(m.config.attention) && !m.model->attention_traits().maps) {
    distill::use_attention(m, "dense");
  }
  return {
      .ids = capture_ids(in, m), .options = {.k = in.k, .dense_path = dense}, .model = m.directory};
}

}  // namespace brine
