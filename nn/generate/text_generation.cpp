// A request to generate text: prompts, length, sampling, where it ends, states in and out.
#include "nn/generate/text_generation.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "data/io/json.h"
#include "data/io/utf8.h"
#include "data/tokenizer/prompt_tokens.h"
#include "nn/models/hf_config.h"

namespace brine::nn {
namespace {

// One prompt a line of a text file, without the line ends; an empty line is an error.
std::vector<std::string> prompts_in(const std::string& path) {
  std::vector<std::string> lines;
  const std::string content = data::read_file(path);
  const std::string_view text = data::without_mark(content);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line(text.substr(at, end - at));
    if (!line.empty() && line.back() == '\r') line.pop_back();
    check(!line.empty(), path, ": line ", lines.size() + 1, " is empty, wanted a prompt");
    const size_t bad = data::find_invalid_utf8(line);
    check_format(bad == data::kValidUtf8, path, ": line ", lines.size() + 1, ": not UTF-8 at byte ",
                 bad + 1, " of the line; save the file as UTF-8");
    lines.push_back(line);
    at = end + 1;
  }
  check(!lines.empty(), path, ": no prompts");
  return lines;
}

// Where prompt `i` is from.
std::string source_of(const TextGeneration& what, size_t i, size_t count) {
  if (!what.prompt_file.empty()) return join(what.prompt_file, ": line ", i + 1);
  if (!what.document.empty()) return what.document;
  return count == 1 ? std::string("the prompt") : join("prompt ", i + 1);
}

// The tokens of a prompt; errors and warnings begin with where it is from.
std::vector<int32_t> prompt_ids(const data::Tokenizer& tokenizer, const std::string& text,
                                const std::string& source,
                                const std::function<void(const std::string&)>& warn) {
  const std::string where = join("generate: ", source, ": ");
  try {
    return data::prompt_tokens(tokenizer, text, [&](const std::string& warning) {
      if (warn) warn(where + warning);
    });
  } catch (const Error& e) {
    throw Error(where + e.what(), e.kind);
  }
}

// generation_config.json as an object; empty when the model has none.
data::Json generation_settings(const LoadedModel& model, const std::string& file) {
  const std::string& text = model.config.token_settings.generation_config;
  if (text.empty()) return data::Json::object();
  const data::Json json = parse_json_or_discard(text, file);
  check_format(json.is_object(), file, ": not a JSON object");
  return usual_spelling(json);
}

std::string generation_file(const LoadedModel& model) {
  return (std::filesystem::path(model.directory) / kGenerationConfig).string();
}

// "eos_token_id" of generation_config.json, one id or a list; empty when it has none. Ids that the
// model has no row for are never sampled.
std::vector<int64_t> generation_ends(const LoadedModel& model) {
  const std::string file = generation_file(model);
  const data::Json json = generation_settings(model, file);
  const data::Json found = json.value("eos_token_id", data::Json());
  if (found.is_null()) return {};
  const data::Json list = found.is_array() ? found : data::Json::array({found});
  const auto is_id = [](const data::Json& id) { return id.is_number_integer(); };
  check_format(std::all_of(list.begin(), list.end(), is_id), file,
               ": eos_token_id = ", json_text(found), " is not an id or a list of ids");
  return list.get<std::vector<int64_t>>();
}

// Keys of generation_config.json that never change a text, or only that of several beams.
constexpr std::string_view kWithoutEffect =
    " transformers_version eos_token_id bos_token_id pad_token_id decoder_start_token_id do_sample "
    "use_cache cache_implementation cache_config max_cache_len output_attentions "
    "output_hidden_states output_scores output_logits return_dict_in_generate early_stopping "
    "length_penalty diversity_penalty renormalize_logits remove_invalid_values use_mtp "
    "is_assistant num_assistant_tokens num_assistant_tokens_schedule "
    "assistant_confidence_threshold assistant_early_exit assistant_lookbehind "
    "assistant_ensemble_weight target_lookbehind prompt_lookup_num_tokens "
    "max_matching_ngram_size speculation_type disable_compile compile_config low_memory "
    "trust_remote_code ";
// Keys that count only where tokens are sampled.
constexpr std::string_view kOfSampling =
    " temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff ";
// Keys that change nothing at 1, others at 0.
constexpr std::string_view kOne =
    " repetition_penalty encoder_repetition_penalty guidance_scale num_beams num_beam_groups "
    "num_return_sequences temperature top_p typical_p ";

bool in(std::string_view keys, const std::string& key) {
  return keys.find(" " + key + " ") != std::string_view::npos;
}

// Whether a key of the file has a value that changes nothing.
bool is_neutral(const std::string& key, const data::Json& value) {
  if (value.is_null() || value == false || (value.is_structured() && value.empty())) return true;
  return value.is_number() && !key.ends_with("_token_id") && value == (in(kOne, key) ? 1 : 0);
}

}  // namespace

