// brine inspect: what a path is; with --capture one forward pass from the inside.
#include <charconv>
#include <iostream>

#include "apps/cli/terminal.h"
#include "apps/shared/capture.h"
#include "apps/shared/inspect.h"
#include "apps/shared/training.h"
#include "data/corpus/corpus.h"

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
          "--tokens must be ids with commas between them, got \"", list, "\"");
    ids.push_back(id);
    at = end + 1;
  }
  return ids;
}

struct Inspect {
  std::string target, capture, text, tokens, path = "sparse";
  std::vector<std::string> data;
  int64_t window = 0, sequence_length = 0, k = 0;
  bool verify = false, tensors = false;

  void describe(data::Schema& s) {
    s.field("target", target, "Dump, run, checkpoint, model, tokenizer, safetensors or HDF5 file",
            {.required = true, .positional = true});
    s.field("verify", verify, "Compare the checksums of a dump");
    s.field("tensors", tensors, "List the tensors of a model");
    s.field("capture", capture, "New HDF5 file for every intermediate of one forward pass");
    s.field("text", text, "Capture: this text; an encoder's with its [CLS] and [SEP]");
    s.field("tokens", tokens, "Capture: these token ids, 1,2,3");
    s.field("data", data, "Capture: a window of these text files");
    s.field("window", window, "Capture: which window of the text files", {.min = 0});
    s.field("sequence_length", sequence_length,
            "Capture: tokens of a window; 0 = the model's positions", {.min = 0});
    s.field("k", k, "Capture: kept keys per query and head; 0 = as trained", {.min = 0});
    s.choice("path", path, {"sparse", "dense"},
             "Capture: dense is the T x T reference, of flash attention too");
  }

  std::vector<int32_t> ids(const nn::LoadedModel& m) const;
  int run(const RunContext& context);
};

std::vector<int32_t> Inspect::ids(const nn::LoadedModel& m) const {
  check(int(!text.empty()) + int(!tokens.empty()) + int(!data.empty()) == 1,
        "--capture wants one of --text, --tokens and --data");
  if (!tokens.empty()) return parse_ids(tokens);
  const std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_of(m);
  const bool encoder = !m.config.shape().causal;
  if (!text.empty()) return encoder ? tokenizer->encode_pair(text).ids : tokenizer->encode(text);
  const int64_t length = sequence_length ? sequence_length : m.config.shape().max_positions;
  const data::TokenCorpus corpus = data::load_corpus(data, *tokenizer, length);
  check(window < corpus.windows(), data[0], ": has ", corpus.windows(), " windows of ", length,
        " tokens, there is no window ", window);
  return corpus.window(window);
}

int Inspect::run(const RunContext& context) {
  if (capture.empty()) {
    refuse_idle(context, {"text", "tokens", "data", "window", "sequence_length", "k", "path"},
                "without --capture");
    std::cout << inspect(target, {.verify = verify, .tensors = tensors});
    return 0;
  }
  refuse_idle(context, {"verify", "tensors"}, "with --capture");
  if (data.empty()) refuse_idle(context, {"window", "sequence_length"}, "without --data");
  nn::LoadedModel m = nn::load_model(target, {.map = true});
  if (!m.model->attention_traits().sparse)
    refuse_idle(context, {"k"}, "on attention '" + m.config.attention + "', which keeps every key");
  if (path == "dense" && m.config.attention == "flash") {  // it makes no maps
    m.config.attention = "dense";
    m.model = nn::make_student(m.config, *m.model, 0);
  }
  const std::vector<int32_t> sequence = ids(m);
  brine::capture(
      m, {.ids = sequence, .dials = {.k = k, .dense_path = path == "dense"}, .model = m.directory},
      capture);
  log_info(capture, ": ", sequence.size(), " tokens through ", m.config.shape().layers,
           " layers of ", m.config.attention);
  return 0;
}

const RegisterSubcommand<Inspect> registration("inspect", "Say what a path is; capture a pass");

}  // namespace
}  // namespace brine
