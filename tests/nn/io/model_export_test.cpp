// Exports of models: types, shards, round trips bit for bit, adapters and their errors.
#include "data/tokenizer/bpe/bpe.h"
#include "tests/nn/io/model_dirs.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

std::string weights_in(const std::string& dir) {
  return data::read_file(dir + "/model.safetensors");
}

}  // namespace

TEST_CASE(
    "export: a SEA student comes back bit for bit, decoder and encoder, whole and in shards") {
  for (const char* golden : {"opt", "opt_350m", "bert_classifier", "bert_masked_lm"}) {
    CAPTURE(golden);
    Scratch scratch;
    SeaStudent s(golden);
    for (uint64_t shard : {0, 20000}) {
      std::string dir = s.write(scratch, "out" + std::to_string(shard), {.shard_bytes = shard});
      LoadedModel back = load_model(dir);
      CHECK(back.hash() == s.hash());
      CHECK(back.config.attention == "sea");
      CHECK(data::differences(nn::to_hf_config(back.config), nn::to_hf_config(s.config)).empty());
      NoGrad off;
      nn::ModelCall call{.ids = ids({2, 9}, 4, 100)};
      CHECK(same_bits(back.model->hidden(call), s.model->hidden(call)));
    }
  }
}

TEST_CASE("export: f16 and bf16 files contain the rounded values and survive a round trip") {
  for (Dtype type : {Dtype::f16, Dtype::bf16}) {
    Scratch scratch;
    SeaStudent s("opt");
    std::string dir = s.write(scratch, "half", {.dtype = type});
    CHECK(json_in(dir + "/config.json")["torch_dtype"] ==
          (type == Dtype::f16 ? "float16" : "bfloat16"));
    LoadedModel back = load_model(dir);
    for (const NamedTensor& t : tensors_of(*s.model)) {
      data::Safetensors file{data::Path(dir) / "model.safetensors"};
      CHECK(same_bits(file.tensor(t.name), t.tensor.to(type)));
    }
    std::string again = (scratch / "again").string();
    export_model(back.config, *back.model, nullptr, again, {.dtype = type});
    CHECK(weights_in(again) == weights_in(dir));
  }
}

TEST_CASE("export: ids of tokens and generation_config.json come back as they were read") {
  Scratch scratch;
  const std::string dir = copy_of(scratch, "opt", {.config = [](data::Json& c) {
                                    c["eos_token_id"] = {2, 5};
                                    c["bos_token_id"] = 3;
                                    c["pad_token_id"] = nullptr;
                                    c["sep_token_id"] = 7;
                                    c["forced_eos_token_id"] = 1000000;  // the model has no row
                                  }});
  const std::string generation = "{\"eos_token_id\": [2, 5],\n  \"top_p\": 0.9}";
  data::write_file_atomic(dir + "/generation_config.json", generation);
  LoadedModel m = load_model(dir);
  const std::string out = (scratch / "out").string();
  export_model(m.config, *m.model, nullptr, out);
  const data::Json config = json_in(out + "/config.json");
  CHECK(config["eos_token_id"] == data::Json({2, 5}));
  CHECK(config["bos_token_id"] == 3);
  CHECK(config["pad_token_id"].is_null());
  CHECK(config["sep_token_id"] == 7);
  CHECK_FALSE(config.contains("forced_eos_token_id"));
  CHECK(data::read_file(out + "/generation_config.json") == generation);
  // A student has them, too.
  SeaStudent s("opt");
  s.config.copy_sizes(m.config);
  s.write(scratch, "student", {});
  CHECK(json_in((scratch / "student/config.json").string())["eos_token_id"] == data::Json({2, 5}));
  CHECK(data::read_file(scratch / "student/generation_config.json") == generation);
}

TEST_CASE("export: an id of the tokenizer is written if the model has a row and no id of its own") {
  nn::ModelConfig config = nn::make_config("llama", {{"vocab_size", 20}});
  data::Json json = nn::to_hf_config(config, {.bos = 3, .eos = 19, .pad = 20});
  CHECK(json["bos_token_id"] == 3);
  CHECK(json["eos_token_id"] == 19);
  CHECK(json["pad_token_id"].is_null());
  config.token_settings.ids = {{"bos_token_id", {}}, {"eos_token_id", {4, 5}}};
  json = nn::to_hf_config(config, {.bos = 3, .eos = 19, .pad = 20});
  CHECK(json["bos_token_id"] == 3);
  CHECK(json["eos_token_id"] == data::Json({4, 5}));
  // An id that OPT has by default, but not a model of two tokens.
  nn::ModelConfig small = nn::make_config("opt", {{"vocab_size", 2}});
  CHECK(nn::to_hf_config(small)["eos_token_id"].is_null());
  CHECK(nn::to_hf_config(small)["pad_token_id"] == 1);
}

TEST_CASE("export: a tokenizer that AutoTokenizer would replace is warned of") {
  const nn::ModelConfig qwen = nn::make_config("qwen2", data::Json::object());
  const nn::ModelConfig llama = nn::make_config("llama", data::Json::object());
  const auto gpt2 = data::BpeTrainer({.vocab_size = 261}).train();
  CHECK(tokenizer_warning(qwen, *gpt2).find("PreTrainedTokenizerFast") != std::string::npos);
  CHECK(tokenizer_warning(llama, *gpt2).empty());
  Scratch scratch;
  data::Json json = data::Json::parse(gpt2->to_json());
  const std::string expression = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                                 R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const data::Json split = {{"type", "Split"},
                            {"pattern", {{"Regex", expression}}},
                            {"behavior", "Isolated"},
                            {"invert", false}};
  const data::Json bytes = {{"type", "ByteLevel"},
                            {"add_prefix_space", false},
                            {"trim_offsets", false},
                            {"use_regex", false}};
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", data::Json::array({split, bytes})}};
  json["normalizer"] = {{"type", "NFC"}};
  const std::string file = scratch.write("tokenizer.json", json.dump());
  CHECK(tokenizer_warning(qwen, *data::load_tokenizer(file)).empty());
  json["normalizer"] = nullptr;
  scratch.write("tokenizer.json", json.dump());
  CHECK_FALSE(tokenizer_warning(qwen, *data::load_tokenizer(file)).empty());
}