std::string unapplied_settings(const LoadedModel& model, const TextGeneration& what,
                               int64_t prompt_tokens) {
  const std::string file = generation_file(model);
  const data::Json json = generation_settings(model, file);
  const bool samples = what.how.temperature > 0 && json.value("do_sample", data::Json()) == true;
  const Sampling usual;  // another value is the command's own
  const std::map<std::string, bool> of_command = {
      {"temperature", what.how.temperature != usual.temperature},
      {"top_k", what.how.top_k != usual.top_k},
      {"top_p", what.how.top_p != usual.top_p},
      {"max_new_tokens", json.value("max_new_tokens", data::Json()) >= what.tokens},
      {"max_length", json.value("max_length", data::Json()) >= prompt_tokens + what.tokens ||
                         json.value("max_new_tokens", data::Json()).is_number()}};
  std::string out;
  for (const auto& [key, value] : json.items()) {
    const auto own = of_command.find(key);
    if (key.starts_with("_") || in(kWithoutEffect, key) || is_neutral(key, value) ||
        (own != of_command.end() && own->second) || (in(kOfSampling, key) && !samples))
      continue;
    out += join(out.empty() ? "" : ", ", key);
    if (!value.is_structured()) out += " = " + json_text(value);
  }
  return out.empty() ? "" : join(file, ": not applied: ", out);
}

void TextGeneration::describe(data::Schema& s) {
  s.field("prompt", prompt, "Texts to continue, together");
  s.field("prompt_file", prompt_file, "File with one prompt per line");
  s.field("document", document, "File whose whole text is one prompt");
  s.field("tokens", tokens, "Tokens to add", {.min = 1});
  s.field("temperature", how.temperature, "0 takes the likeliest token", {.min = 0});
  s.field("top_k", how.top_k, "Sample among the k likeliest tokens; 0 = all", {.min = 0});
  s.field("top_p", how.top_p, "Sample among the likeliest tokens of this mass",
          {.max = 1, .above = 0});
  s.field("stop", stop, "Texts that end a continuation; they are not part of it");
  s.field("stop_token", stop_token, "Tokens that end one, in addition to the end of the text");
  s.field("ignore_eos", ignore_eos, "Continue after the end of the text");
  s.field("k", k, "Kept keys of a sparse attention; 0 = as trained", {.min = 0});
  s.field("query_skip", query_skip, "The estimator runs on every f-th token", {.min = 1});
  s.choice("cache", cache, kCaches,
           "Type of cached keys and values; q8: 8 bits; exact: f32, also sums of features");
  s.field("prefill", prefill, "Tokens of a prompt read at once; none: about half a GiB of them",
          {.min = 1});
  s.field("save_state", save_state, "File from which to continue later");
  s.field("load_state", load_state, "Such a file; prompts are added to its sequences");
}

std::optional<Dtype> cache_type(Cache cache) {
  switch (cache) {
    case Cache::f32:
      return std::nullopt;
    case Cache::bf16:
    case Cache::q8:
      return Dtype::bf16;
    case Cache::f16:
      return Dtype::f16;
    case Cache::exact:
      break;
  }
  return Dtype::f32;
}

