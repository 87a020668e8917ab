// How a perplexity is measured, by name: what is read, how it is joined and cut, what is predicted.
#pragma once

#include <string>
#include <vector>

#include "data/config/schema.h"
#include "data/tokenizer/tokenizer.h"
#include "distill/evaluation/evaluate.h"

namespace brine::distill {

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

distill::Perplexity score(const Protocol& protocol, nn::Model& model,
                          const distill::EvaluateCall& call);

}  // namespace brine::distill
