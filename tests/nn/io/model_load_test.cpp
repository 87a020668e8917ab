// Models in: spellings of names, types, shards, heads, and everything that is refused.
#include <algorithm>

#include "nn/models/bert/bert.h"
#include "tests/nn/io/model_dirs.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

void rename(Tensors& tensors, const std::string& from, const std::string& to) {
  Tensors out;
  for (const auto& [name, tensor] : tensors) {
    size_t at = name.find(from);
    out[at == name.npos ? name : name.substr(0, at) + to + name.substr(at + from.size())] = tensor;
  }
  tensors = out;
}

std::string hash_of_copy(const Scratch& scratch, const std::string& golden,
                         const std::function<void(Tensors&)>& change) {
  return load_model(copy_of(scratch, golden, {.tensors = change})).hash();
}

void write_index(const std::string& directory, const std::function<void(data::Json&)>& change) {
  data::Json index = json_in(directory + "/model.safetensors.index.json");
  change(index);
  data::write_file_atomic(directory + "/model.safetensors.index.json", index.dump());
}

}  // namespace

TEST_CASE("model: every spelling of a file's names gives the same model") {
  Scratch scratch;
  std::string opt = load_model(golden_dir("opt")).hash();
  CHECK(hash_of_copy(scratch, "opt", [](Tensors& t) {  // only the head's name is left
          rename(t, "model.decoder.embed_tokens", "lm_head");
        }) == opt);
  std::string bert = load_model(golden_dir("bert_classifier")).hash();
  CHECK(opt != bert);
  CHECK(hash_of_copy(scratch, "bert_classifier", [](Tensors& t) { rename(t, "bert.", ""); }) ==
        bert);
  CHECK(hash_of_copy(scratch, "bert_classifier", [](Tensors& t) {
          rename(t, "LayerNorm.weight", "LayerNorm.gamma");
          rename(t, "LayerNorm.bias", "LayerNorm.beta");
          t["bert.embeddings.position_ids"] = Tensor::zeros({1, 24}, Dtype::i64);
        }) == bert);
}

TEST_CASE("model: f16 and bf16 weights become f32 values, as the types round") {
  Scratch scratch;
  for (Dtype type : {Dtype::f16, Dtype::bf16, Dtype::f64}) {
    Tensors rounded;
    std::string dir = copy_of(scratch, "opt_350m", {.tensors = [&](Tensors& tensors) {
                                for (auto& [name, t] : tensors) {
                                  t = t.to(type);
                                  rounded[name] = t.to(Dtype::f32);
                                }
                              }});
    LoadedModel m = load_model(dir);
    for (const NamedTensor& t : nn::state_of(*m.model)) {
      CHECK_MESSAGE(same_bits(t.tensor, rounded.at(t.name)), t.name);
    }
  }
}

TEST_CASE("model: shards of any size are one file, and tensors may be odd in number and size") {
  Scratch scratch;
  std::string whole = load_model(golden_dir("bert_masked_lm")).hash();
  for (uint64_t bytes : {1, 5000, 60000}) {
    std::string dir = copy_of(scratch, "bert_masked_lm", {.shard_bytes = bytes});
    CHECK_FALSE(std::filesystem::exists(dir + "/model.safetensors"));
    CHECK(load_model(dir).hash() == whole);
  }
}

TEST_CASE("model: a store without gradients gets them, and packs q, k and v") {
  LoadedModel m = load_model(golden_dir("opt"));
  CHECK_FALSE(m.store->gradients().defined());
  auto forward = [&] { return m.model->logits(m.model->hidden({.ids = ids({2, 7}, 3, 100)})); };
  Tensor before = forward();
  CHECK(before.node() == nullptr);
  m.store->zero_gradients();
  CHECK(largest(m.store->gradients().to_vector()) == 0);
  Tensor after = forward();
  CHECK(same_bits(before, after.detach()));
  backward(after, Tensor::full(after.shape(), 1));
  CHECK(largest(m.store->gradients().to_vector()) > 0);
  CHECK(load_model(golden_dir("opt"), {.gradients = true}).store->gradients().defined());
}

