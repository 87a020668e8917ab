// GGUF files against the values of Python's package gguf, and what the metadata say.
#include <doctest/doctest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "data/gguf/gguf_model.h"
#include "data/safetensors/safetensors.h"
#include "data/tokenizer/vocabulary.h"
#include "tests/data/gguf/gguf_bytes.h"
#include "tests/paths.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

using namespace brine::data;

Path golden(const std::string& name) { return source_dir() + "/tests/golden/gguf/" + name; }

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw(), b.raw(), size_t(a.numel()) * item_size(a.dtype())) == 0;
}

// Every tensor equals that of the safetensors file, in f32 bit for bit.
void check_tensors(const std::string& name) {
  const GgufModel gguf(golden(name + ".gguf"));
  const Safetensors wanted(golden(name + ".safetensors"));
  CHECK(gguf.entries().size() == wanted.entries().size());
  for (const WeightInfo& e : wanted.entries()) {
    CAPTURE(name + ": " + e.name);
    REQUIRE(gguf.contains(e.name));
    const Tensor expected = wanted.tensor(e.name), direct = gguf.tensor(e.name);
    CHECK(same_bits(direct.to(Dtype::f32), expected));
    const Tensor read = Tensor::empty(expected.shape());
    gguf.read(gguf.entry(e.name), read);
    CHECK(same_bits(read, expected));
    CHECK(same_bits(gguf.mapped(gguf.entry(e.name)), direct));
    const Tensor half = Tensor::empty(expected.shape(), Dtype::bf16);
    gguf.read(gguf.entry(e.name), half);
    CHECK(same_bits(half, expected.to(Dtype::bf16)));
  }
}

Json json_of(const std::string& file) { return Json::parse(read_file(golden(file))); }

}  // namespace

TEST_CASE("gguf: every type has the values of Python's package, bit for bit") {
  check_tensors("types");
  const GgufModel types(golden("types.gguf"));
  CHECK(types.entry("q4_k").dtype == "Q4_K");
  CHECK(types.entry("q4_k").size == 3 * 2 * 144);
  CHECK(types.dtype_of(types.entry("bf16")) == Dtype::bf16);
  CHECK(types.dtype_of(types.entry("q6_k")) == Dtype::f32);
  CHECK(types.in_order(types.entry("f16")));
  CHECK_FALSE(types.in_order(types.entry("q8_0")));
}

TEST_CASE("gguf: tensors have the names and the order of Hugging Face's checkpoints") {
  for (const char* name : {"llama", "llama3", "qwen2", "qwen3", "gpt2"}) check_tensors(name);
}

TEST_CASE("gguf: metadata become config.json") {
  for (const char* name : {"llama", "llama3", "qwen2", "qwen3", "gpt2"}) {
    CAPTURE(std::string(name));
    const Json config = GgufModel(golden(join(name, ".gguf"))).config();
    const Json wanted = json_of(join(name, ".json"));
    for (const auto& [key, value] : wanted.items()) {
      CAPTURE(key);
      REQUIRE(config.contains(key));
      CHECK(config[key] == value);
    }
    CHECK(config.size() == wanted.size());
  }
}

TEST_CASE("gguf: the vocabulary is that of the metadata") {
  const VocabularyMetadata v = gguf_vocabulary(golden("qwen2.gguf"));
  CHECK(v.model == "gpt2");
  CHECK(v.pre == "smollm");
  CHECK(v.tokens == std::vector<std::string>{"<|end|>", "a", "b", "ab"});
  CHECK(v.types == std::vector<int32_t>{3, 1, 1, 1});
  CHECK(v.merges == std::vector<std::string>{"a b"});
  CHECK(v.bos == 0);
  CHECK(v.eos == 0);
  CHECK_FALSE(v.unknown.has_value());
  CHECK_FALSE(v.add_bos.value_or(false));
  CHECK_FALSE(v.add_space_prefix);
  Scratch dir;
  const Path bare = dir.write("bare.gguf", GgufBytes().text());
  CHECK_REFUSES(gguf_vocabulary(bare), "bare.gguf", "tokenizer.ggml.model");
}

TEST_CASE("gguf: versions 2 and 3, aligned as the file says") {
  Scratch dir;
  for (uint32_t version : {2u, 3u}) {
    GgufBytes file{.version = version};
    file.keys.push_back(gguf_key("general.alignment", 64));
    file.alignment = 64;
    file.tensors.push_back({.name = "output_norm.weight", .sizes = {4}, .offset = 64});
    file.data = 64 + 16;
    const GgufModel model(dir.write("v.gguf", file.text()));
    CHECK(model.header().version == version);
    CHECK(model.entries().size() == 2);
    CHECK(model.tensor("model.norm.weight").to_vector() == std::vector<double>(4, 0));
  }
  CHECK(is_gguf(golden("llama.gguf")));
  CHECK_FALSE(is_gguf(golden("llama.json")));
  CHECK_FALSE(is_gguf(dir.path()));
  CHECK_FALSE(is_gguf(dir / "absent"));
}

TEST_CASE("gguf: a value is read by its own type and refused as another") {
  GgufMetadata m("f");
  auto add = [&](const std::string& key, GgufValueType type, const std::string& bytes) {
    static std::vector<std::string> kept;
    kept.reserve(64);
    m.add(key, {.type = type, .bytes = kept.emplace_back(bytes)});
  };
  add("i8", GgufValueType::i8, bytes_of(int8_t(-3)));
  add("u16", GgufValueType::u16, bytes_of(uint16_t(65535)));
  add("u64", GgufValueType::u64, bytes_of(UINT64_MAX));
  add("f32", GgufValueType::f32, bytes_of(1e-5f));
  add("f64", GgufValueType::f64, bytes_of(0.1));
  add("bool", GgufValueType::boolean, "\x01");
  add("text", GgufValueType::string, gguf_string("two\nlines"));
  CHECK(m.integer("i8") == -3);
  CHECK(m.integer("u16") == 65535);
  CHECK(m.number("u16") == 65535);
  CHECK(m.number("f32") == 1e-5);  // the shortest digits, not 9.999999747e-06
  CHECK(m.number("f64") == 0.1);
  CHECK(m.boolean("bool") == true);
  CHECK(m.string("text") == "two\nlines");
  CHECK_FALSE(m.integer("none").has_value());
  CHECK_REFUSES(m.integer("u64"), "f", "u64", "above");
  CHECK_REFUSES(m.integer("f32"), "f", "f32", "f32", "an integer");
  CHECK_REFUSES(m.number("bool"), "f", "bool", "a number");
  CHECK_REFUSES(m.string("i8"), "f", "i8", "i8", "a string");
  CHECK_REFUSES(m.strings("text"), "f", "text", "string", "an array");
  CHECK_REFUSES(m.required("none", &GgufMetadata::integer), "f", "none");
  CHECK_REFUSES(add("i8", GgufValueType::u8, "1"), "f", "i8", "twice");
  CHECK(m.text(m.values().at("text")) == "two\\x0alines");
}

}  // namespace brine::test
