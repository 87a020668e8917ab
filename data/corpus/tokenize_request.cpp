// What a tokenisation is: files, how their text is joined, the token between documents.
#include "data/corpus/tokenize_request.h"

namespace brine::data {
namespace {

std::optional<int32_t> separator_id(const std::string& separator, const Tokenizer& t,
                                    const std::function<void(const std::string&)>& warn) {
  if (const std::optional<SeparatorRule> rule = value_of(separator, kSeparatorRules)) {
    if (*rule == SeparatorRule::none) return std::nullopt;
    if (!t.special().eos)
      warn("tokenize: the tokenizer has no eos token, so documents are not separated");
    return t.special().eos;
  }
  const std::optional<int32_t> id = t.id_of(separator);
  check(id.has_value(), "tokenize: the separator \"", separator, "\" is not a token");
  return id;
}

}  // namespace

void TokenizeRequest::describe(Schema& s) {
  s.field("tokenizer", tokenizer, "Tokenizer or model directory", {.required = true});
  s.field("files", files, "Text or .jsonl, plain or in gzip",
          {.required = true, .positional = true});
  s.field("out", out, "New directory of token shards", {.required = true});
  s.field("key", key, "Key of the text in a line of .jsonl", {.unset = "\"text\""});
  s.field("separator", separator,
          "Token after every document; auto: the tokenizer's eos if it has one; none");
  s.choice("joining", joining, kJoinings,
           "lines: one document of joined lines, as the protocols of brine eval");
  s.field("shard_mib", shard_mib, "Largest shard in MiB", {.min = 1, .max = 1 << 20});
}

void TokenizeRequest::validate() const {
  if (joining == Joining::documents) return;
  check(value_of(separator, kSeparatorRules).has_value(),
        "tokenize: --joining lines does not use --separator ", separator);
  check(!key, "tokenize: --joining lines does not use --key");
}

TokenizeOptions TokenizeRequest::resolve(
    const Tokenizer& t, const std::function<void(const std::string&)>& warn) const {
  validate();
  const bool lines = joining == Joining::lines;
  return {.documents = {.key = key.value_or("text")},
          .separator = lines ? std::nullopt : separator_id(separator, t, warn),
          .joining = joining,
          .shard_bytes = uint64_t(shard_mib) << 20};
}

}  // namespace brine::data