TEST_CASE("model: heads are those that the file has") {
  LoadedModel masked = load_model(golden_dir("bert_masked_lm"));
  CHECK(masked.config.as<nn::BertConfig>().masked_lm);
  CHECK_FALSE(masked.config.as<nn::BertConfig>().pooler);
  CHECK(masked.model->labels() == 0);
  LoadedModel classifier = load_model(golden_dir("bert_classifier"));
  CHECK_FALSE(classifier.config.as<nn::BertConfig>().masked_lm);
  CHECK(classifier.model->labels() == 3);
}

TEST_CASE("model: more layers than tensors are refused before any is made") {
  Scratch scratch;
  const std::string dir = copy_of(
      scratch, "opt", {.config = [](data::Json& c) { c["num_hidden_layers"] = int64_t(1) << 31; }});
  check_says(refusal(dir), {"config.json", "2147483648 layers", "tensors"});
}

TEST_CASE("model: missing and unknown tensors are listed by name, wrong shapes and types refused") {
  Scratch scratch;
  auto with = [&](const std::string& golden, const std::function<void(Tensors&)>& change) {
    return refusal(copy_of(scratch, golden, {.tensors = change}));
  };
  check_says(with("opt",
                  [](Tensors& t) {
                    t.erase("model.decoder.layers.1.fc1.bias");
                    t["model.decoder.layers.2.fc1.bias"] = Tensor::zeros({3});
                  }),
             {"model.safetensors", "missing", "model.decoder.layers.1.fc1.bias", "unexpected",
              "model.decoder.layers.2.fc1.bias"});
  check_says(with("bert_classifier", [](Tensors& t) { t["qa_outputs.bias"] = Tensor::zeros({3}); }),
             {"model.safetensors", "unexpected", "qa_outputs.bias"});
  std::string many = with("opt", [](Tensors& t) {
    for (int i = 0; i < 40; ++i) t["extra." + std::to_string(i)] = Tensor::zeros({1});
  });
  CHECK(many.find(" and 16 more") != many.npos);
  check_says(
      with("opt", [](Tensors& t) { t["model.decoder.layers.1.fc1.bias"] = Tensor::zeros({47}); }),
      {"model.safetensors", "model.decoder.layers.1.fc1.bias", "[47]", "[48]"});
  check_says(with("opt",
                  [](Tensors& t) {
                    t["model.decoder.layers.1.fc1.bias"] = Tensor::zeros({48}, Dtype::i64);
                  }),
             {"model.safetensors", "model.decoder.layers.1.fc1.bias", "i64", "f32", "f16", "bf16"});
  check_says(with("opt",
                  [](Tensors& t) {
                    t["lm_head.weight"] = t["model.decoder.embed_tokens.weight"].clone();
                    t["lm_head.weight"].data<float>()[5] += 1;
                  }),
             {"model.safetensors", "lm_head.weight", "model.decoder.embed_tokens.weight",
              "config.json", "tie_word_embeddings"});
  CHECK(with("opt_untied", [](Tensors& t) { t.erase("lm_head.weight"); }) ==
        "model.safetensors: missing tensors: lm_head.weight");
  check_says(with("opt",
                  [](Tensors& t) {
                    t["decoder.final_layer_norm.bias"] = t["model.decoder.final_layer_norm.bias"];
                  }),
             {"model.safetensors", "model.decoder.final_layer_norm.bias",
              "decoder.final_layer_norm.bias"});
}

