// Damaged GGUF files, and models that cannot be expressed: one line that names file and reason.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "data/gguf/gguf_model.h"
#include "tests/data/gguf/gguf_bytes.h"
#include "tests/paths.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

using namespace brine::data;

using Parts = std::initializer_list<std::string>;

std::string said_of(const std::string& text) {
  Scratch dir;
  const Path path = dir.write("m.gguf", text);
  const std::string said = message([&] { GgufModel(path).config(); });
  CHECK(said.find('\n') == said.npos);
  CHECK((said == "no error" || said.rfind(path.string() + ": ", 0) == 0));
  return said;
}

// A change of the default file, and what is said about it.
void refused(const std::function<void(GgufBytes&)>& change, Parts parts) {
  GgufBytes file;
  change(file);
  check_says(said_of(file.text()), parts);
}

}  // namespace

TEST_CASE("gguf: a damaged header is refused by its reason") {
  CHECK(said_of(GgufBytes().text()) == "no error");
  check_says(said_of(GgufBytes().text() + std::string(40, 'x')), {"40", "after the last tensor"});
  refused([](auto& f) { f.magic = 0x46554746; }, {"GGUF"});
  refused([](auto& f) { f.version = 1; }, {"version", "1", "2 and 3"});
  refused([](auto& f) { f.version = 4; }, {"version", "4"});
  refused([](auto& f) { f.version = 0x03000000; }, {"big-endian"});
  refused([](auto& f) { f.more_keys = 1; }, {"m.gguf"});
  refused([](auto& f) { f.more_keys = int64_t(1) << 60; }, {"keys", "do not fit"});
  refused([](auto& f) { f.more_tensors = int64_t(1) << 60; }, {"tensors", "do not fit"});
  refused([](auto& f) { f.keys.push_back(f.keys[1]); }, {"llama.block_count", "twice"});
  refused([](auto& f) { f.keys.push_back(gguf_key("", 1)); }, {"key", "0 bytes"});
  refused([](auto& f) { f.keys.push_back(gguf_key("k", 13, "")); }, {"'k'", "type", "13"});
  refused([](auto& f) { f.keys.push_back(gguf_key("k", 8, bytes_of(UINT64_MAX))); }, {"truncated"});
  const std::string nested = bytes_of(uint32_t(9)) + bytes_of(uint64_t(1));
  refused([&](auto& f) { f.keys.push_back(gguf_key("k", 9, nested)); }, {"'k'", "array of arrays"});
  const std::string long_array = bytes_of(uint32_t(10)) + bytes_of(uint64_t(1) << 61);
  refused([&](auto& f) { f.keys.push_back(gguf_key("k", 9, long_array)); },
          {"array", "do not fit"});
  refused([](auto& f) { f.keys.push_back(gguf_key("general.alignment", 24)); },
          {"general.alignment", "24", "power of two"});
  refused([](auto& f) { f.keys.push_back(gguf_key("general.alignment", "8")); },
          {"general.alignment", "string", "integer"});
}

TEST_CASE("gguf: tensors outside the file, on each other, not aligned or of odd sizes") {
  auto tensor = [](const std::function<void(GgufTensorBytes&)>& change) {
    return [change](GgufBytes& f) { change(f.tensors[0]); };
  };
  refused(tensor([](auto& t) { t.name = ""; }), {"name", "0 bytes"});
  refused(tensor([](auto& t) { t.name = std::string(65, 'a'); }), {"name", "65"});
  refused(tensor([](auto& t) { t.sizes = {}; }), {"0 axes"});
  refused(tensor([](auto& t) { t.sizes = {1, 1, 1, 1, 8}; }), {"5 axes"});
  refused(tensor([](auto& t) { t.sizes = {0, 2}; }), {"size 0"});
  refused(tensor([](auto& t) {
            t.sizes = {uint64_t(1) << 40, uint64_t(1) << 40};
          }),
          {"elements", "overflows"});
  refused(tensor([](auto& t) { t.sizes = {uint64_t(1) << 62, 1}; }), {"bytes", "overflows"});
  refused(tensor([](auto& t) { t.sizes = {uint64_t(1) << 30, 1}; }), {"outside", "32"});
  refused(tensor([](auto& t) { t.type = 2; }), {"4", "blocks of 32", "Q4_0"});
  refused(tensor([](auto& t) { t.type = 10; }), {"Q2_K", "cannot read", "Q4_K"});
  refused(tensor([](auto& t) { t.type = 4; }), {"type 4", "cannot read"});
  refused(tensor([](auto& t) { t.offset = 16; }), {"16", "alignment 32"});
  refused(tensor([](auto& t) { t.offset = 32; }), {"32", "hole"});
  refused(tensor([](auto& t) { t.offset = UINT64_MAX - 31; }), {"hole"});
  refused([](auto& f) { f.tensors.push_back(f.tensors[0]); }, {"token_embd.weight", "twice"});
  refused(
      [](auto& f) {
        f.tensors.push_back({.name = "other"});
        f.data = 64;
      },
      {"overlaps"});
  refused([](auto& f) { f.tensors[0].name = "x"; }, {"no tensor", "token_embd.weight"});
}

