// A byte-level BPE tokenizer from the metadata of a GGUF file.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/post_processor.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/vocabulary.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

constexpr const char* kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

SortedJson byte_level_step(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

SortedJson sequence(const SortedJson& first, const SortedJson& second) {
  return {{"type", "Sequence"}, {"pretokenizers", SortedJson::array({first, second})}};
}

// The expression of Llama 3; Qwen 2's differs in the number of digits in a word.
SortedJson split_words(const char* digits) {
  const std::string pattern = join(kContractions, R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)", digits,
                                   R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
  const SortedJson split = {{"type", "Split"},
                            {"pattern", {{"Regex", pattern}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
  return sequence(split, byte_level_step(false));
}

// The parts of tokenizer.json that a name of llama.cpp's means.
struct Parts {
  SortedJson pre_tokenizer, normalizer;
  bool ignore_merges = false;
  bool adds_bos = false;  // if the file does not say it
};

// Names that llama.cpp gives the same expressions.
constexpr std::string_view kLikeGpt2[] = {
    "gpt-2",    "phi-2",   "jina-es",  "jina-de",        "jina-v2-es", "jina-v2-de",
    "gigachat", "a.x-4.0", "mellum",   "modern-bert",    "exaone4",    "mpt",
    "olmo",     "jais",    "trillion", "granite-docling"};
constexpr std::string_view kLikeSmollm[] = {"smollm",    "starcoder", "refact",    "command-r",
                                            "codeshell", "exaone",    "minerva-7b"};
constexpr std::string_view kLikeLlama3[] = {"llama-bpe", "llama3",    "llama-v3",
                                            "falcon3",   "falcon-h1", "pixtral",
                                            "midm-2.0",  "lfm2",      "jina-v5-nano"};
constexpr std::string_view kWordsOfLlama3[] = {"dbrx", "smaug-bpe"};  // with all merges
constexpr std::string_view kLikeQwen2[] = {"qwen2",  "deepseek-r1-qwen", "kormo",  "f2llmv2",
                                           "megrez", "stablelm2",        "hunyuan"};

Parts parts_of(const std::string& pre, const std::string& source) {
  auto in = [&](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), pre) != names.end();
  };
  if (in(kLikeGpt2)) return {byte_level_step(true), nullptr};
  if (in(kLikeSmollm))
    return {sequence({{"type", "Digits"}, {"individual_digits", true}}, byte_level_step(true)),
            nullptr};
  if (in(kLikeLlama3)) return {split_words(R"(\p{N}{1,3})"), nullptr, true, true};
  if (in(kWordsOfLlama3)) return {split_words(R"(\p{N}{1,3})"), nullptr};
  if (in(kLikeQwen2)) return {split_words(R"(\p{N})"), {{"type", "NFC"}}};
  check_format(
      !pre.empty(), source,
      ": names no pre-tokenizer (tokenizer.ggml.pre), as old files do, so that it is unknown "
      "how texts are cut; convert the model again with a newer llama.cpp");
  throw Error(join(source, ": the pre-tokenizer '", pre,
                   "' is not supported; supported are smollm, gpt-2, llama-bpe, qwen2 and the "
                   "other names that llama.cpp reads as one of these"),
              ErrorKind::format);
}

void read_tokens(const VocabularyMetadata& vocabulary, const std::string& source, BpeModel& model) {
  const size_t count = vocabulary.tokens.size();
  check_format(count > 0 && count < INT32_MAX, source, ": a vocabulary of ", count, " tokens");
  check_format(vocabulary.types.empty() || vocabulary.types.size() == count, source, ": ",
               vocabulary.types.size(), " token types for ", count, " tokens");
  model.tokens = vocabulary.tokens;
  for (size_t id = 0; id < vocabulary.types.size(); ++id) {
    const int32_t type = vocabulary.types[id];
    check_format(type >= kNormal && type < kByte, source, ": token ", id, " has the type ", type,
                 ", wanted 1 to 5");
    if (type == kUnused) model.tokens[id].clear();
  }
  for (size_t id = 0; id < count; ++id) {
    const std::string& token = model.tokens[id];
    check_format(is_utf8(token), source, ": token ", id, " is not UTF-8");
    const int32_t type = vocabulary.types.empty() ? kNormal : vocabulary.types[id];
    if (token.empty() || (type != kControl && type != kUserDefined)) continue;
    model.added.push_back({.id = int32_t(id), .content = token, .special = type == kControl});
  }
}

// A role whose id no token has is ignored, since most texts do not need it; the template does.
void read_special(const VocabularyMetadata& vocabulary, bool add_bos, const std::string& source,
                  BpeModel& model) {
  auto role = [&](std::optional<int64_t> id, const char* name) -> std::optional<int32_t> {
    if (!id) return std::nullopt;
    const auto count = int64_t(model.tokens.size());
    if (*id >= 0 && *id < count && !model.tokens[size_t(*id)].empty()) return int32_t(*id);
    model.notes.push_back(join(source, ": ", name, " is ", *id, ", which none of the ", count,
                               " tokens has: the role is ignored"));
    return std::nullopt;
  };
  model.special = {.bos = role(vocabulary.bos, "bos_token_id"),
                   .eos = role(vocabulary.eos, "eos_token_id"),
                   .pad = role(vocabulary.padding, "padding_token_id"),
                   .unk = role(vocabulary.unknown, "unknown_token_id")};
  const char* missing = add_bos && !model.special.bos              ? "bos"
                        : vocabulary.add_eos && !model.special.eos ? "eos"
                                                                   : nullptr;
  if (missing)
    model.no_template = join(source, ": a text gets the ", missing, " (add_", missing,
                             "_token), but ", missing, "_token_id is not the id of a token");
}

std::string config_from(const VocabularyMetadata& vocabulary, bool add_bos, const BpeModel& model) {
  Json config = special_map(model);
  config["add_bos_token"] = add_bos;
  config["add_eos_token"] = vocabulary.add_eos;
  if (!vocabulary.chat_template.empty()) config["chat_template"] = vocabulary.chat_template;
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  return json_text(config, 2) + "\n";
}

std::unique_ptr<Tokenizer> made(const VocabularyMetadata& vocabulary, const std::string& source) {
  check_format(vocabulary.model == "gpt2", source, ": the tokenizer model '", vocabulary.model,
               "' is not supported, wanted 'gpt2'");
  check_format(!vocabulary.add_space_prefix, source,
               ": add_space_prefix of a byte-level BPE is not supported");
  check_format(is_utf8(vocabulary.chat_template), source, ": the chat template is not UTF-8");
  const Parts parts = parts_of(vocabulary.pre, source);
  BpeModel model;
  read_tokens(vocabulary, source, model);
  const bool add_bos = vocabulary.add_bos.value_or(parts.adds_bos);
  read_special(vocabulary, add_bos, source, model);
  add_merges(vocabulary.merges, source, model);
  SortedJson post = byte_level_step(true);
  if (add_bos || vocabulary.add_eos) {
    const SortedJson around =
        template_around(model, add_bos ? model.special.bos : std::nullopt,
                        vocabulary.add_eos ? model.special.eos : std::nullopt);
    post = {{"type", "Sequence"}, {"processors", SortedJson::array({post, around})}};
  }
  model.pre_tokenizer = PreTokenizer(parts.pre_tokenizer, source);
  model.normalizer = Normalizer(parts.normalizer, source);
  model.around = read_post_processor(post, source);
  model.ignore_merges = parts.ignore_merges;
  Json frame = parse_ordered_json(bpe_frame());
  frame["normalizer"] = parse_ordered_json(json_text(parts.normalizer));
  frame["pre_tokenizer"] = parse_ordered_json(json_text(parts.pre_tokenizer));
  frame["post_processor"] = parse_ordered_json(json_text(post));
  frame["model"]["ignore_merges"] = parts.ignore_merges;
  model.frame = json_text(frame);
  model.tokenizer_config = config_from(vocabulary, add_bos, model);
  return std::make_unique<BpeTokenizer>(std::move(model), source);
}

}  // namespace

SortedJson qwen2_pre_tokenizer() { return split_words(R"(\p{N})"); }

std::unique_ptr<Tokenizer> make_tokenizer(const VocabularyMetadata& vocabulary,
                                          const std::string& source) {
  try {
    return made(vocabulary, source);
  } catch (const Error& e) {
    // Names and tokens in a message may have any bytes, but it is one line.
    throw Error(shown(e.what()), e.kind);
  }
}

}  // namespace brine::data
