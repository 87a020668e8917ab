// brine tokenize: converts a corpus of any size to token shards, which training maps.
#include <chrono>

#include "apps/cli/program.h"
#include "apps/terminal/terminal.h"
#include "data/corpus/tokenize_request.h"
#include "data/io/human.h"
#include "tensor/device/device.h"

namespace brine {
namespace {

struct Tokenize {
  data::TokenizeRequest what;

  void describe(data::Schema& s) { what.describe(s); }

  int run(const RunContext&) {
    what.validate();
    // One for each thread, since a tokenizer has a cache of words.
    std::vector<std::unique_ptr<data::Tokenizer>> tokenizers;
    tokenizers.reserve(size_t(threads()));
    for (int i = 0; i < threads(); ++i) tokenizers.push_back(data::load_tokenizer(what.tokenizer));
    for (const std::string& note : tokenizers[0]->notes()) log_warning(note);
    const data::TokenizeOptions options =
        what.resolve(*tokenizers[0], [](const std::string& text) { log_warning(text); });
    const auto start = std::chrono::steady_clock::now();
    const data::TokenManifest m = data::tokenize_files(what.files, what.out, tokenizers, options);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    log_info(what.out, ": ", data::describe(m, *tokenizers[0]), ", ", human_seconds(seconds), ", ",
             human_count(double(m.tokens) / std::max(seconds, 1e-9)), " tokens/s");
    return 0;
  }
};

const RegisterSubcommand<Tokenize> registration(
    "tokenize", "Convert a corpus to token shards",
    {"brine tokenize --tokenizer TOK --out SHARDS CORPUS", "docs/formats.md"});

}  // namespace
}  // namespace brine