std::vector<std::string> TextGeneration::prompts() const {
  const int given = int(!prompt.empty()) + int(!prompt_file.empty()) + int(!document.empty());
  check(given <= 1, "generate: of --prompt, --prompt-file and --document one is enough");
  if (!save_state.empty()) data::check_target(save_state);
  check(given == 1 || !load_state.empty(),
        "generate: --prompt, --prompt-file or --document is needed");
  if (!document.empty()) return {data::read_text(document)};
  return prompt_file.empty() ? prompt : prompts_in(prompt_file);
}

std::vector<int32_t> end_tokens(const LoadedModel& model, const data::Tokenizer& tokenizer) {
  std::vector<int64_t> ids = generation_ends(model);
  const auto& of_config = model.config.token_settings.ids;
  const auto found = of_config.find("eos_token_id");
  if (ids.empty() && found != of_config.end()) ids = found->second;
  if (ids.empty() && tokenizer.special().eos) ids = {*tokenizer.special().eos};
  std::vector<int32_t> ends;
  for (const int64_t id : ids) {
    if (id >= 0 && id < model.config.shape().vocab_size) ends.push_back(int32_t(id));
  }
  return ends;
}

GenerationRequest TextGeneration::request(const data::Tokenizer& tokenizer,
                                          const std::vector<int32_t>& ends, uint64_t seed) const {
  GenerationRequest r{.tokens = tokens,
                      .how = how,
                      .seed = seed,
                      .stop_tokens = {},
                      .stops = stop,
                      .options = {.k = k, .query_skip = query_skip},
                      .cache = cache_type(cache),
                      .coded = cache == Cache::q8,
                      .part = prefill.value_or(0),
                      .vocabulary = tokenizer.vocab_size(),
                      .keep_states = !save_state.empty()};
  if (!ignore_eos) r.stop_tokens = ends;
  for (const std::string& token : stop_token) {
    const std::optional<int32_t> id = tokenizer.id_of(token);
    check(id.has_value(), "generate: no token has the text '", token, "'");
    r.stop_tokens.push_back(*id);
  }
  return r;
}

Generation begin_generation(LoadedModel& model, const data::Tokenizer& tokenizer,
                            const TextGeneration& what, const std::vector<std::string>& prompts,
                            uint64_t seed, const std::function<void(const std::string&)>& warn,
                            const std::function<bool(const GenerationMemory&)>& before) {
  std::vector<std::vector<int32_t>> ids;
  ids.reserve(prompts.size());
  const int64_t positions = model.config.shape().max_positions;
  for (const std::string& text : prompts) {
    const std::string source = source_of(what, ids.size(), prompts.size());
    ids.push_back(what.load_state.empty() ? prompt_ids(tokenizer, text, source, warn)
                                          : data::continuation_tokens(tokenizer, text));
    check(int64_t(ids.back().size()) < positions, "generate: ", source, " has ", ids.back().size(),
          " tokens, the model ", positions, " positions");
  }
  const GenerationRequest request = what.request(tokenizer, end_tokens(model, tokenizer), seed);
  Generation generation(*model.model, request,
                        [&tokenizer](int32_t id) { return tokenizer.decode_next(id); });
  if (what.load_state.empty()) {
    size_t longest = 0;
    for (const auto& prompt : ids) longest = std::max(longest, prompt.size());
    const auto memory = [&] {
      return memory_of(*model.model, request, int64_t(ids.size()), int64_t(longest));
    };
    if (before && !before(memory())) return generation;
    generation.start(ids);
  } else {
    generation.load(what.load_state, model.hash(), ids, before);
  }
  return generation;
}

std::vector<std::string> texts_of(const Generation& generation, const data::Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  const std::vector<int32_t>& front = tokenizer.around().front;
  for (const Sequence& s : generation.sequences()) {
    std::span<const int32_t> ids = s.ids;
    const bool begins =
        ids.size() >= front.size() && std::equal(front.begin(), front.end(), ids.begin());
    texts.push_back(tokenizer.decode(begins ? ids.subspan(front.size()) : ids));
  }
  return texts;
}

}  // namespace brine::nn
