// brine tokenize: converts a corpus of any size to token shards, which training maps.
#include <chrono>

#include "apps/cli/program.h"
#include "apps/cli/terminal.h"
#include "data/corpus/tokenize_files.h"
#include "data/io/human.h"
#include "tensor/device/device.h"

namespace brine {
namespace {

enum class Joining { documents, lines };

struct Tokenize {
  std::string tokenizer, out, separator = "auto";
  Joining joining = Joining::documents;
  std::vector<std::string> files;
  std::optional<std::string> key;
  int64_t shard_mib = 256;

  void describe(data::Schema& s) {
    s.field("tokenizer", tokenizer, "Tokenizer or model directory", {.required = true});
    s.field("files", files,
            "Text, .jsonl, and both inside gzip, xz, zstd, tar, zip and 7z (OpenWebText's archive)",
            {.required = true, .positional = true});
    s.field("out", out, "New directory of token shards", {.required = true});
    s.field("key", key, "Key of the text in a line of .jsonl", {.unset = "\"text\""});
    s.field("separator", separator,
            "Token after every document; auto: the tokenizer's eos if it has one; none");
    s.choice("joining", joining, {{Joining::documents, "documents"}, {Joining::lines, "lines"}},
             "lines: one document, the lines of the text files joined as the protocols of brine "
             "eval join them (docs/evaluation.md)");
    s.field("shard_mib", shard_mib, "Largest shard in MiB", {.min = 1, .max = 1 << 20});
  }

  int run(const RunContext&);
};

std::optional<int32_t> separator_id(const std::string& separator, const data::Tokenizer& t) {
  if (separator == "none") return std::nullopt;
  if (separator == "auto") {
    if (!t.special().eos)
      log_warning("tokenize: the tokenizer has no eos token, so documents are not separated");
    return t.special().eos;
  }
  const std::optional<int32_t> id = t.id_of(separator);
  check(id.has_value(), "tokenize: the separator \"", separator, "\" is not a token");
  return id;
}

int Tokenize::run(const RunContext&) {
  const bool lines = joining == Joining::lines;
  if (lines) {
    check(separator == "auto" || separator == "none",
          "tokenize: --joining lines does not use --separator ", separator);
    check(!key, "tokenize: --joining lines does not use --key");
    separator = "none";
  }
  std::vector<std::unique_ptr<data::Tokenizer>> tokenizers;  // each thread has its own cache of
                                                             // words
  for (int i = 0; i < threads(); ++i) tokenizers.push_back(data::load_tokenizer(tokenizer));
  data::TokenizeOptions options{.documents = {.key = key.value_or("text")},
                                .separator = separator_id(separator, *tokenizers[0]),
                                .joined_lines = lines,
                                .shard_bytes = uint64_t(shard_mib) << 20};
  const auto start = std::chrono::steady_clock::now();
  const data::TokenManifest m = data::tokenize_files(files, out, tokenizers, options);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string between = m.separator
                                  ? join("each followed by ", tokenizers[0]->token_of(*m.separator))
                                  : std::string("without a separator");
  log_info(out, ": ", m.tokens, " tokens of ", 8 * m.width, " bits, ", m.documents, " documents, ",
           between, ", ", m.shards.size(), " shards, ", human_seconds(seconds), ", ",
           human_count(double(m.tokens) / std::max(seconds, 1e-9)), " tokens/s");
  return 0;
}

const RegisterSubcommand<Tokenize> registration("tokenize", "Convert a corpus to token shards");

}  // namespace
}  // namespace brine