TEST_CASE("model: a prefix that wrappers put before every name is ignored with a remark") {
  Scratch scratch;
  for (const char* golden : {"opt", "bert_classifier", "llama", "qwen2"}) {
    CAPTURE(golden);
    const std::string whole = load_model(golden_dir(golden)).hash();
    for (const std::string prefix : {"_orig_mod.", "module.", "_orig_mod.module.", "model."}) {
      const LoadedModel m = load_model(
          copy_of(scratch, golden, {.tensors = [&](Tensors& t) { rename(t, "", prefix); }}));
      CHECK(m.hash() == whole);
      REQUIRE(m.remarks.size() == 1);
      check_says(m.remarks[0], {"model.safetensors", "every name", "'" + prefix + "'"});
    }
    CHECK(load_model(golden_dir(golden)).remarks.empty());
  }
}

TEST_CASE("model: a prefix of some names is a refusal that counts them") {
  Scratch scratch;
  int renamed = 0;
  const std::string text = refusal(copy_of(scratch, "opt", {.tensors = [&](Tensors& t) {
                                             Tensors out;
                                             for (const auto& [name, x] : t)
                                               out[(out.size() % 2 ? "_orig_mod." : "") + name] = x;
                                             renamed = int(t.size() / 2);
                                             t = out;
                                           }}));
  check_says(text, {"model.safetensors", std::to_string(renamed) + " of", "names begin with",
                    "'_orig_mod.'", "remove it"});
}

TEST_CASE("model: the refusal of a head that differs from a tied table says what to do") {
  Scratch scratch;
  for (const bool named : {true, false}) {
    auto differs = [&](bool untied) {
      return copy_of(scratch, "gpt2",
                     {.tensors =
                          [](Tensors& t) {
                            t["lm_head.weight"] = t["transformer.wte.weight"].clone();
                            t["lm_head.weight"].data<float>()[5] += 1;
                          },
                      .config =
                          [&](data::Json& c) {
                            c.erase("tie_word_embeddings");
                            if (named) c["tie_word_embeddings"] = true;
                            if (untied) c["tie_word_embeddings"] = false;
                          }});
    };
    const std::string text = refusal(differs(false));
    check_says(text, {"lm_head.weight", "transformer.wte.weight", "config.json", "false", "both"});
    CHECK((text.find("config.json ties them") != text.npos) == named);
    CHECK(refusal(differs(true)) == "no error");
  }
}

TEST_CASE("model: missing shards are counted, and the first are named") {
  Scratch scratch;
  const std::string dir = copy_of(scratch, "opt", {.shard_bytes = 1});
  std::vector<std::string> shards;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().filename().string().starts_with("model-")) shards.push_back(entry.path());
  }
  std::sort(shards.begin(), shards.end());
  const size_t lost = shards.size() - 3;
  for (size_t i = 3; i < shards.size(); ++i) std::filesystem::remove(shards[i]);
  check_says(refusal(dir), {"model.safetensors.index.json", std::to_string(lost) + " of",
                            std::to_string(shards.size()), "shards are missing", "model-00004-of-",
                            "model-00007-of-", "and " + std::to_string(lost - 4) + " more"});
  CHECK(refusal(dir).find("model-00008") == std::string::npos);
}

TEST_CASE("model: a tensor of a shard that the index does not name is ignored with a remark") {
  Scratch scratch;
  const std::string dir = copy_of(
      scratch, "opt",
      {.tensors = [](Tensors& t) { t["junk.weight"] = Tensor::zeros({3}); }, .shard_bytes = 30000});
  write_index(dir, [](data::Json& i) { i["weight_map"].erase("junk.weight"); });
  const LoadedModel m = load_model(dir);
  CHECK(m.hash() == load_model(golden_dir("opt")).hash());
  REQUIRE(m.remarks.size() == 1);
  check_says(m.remarks[0], {"index.json", "not name", "junk.weight"});
}