TEST_CASE("gguf: two tensors that would be one are refused") {
  refused(
      [](auto& f) {
        f.tensors.push_back({.name = "model.embed_tokens.weight", .offset = 32});
        f.data = 64;
      },
      {"model.embed_tokens.weight", "another tensor"});
}

TEST_CASE("gguf: rows that are not pairs of heads are refused") {
  refused(
      [](auto& f) {
        f.tensors.push_back({.name = "blk.0.attn_q.weight", .sizes = {4, 2}, .offset = 32});
        f.data = 64;
      },
      {"attn_q", "2 rows", "2 heads", "even"});
}

TEST_CASE("gguf: settings that cannot be expressed are refused by their key") {
  auto with = [](auto... parts) {
    return [=](GgufBytes& f) { f.keys.push_back(gguf_key(parts...)); };
  };
  refused([](auto& f) { f.keys[0] = gguf_key("general.architecture", "gemma3"); },
          {"gemma3", "llama", "qwen2"});
  refused([](auto& f) { f.keys.erase(f.keys.begin()); }, {"general.architecture"});
  refused([](auto& f) { f.keys.erase(f.keys.begin() + 4); }, {"llama.feed_forward_length"});
  refused([](auto& f) { f.keys.back() = gguf_key("llama.attention.head_count", 3); },
          {"embedding_length 4", "3"});
  refused([](auto& f) { f.keys.back() = gguf_key("llama.attention.head_count", 0); }, {"0 heads"});
  refused([](auto& f) { f.keys.erase(f.keys.begin() + 5); },
          {"llama.attention.layer_norm_rms_epsilon"});
  refused(with("llama.expert_count", 8), {"llama.expert_count", "8"});
  CHECK(said_of([&] {
          GgufBytes f;
          with("llama.expert_count", 0)(f);
          return f.text();
        }()) == "no error");
  refused(with("llama.rope.scaling.type", "yarn"), {"llama.rope.scaling.type", "yarn"});
  refused(with("llama.rope.dimension_count", 1), {"llama.rope.dimension_count", "1"});
  refused(with("llama.attention.sliding_window", 4), {"sliding_window", "4", "8"});
  refused(with("llama.attention.value_length", 1), {"2", "keys", "1", "values"});
  refused(with("split.count", 2), {"2", "files"});
  refused(with("general.type", "adapter"), {"general.type", "adapter"});
  refused(with("general.quantization_version", 1), {"general.quantization_version", "1"});
}

TEST_CASE("gguf: an unknown key is accepted with the value that has no effect, whatever that is") {
  auto said = [](const std::string& key) {
    GgufBytes f;
    f.keys.push_back(key);
    return said_of(f.text());
  };
  auto neutral = [&](const char* key, auto value) {
    CAPTURE(key);
    CHECK(said(gguf_key(key, value)) == "no error");
  };
  auto other = [&](const char* key, auto value) { check_says(said(gguf_key(key, value)), {key}); };
  neutral("llama.attention.causal", true);
  other("llama.attention.causal", false);
  for (const char* key : {"llama.logit_scale", "llama.residual_scale", "llama.embedding_scale",
                          "llama.attention.output_scale"}) {
    neutral(key, 0.0f);
    neutral(key, 1.0f);
    other(key, 0.5f);
  }
  neutral("llama.attention.scale", 1 / std::sqrt(2.0f));  // heads of 2 features
  neutral("llama.attention.scale", 0.0f);
  other("llama.attention.scale", 1.0f);
  neutral("llama.embedding_length_out", 4);
  other("llama.embedding_length_out", 8);
  neutral("llama.rope.scaling.attn_factor", 1.0f);
  other("llama.rope.scaling.attn_factor", 0.0f);
  neutral("llama.rope.scaling.yarn_ext_factor", -1.0f);
  other("llama.rope.scaling.yarn_ext_factor", 1.0f);
  neutral("llama.attn_logit_softcapping", 0.0f);
  other("llama.attn_logit_softcapping", 1.0f);
  neutral("llama.use_parallel_residual", false);
  other("llama.use_parallel_residual", true);
  neutral("llama.expert_weights_scale", 2.5f);  // there are no experts
  other("llama.anything", "text");
}