TEST_CASE("export: a value too large for f16 is refused before anything is written") {
  Scratch scratch;
  SeaStudent s("opt");
  for (auto& p : s.model->named_parameters()) {
    if (p.path == "model.decoder.layers.0.fc1.bias") p.parameter->value.data<float>()[3] = 70000;
  }
  CHECK_REFUSES(s.write(scratch, "out", {.dtype = Dtype::f16}), "export",
                "model.decoder.layers.0.fc1.bias", "70000", "f16", "bf16", "f32");
  CHECK_FALSE(std::filesystem::exists(scratch / "out"));
  CHECK_NOTHROW(s.write(scratch, "out", {.dtype = Dtype::bf16}));
  CHECK_THROWS_AS(s.write(scratch, "out", {}), Error);  // contains a model already
}

TEST_CASE("export: no shard is larger than requested unless one tensor is") {
  Scratch scratch;
  SeaStudent s("opt");
  std::string dir = s.write(scratch, "out", {.shard_bytes = 20000});
  data::Json index = json_in(dir + "/model.safetensors.index.json");
  std::map<std::string, uint64_t> bytes;
  std::map<std::string, int> tensors;
  uint64_t total = 0;
  for (const NamedTensor& t : tensors_of(*s.model)) {
    std::string shard = index["weight_map"][t.name].get<std::string>();
    bytes[shard] += uint64_t(t.tensor.numel()) * 4;
    ++tensors[shard];
    total += uint64_t(t.tensor.numel()) * 4;
  }
  CHECK(index["metadata"]["total_size"] == total);
  CHECK(bytes.size() > 3);
  for (const auto& [shard, size] : bytes) CHECK((size <= 20000 || tensors[shard] == 1));
}

TEST_CASE("adapter: contains only the method's tensors and loads on top of its base") {
  for (const char* golden : {"opt", "bert_classifier"}) {
    Scratch scratch;
    SeaStudent s(golden);
    std::string dir = s.write(scratch, "adapter", {.base_model = s.base});
    CHECK(json_in(dir + "/config.json")["base_model"] == s.base);
    for (const auto& [name, tensor] : tensors_in(dir)) {
      CHECK(name.find(".sea.") != std::string::npos);
    }
    CHECK(load_model(dir).hash() == s.hash());
    // Next to each other, by a path that is relative to the adapter.
    std::filesystem::copy(s.base, scratch / "base");
    std::string moved = s.write(scratch, "moved", {.base_model = s.base});
    data::Json config = json_in(moved + "/config.json");
    config["base_model"] = "../base";
    data::write_file_atomic(moved + "/config.json", config.dump());
    CHECK(load_model(moved).hash() == s.hash());
  }
}

TEST_CASE("adapter: a changed base is refused on the way out and on the way in") {
  Scratch scratch;
  SeaStudent s("opt");
  CHECK(s.refusal_of(scratch, golden_dir("opt_350m")).find("differ from the base") !=
        std::string::npos);
  std::string dir = s.write(scratch, "adapter", {.base_model = s.base});
  auto with = [&](const std::function<void(data::Json&)>& change) {
    data::Json config = json_in(golden_dir("opt") + "/config.json");
    config = json_in(dir + "/config.json");
    change(config);
    std::string out = (scratch / "changed").string();
    std::filesystem::remove_all(out);
    std::filesystem::copy(dir, out);
    data::write_file_atomic(out + "/config.json", config.dump());
    return refusal(out);
  };
  std::string other = copy_of(scratch, "opt", {.tensors = [](Tensors& t) {
                                t["model.decoder.layers.0.fc1.bias"].data<float>()[0] += 1;
                              }});
  CHECK(with([&](data::Json& c) { c["base_model"] = other; }).find("are not those of the base") !=
        std::string::npos);
  CHECK(with([&](data::Json& c) { c["base_model"] = dir; }).find("is an adapter itself") !=
        std::string::npos);
  CHECK(with([&](data::Json& c) {
          c["base_model"] = golden_dir("opt_350m");
        }).find("has other sizes; ") != std::string::npos);
  CHECK(with([&](data::Json& c) {
          c["base_model"] = "nowhere";
        }).find("is neither next to it nor in the working directory") != std::string::npos);
  CHECK(with([&](data::Json& c) { c["base_model"] = 3; }) ==
        "config.json: base_model = 3 is not a path");
  check_says(with([&](data::Json& c) { c["brine"].erase("base_hash"); }),
             {"config.json", "base_model", "\"brine\"", "base_hash"});
  for (auto& p : s.model->named_parameters()) {
    if (p.path == "model.decoder.layers.0.fc1.bias") p.parameter->value.data<float>()[0] += 1;
  }
  check_says(s.refusal_of(scratch, s.base),
             {"export", "1", "36", s.base, "model.decoder.layers.0.fc1.bias"});
  LoadedModel dense = load_model(s.base);
  CHECK_REFUSES(export_model(dense.config, *dense.model, nullptr, (scratch / "dense").string(),
                             {.base_model = s.base}),
                "export", "flash", "adapter");
}

}  // namespace brine::test