TEST_CASE("model: a pointer of Git LFS in the place of a file is named, with the file's size") {
  Scratch scratch;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') +
      "\nsize 538090408\n";
  for (const char* name : {"model.safetensors", "config.json"}) {
    const std::string dir = copy_of(scratch, "opt", {});
    data::write_file_atomic(dir + "/" + name, pointer);
    check_says(refusal(dir), {name, "Git LFS", "538090408 bytes", "git lfs pull"});
  }
  const std::string dir = copy_of(scratch, "opt", {});
  std::filesystem::remove(dir + "/model.safetensors");
  data::write_file_atomic(dir + "/pytorch_model.bin", pointer);
  check_says(refusal(dir), {"pytorch_model.bin", "Git LFS", "538090408"});
  const std::string gguf = scratch.write("x.gguf", pointer);
  check_says(refusal(gguf), {"x.gguf", "Git LFS", "538090408"});
  // A text about pointers is none.
  CHECK(data::read_file(scratch.write("text", "A pointer: " + pointer)).size() > pointer.size());
}

TEST_CASE("model: unsupported settings of a config.json are refused by name") {
  Scratch scratch;
  auto with = [&](const std::string& golden, const char* key, const data::Json& value) {
    return refusal(copy_of(scratch, golden, {.config = [&](data::Json& c) { c[key] = value; }}));
  };
  std::string known;
  for (const auto& [name, factory] : nn::families()) {
    if (!factory()->is_whole()) continue;
    known += (known.empty() ? "\"" : ", \"") + name + "\"";
  }
  CHECK(with("opt", "model_type", "nonesuch") ==
        "config.json: model_type \"nonesuch\" is not supported, only " + known +
            "; brine_sea.attach() gives others blocks in PyTorch");
  check_says(with("bert_classifier", "position_embedding_type", "relative_key"),
             {"config.json", "position_embedding_type", "\"relative_key\"", "\"absolute\""});
  CHECK(with("bert_classifier", "rope_theta", 1e4) == "config.json: rope_theta is not supported");
  check_says(with("opt", "quantization_config", data::Json::object()),
             {"config.json: quantization_config is not supported", "quantised", "GGUF"});
  check_says(with("bert_classifier", "hidden_act", "quick_gelu"),
             {"config.json", "hidden_act", "\"relu\"", "\"gelu\"", "\"quick_gelu\""});
  CHECK(with("opt", "enable_bias", false) ==
        "config.json: enable_bias = false is not supported, only true");
  CHECK(with("bert_classifier", "is_decoder", true) ==
        "config.json: is_decoder = true is not supported, only false");
  CHECK(with("opt", "num_attention_heads", 5).find("is not a multiple") != std::string::npos);
  CHECK(with("opt", "hidden_size", -4).find("hidden_size") != std::string::npos);
  CHECK(with("bert_classifier", "architectures", {3}) == "config.json: architectures holds 3");
  std::string none = copy_of(scratch, "opt", {.config = [](data::Json& c) { c.erase("ffn_dim"); }});
  CHECK(refusal(none) == "config.json: has no ffn_dim");
  data::write_file_atomic(none + "/config.json", "{");
  CHECK(refusal(none) == "config.json: not JSON");
  data::write_file_atomic(none + "/config.json", "{\"ffn_dim\": 1, \"ffn_dim\": 2}");
  CHECK(refusal(none) == "config.json: key \"ffn_dim\" is a duplicate");
}

TEST_CASE("model: what is no model of plain weights says what it is and what to do") {
  Scratch scratch;
  auto named = [&](const std::string& from, const std::string& to) {
    return refusal(
        copy_of(scratch, "llama", {.tensors = [&](Tensors& t) { rename(t, from, to); }}));
  };
  const std::string q = "layers.0.self_attn.q_proj.";
  check_says(named(q + "weight", q + "base_layer.weight"), {"base_layer", "adapter", "merge"});
  check_says(named(q + "weight", q + "lora_A.default.weight"), {"lora_A", "adapter", "merge"});
  for (const char* kind : {"scales", "qweight", "weight_scale_inv", "SCB"})
    check_says(named(q + "weight", q + kind), {kind, "quantised", "bf16", "GGUF"});
  data::write_file_atomic((scratch / "adapter_config.json").string(),
                          R"({"peft_type": "LORA", "base_model_name_or_path": "org/base"})");
  check_says(refusal(scratch.path().string()), {"PEFT adapter of \"org/base\"", "merge"});
}