TEST_CASE("gguf: the defaults of rotary scaling are llama.cpp's") {
  auto scaling = [](std::initializer_list<std::string> keys) {
    GgufBytes f;
    f.keys.insert(f.keys.end(), keys);
    Scratch dir;
    return GgufModel(dir.write("m.gguf", f.text())).config().at("rope_scaling");
  };
  const Json by4 = {{"rope_type", "linear"}, {"factor", 4.0}};
  const std::string type = "llama.rope.scaling.type", factor = "llama.rope.scaling.factor";
  const std::string older = "llama.rope.scale_linear";
  CHECK(scaling({}).is_null());
  CHECK(scaling({gguf_key(factor, 4.0f)}) == by4);  // without a type it is linear
  CHECK(scaling({gguf_key(type, "linear"), gguf_key(factor, 4.0f)}) == by4);
  CHECK(scaling({gguf_key(older, 4.0f)}) == by4);
  CHECK(scaling({gguf_key(older, 2.0f), gguf_key(factor, 4.0f)}) == by4);
  CHECK(scaling({gguf_key(type, "none"), gguf_key(older, 4.0f)}).is_null());
  CHECK(scaling({gguf_key(type, "none"), gguf_key(factor, 4.0f)}).is_null());
  CHECK(scaling({gguf_key(factor, 0.0f)}).is_null());
  CHECK(scaling({gguf_key(type, "linear")}).is_null());
  refused(
      [&](auto& f) {
        f.keys.push_back(gguf_key(factor, 4.0f));
        f.tensors.push_back({.name = "rope_freqs.weight", .sizes = {1}, .offset = 32});
        f.data = 64;
      },
      {"rope_freqs.weight", "linear", "4"});
}

TEST_CASE("gguf: a text ends at the end of text, of a turn or of a message") {
  auto ends = [](std::initializer_list<std::string> keys) {
    GgufBytes f;
    f.keys.insert(f.keys.end(), keys);
    Scratch dir;
    return GgufModel(dir.write("m.gguf", f.text())).config().value("eos_token_id", Json());
  };
  const std::string eos = "tokenizer.ggml.eos_token_id", eot = "tokenizer.ggml.eot_token_id";
  CHECK(ends({}).is_null());
  CHECK(ends({gguf_key(eos, 1)}) == 1);
  CHECK(ends({gguf_key(eos, 1), gguf_key(eot, 1)}) == 1);
  CHECK(ends({gguf_key(eot, 0), gguf_key(eos, 1), gguf_key("tokenizer.ggml.eom_token_id", 2)}) ==
        Json({1, 0, 2}));
  // By their texts, as llama.cpp finds them.
  auto tokens = [](const std::vector<std::string>& texts) {
    std::string list = bytes_of(uint32_t(8)) + bytes_of(uint64_t(texts.size()));
    for (const std::string& text : texts) list += gguf_string(text);
    return gguf_key("tokenizer.ggml.tokens", 9, list);
  };
  CHECK(ends({gguf_key(eos, 1), tokens({"a", "b", "<|im_end|>", "<|endoftext|>",
                                        "<|im_start|>"})}) == Json({1, 2, 3}));
  CHECK(ends({tokens({"<end_of_turn>"})}) == 0);
  CHECK(ends({tokens({"<|return|>", "<|call|>", "<|end|>"})}) == Json({0, 1}));
  CHECK(ends({tokens({"<|end|>", "x"})}) == 0);
}

TEST_CASE("gguf: frequency factors that are not Llama 3's are refused") {
  const std::vector<float> ones(4, 1);
  CHECK(llama3_scaling("f", ones, 5e5, 0).is_null());
  std::vector<float> factors = {1, 1, 4, 8};  // no smooth step between
  CHECK_REFUSES(llama3_scaling("f", factors, 5e5, 0), "f", "rope_freqs.weight[2]", "4", "8");
  factors[2] = NAN;
  CHECK_REFUSES(llama3_scaling("f", factors, 5e5, 0), "rope_freqs.weight[2]");
  refused(
      [](auto& f) {
        f.tensors.push_back({.name = "rope_freqs.weight", .sizes = {2}, .offset = 32});
        f.data = 64;
      },
      {"rope_freqs.weight", "2", "wanted", "1"});
}

}  // namespace brine::test
