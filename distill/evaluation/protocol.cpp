// The named protocols, which differ in a few properties, listed in one table.
#include "distill/evaluation/protocol.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/corpus/corpus.h"
#include "data/corpus/token_shards.h"
#include "data/tokenizer/prompt_tokens.h"

namespace brine::distill {
namespace {

constexpr const char* kJoining = "lines joined by two newlines, blank ones as empty texts";

struct Facts {
  ProtocolName name;
  const char* split;
  bool bos;        // adds the tokens that the tokenizer puts in front of a text, once
  int64_t window;  // 0: the model's positions
  bool strided;
};
constexpr Facts kFacts[] = {{ProtocolName::sea, "validation", false, 2048, false},
                            {ProtocolName::gptq, "test", true, 2048, false},
                            {ProtocolName::stride, "test", true, 0, true}};

const Facts& facts_of(ProtocolName name) {
  for (const Facts& facts : kFacts) {
    if (name == facts.name) return facts;
  }
  throw Error("eval: the protocol windows is scored as WindowSource cuts the text");
}

std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : " ") + name;
  return out;
}

// Shards can replace text if they contain its joined lines: the same tokens, however the text is
// cut.
std::vector<int32_t> tokens_of(const Protocol& p, const data::Tokenizer& tokenizer) {
  for (const std::string& file : p.files) {
    if (!std::filesystem::is_directory(file)) continue;
    const data::TokenManifest manifest = data::read_token_manifest(file);
    check(manifest.joining == data::Joining::lines, file, ": protocol ", p.name,
          " joins the lines of text files, these shards hold whole documents; brine tokenize "
          "--joining lines makes such that can be used");
    check(p.files.size() == 1, file, ": protocol ", p.name,
          " needs a single directory of shards: the text between two texts is tokenised with "
          "them");
    const data::TokenCorpus corpus = data::load_corpus({file}, tokenizer, 2);
    return corpus.tokens->slice(0, corpus.tokens->size());
  }
  return tokenizer.encode(data::read_joined_lines(p.files));
}

}  // namespace

int64_t Protocol::windows() const {
  const auto size = int64_t(tokens.size());
  return strided ? StridedWindows{window, stride}.count(size) : size / window;
}

int64_t Protocol::dropped() const { return strided ? 0 : int64_t(tokens.size()) % window; }

Protocol make_protocol(const ProtocolRequest& request, const data::Tokenizer& tokenizer) {
  const Facts& facts = facts_of(request.name);
  Protocol p{.name = data::name_of(request.name, kProtocolNames),
             .split = facts.split,
             .files = request.files,
             .bos = "no BOS",
             .strided = facts.strided};
  p.window = request.window ? request.window : facts.window ? facts.window : request.positions;
  check(p.window >= 2 && p.window <= request.positions, "eval: protocol ", p.name, ": a window of ",
        p.window, " tokens does not fit the model's ", request.positions, " positions (--window)");
  check(facts.strided || request.stride == 0, "eval: --stride is for the protocol stride, not ",
        p.name);
  p.stride = !facts.strided ? p.window : request.stride ? request.stride : p.window / 2;
  check(p.stride <= p.window, "eval: --stride ", p.stride, " skips tokens: windows have ",
        p.window);
  if (facts.bos) {
    p.tokens = tokenizer.around().front;
    p.bos = p.tokens.empty() ? "no BOS (the tokenizer has none in front of a text)" : "BOS";
    for (int32_t id : p.tokens) p.bos += " " + tokenizer.token_of(id);
    if (!p.tokens.empty()) p.bos += " once in front";
  }
  const std::vector<int32_t> text = tokens_of(p, tokenizer);
  p.warning = data::repeated_front(tokenizer, p.tokens, text);
  p.tokens.insert(p.tokens.end(), text.begin(), text.end());
  const auto size = int64_t(p.tokens.size());
  check(facts.strided ? size >= 2 : size >= p.window, joined(p.files), ": ", size,
        " tokens do not fill one window of ", p.window);
  return p;
}

std::string describe(const Protocol& p, int64_t scored, int64_t predicted) {
  const std::string part =
      scored < p.windows() ? join("the first ", scored, " of ") : std::string();
  const std::string rest =
      p.strided
          ? "nothing dropped, each token predicted once and weighed alike, those before it context"
          : join("the last ", p.dropped(), " tokens dropped, each window by itself");
  return join("protocol ", p.name, ": split ", p.split, " from ", joined(p.files), ", ", kJoining,
              ", ", p.bos, ", ", part, p.windows(), " windows of ", p.window, " tokens, stride ",
              p.stride, ", ", rest, ", ", p.tokens.size(), " tokens, ", predicted,
              " predicted tokens");
}

TextCut cut_of(const Protocol& p, int64_t scored, int64_t predicted) {
  return {.name = p.name,
          .split = p.split,
          .files = p.files,
          .joining = kJoining,
          .bos = p.bos,
          .window = p.window,
          .stride = p.stride,
          .windows = p.windows(),
          .scored_windows = scored,
          .tokens = int64_t(p.tokens.size()),
          .dropped_tokens = p.dropped(),
          .predicted_tokens = predicted};
}

data::Json to_json(const TextCut& cut) {
  return {{"name", cut.name},
          {"split", cut.split.empty() ? data::Json() : data::Json(cut.split)},
          {"files", cut.files},
          {"joining", cut.joining},
          {"bos", cut.bos},
          {"window", cut.window},
          {"stride", cut.stride},
          {"windows", cut.windows},
          {"scored_windows", cut.scored_windows},
          {"tokens", cut.tokens},
          {"dropped_tokens", cut.dropped_tokens},
          {"predicted_tokens", cut.predicted_tokens}};
}

distill::Perplexity score(const Protocol& p, nn::Model& model, const distill::EvaluateCall& call) {
  if (p.strided) {
    return distill::evaluate_strided(model, p.tokens, {p.window, p.stride}, call);
  }
  return distill::evaluate(model, distill::WindowSource(p.tokens, p.window, 0), call);
}

}  // namespace brine::distill