TEST_CASE("model: an inconsistent index is refused, naming the tensor or the shard") {
  Scratch scratch;
  auto with = [&](const std::function<void(const std::string&)>& damage) {
    std::string dir = copy_of(scratch, "opt", {.shard_bytes = 30000});
    damage(dir);
    return refusal(dir);
  };
  const std::string index = "model.safetensors.index.json: ";
  const std::string bias = "model.decoder.final_layer_norm.bias";
  auto first_shard = [](const std::string& dir) {
    return json_in(dir + "/model.safetensors.index.json")["weight_map"]
                                                         ["model.decoder.embed_positions.weight"]
                                                             .get<std::string>();
  };
  CHECK(with([&](const std::string& dir) {
          std::filesystem::remove(dir + "/" + first_shard(dir));
        }).find(" shards is missing: model-00001-of-") != std::string::npos);
  CHECK(with([&](const std::string& dir) {
          write_index(dir, [&](data::Json& i) { i["weight_map"].erase(bias); });
        }) ==
        index + "missing tensors: " + bias + "; shards have, but the index does not name: " + bias);
  CHECK(with([&](const std::string& dir) {
          write_index(dir, [&](data::Json& i) { i["weight_map"]["ghost"] = first_shard(dir); });
        }).find(index + "tensor 'ghost' is not in its shard ") == 0);
  CHECK(with([&](const std::string& dir) {
          write_index(dir, [&](data::Json& i) { i["weight_map"][bias] = "../x.safetensors"; });
        }) == index + "'../x.safetensors' is not the name of a shard");
  CHECK(with([&](const std::string& dir) {
          write_index(dir, [&](data::Json& i) { i["weight_map"][bias] = 3; });
        }) == index + "the shard of '" + bias + "' is 3");
  CHECK(with([&](const std::string& dir) {
          write_index(dir, [&](data::Json& i) { i.erase("weight_map"); });
        }) == index + "has no weight_map");
  CHECK(with([&](const std::string& dir) {
          data::write_file_atomic(dir + "/model.safetensors.index.json", "[1,");
        }) == index + "not JSON");
  CHECK(with([&](const std::string& dir) {  // as text: a JSON value has every key once
          std::string text = data::read_file(dir + "/model.safetensors.index.json");
          const size_t at = text.find("\"" + bias + "\"");
          text.insert(at, "\"" + bias + "\": \"model-00009-of-00009.safetensors\", ");
          data::write_file_atomic(dir + "/model.safetensors.index.json", text);
        }) == index + "key \"" + bias + "\" is a duplicate");
  CHECK(with([&](const std::string& dir) {  // one tensor in two shards
          std::string shard = first_shard(dir);
          data::Safetensors file{data::Path(dir) / shard};
          std::vector<NamedTensor> all;
          for (const auto& e : file.entries()) all.push_back({e.name, file.tensor(e.name)});
          all.push_back({"model.decoder.layers.1.fc2.bias", Tensor::zeros({32})});
          data::save_safetensors(data::Path(dir) / shard, all);
        })
            .find("tensor 'model.decoder.layers.1.fc2.bias' is in ") != std::string::npos);
  std::string empty = (scratch / "empty").string();
  std::filesystem::create_directories(empty);
  std::filesystem::copy(golden_dir("opt") + "/config.json", empty + "/config.json");
  check_says(refusal(empty), {empty, "model.safetensors", "model.safetensors.index.json"});
  data::write_file_atomic(empty + "/pytorch_model.bin", "x");
  check_says(refusal(empty), {"pytorch_model.bin", "not a zip archive"});
}

}  // namespace brine::test
