// The output of inspect for every kind of path, and its errors.
#include "apps/inspect/inspect.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "data/checkpoint/checkpoint.h"
#include "data/codec/checksums.h"
#include "data/dump/dump_writer.h"
#include "data/hdf5/hdf5_file.h"
#include "data/tokenizer/tokenizer.h"
#include "nn/io/model_io.h"
#include "nn/models/bert/bert.h"
#include "tests/apps/helpers.h"
#include "tests/paths.h"
#include "tests/scratch.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

nn::ModelConfig tiny_config(const std::string& attention) {
  nn::ModelConfig config = nn::make_config("opt", {{"vocab_size", 40},
                                                   {"hidden_size", 12},
                                                   {"num_hidden_layers", 2},
                                                   {"num_attention_heads", 3},
                                                   {"ffn_dim", 20},
                                                   {"max_position_embeddings", 37}});
  config.attention = attention;
  data::Schema keys, described;
  const std::unique_ptr<nn::AttentionMethod> method = nn::attention_method(attention);
  method->describe(described);
  config.describe_attention(keys);
  if (described.find("k")) keys.set("attention.k", 5);
  if (attention == "sea") keys.set("attention.columns", 16);
  return config;
}

std::string write_model(const fs::path& dir, const std::string& attention) {
  nn::ModelConfig config = tiny_config(attention);
  auto model = nn::make_model(config, 3);
  nn::export_model(config, *model, nullptr, dir.string());
  return dir.string();
}

std::string inspect_refusal(const std::string& path, const InspectOptions& options = {}) {
  return message([&] { inspect(path, options); });
}

// Two samples, two shards.
std::string write_dump(const fs::path& dir) {
  data::DumpSpec spec{.content = data::DumpContent::qk,
                      .dtype = Dtype::f32,
                      .layers = 1,
                      .heads = 2,
                      .head_size = 3,
                      .key_heads = 2,
                      .hidden = 6,
                      .tokens = 5,
                      .vocab = 9,
                      .context = false,
                      .output = false,
                      .logits = data::DumpLogits::none,
                      .teacher_hash = std::string(64, 'a'),
                      .tokenizer_hash = std::string(64, 'b'),
                      .samples = 2,
                      .windows = {}};
  data::DumpWriter writer(dir, spec, {.shard_bytes = 1});
  for (int i = 0; i < 2; ++i) {
    data::DumpBatch batch;
    batch.layers.resize(1);
    batch.layers[0]["query"] = Tensor::full({1, 2, 5, 3}, 0.5 + i);
    batch.layers[0]["key"] = Tensor::full({1, 2, 5, 3}, 0.25);
    writer.put(batch);
  }
  writer.finish();
  return dir.string();
}

}  // namespace

TEST_CASE("inspect describes a model with its settings, groups and tensors") {
  Scratch scratch;
  std::string path = write_model(scratch / "model", "sea"), text = inspect(path);
  CAPTURE(text);
  for (const char* part :
       {": model\n", "2 layers of 12, 3 heads, MLP 20, 37 positions", "attention  sea",
        "    k = 5\n", "    columns = 16\n", "    base ", "    attention ", "  hash       "}) {
    CAPTURE(std::string(part));
    CHECK(contains(text, part));
  }
  CHECK(contains(text, nn::load_model(path).hash()));
  CHECK_FALSE(contains(text, "fc1.weight"));
  CHECK(
      contains(inspect(path, {.tensors = true}), "model.decoder.layers.1.fc1.weight f32 [20, 12]"));
  CHECK(contains(inspect_refusal(path + "/model.safetensors"),
                 "of a model or dump name the directory"));
}

TEST_CASE("inspect describes a checkpoint and a run, intact or damaged") {
  Scratch scratch;
  std::string model = write_model(scratch / "model", "dense"), run = (scratch / "run").string();
  fs::create_directories(run);
  std::vector<data::CheckpointFile> files;
  for (const char* name : {"config.json", "model.safetensors"}) {
    files.push_back(
        {name, [text = read_all(model + "/" + name)](const data::ByteSink& sink) { sink(text); }});
  }
  data::save_checkpoint(run, 5, files, 0);
  data::save_checkpoint(run, 7, files, 0);
  data::write_file_atomic(run + "/log.jsonl",
                          "{\"type\": \"step\", \"step\": 7, \"loss\": 1.5}\n"
                          "{\"type\": \"evaluation\", \"step\": 7, \"valid_perplexity\": 9.25}\n");
  std::string text = inspect(run);
  for (const char* part :
       {"run with 2 checkpoints", "step-00000007  good", "log ends   at step 7, loss 1.5",
        "evaluated  at step 7, valid_perplexity 9.25", "attention  dense"}) {
    CAPTURE(std::string(part));
    CHECK(contains(text, part));
  }
  data::write_file_atomic(run + "/log.jsonl",
                          "{\"type\": \"evaluation\", \"step\": 7, \"valid_matched_accuracy\": "
                          "0.5, \"valid_accuracy\": 0.75}\n");
  CHECK(contains(inspect(run), "at step 7, valid_matched_accuracy 0.5 valid_accuracy 0.75"));
  std::string newest = data::checkpoint_path(run, 7).string();
  CHECK(contains(inspect(newest), "checkpoint of step 7 by brine"));
  std::string damaged = read_all(newest + "/model.safetensors");
  damaged.back() = char(damaged.back() ^ 1);
  data::write_file_atomic(newest + "/model.safetensors", damaged);
  CHECK(contains(inspect(run), "step-00000007  DAMAGED"));
  CHECK(contains(inspect_refusal(newest), "is a damaged checkpoint"));
}

TEST_CASE("inspect describes a dump, and with verify a changed byte") {
  Scratch scratch;
  std::string path = write_dump(scratch / "dump"), text = inspect(path, {.verify = true});
  for (const char* part :
       {": teacher dump, complete", "2 of 5 tokens", "qk in f32", "1, 2 heads of 3, hidden 6",
        "logits     none", "shards     2", "samples 1 to 1", "checksum good"}) {
    CAPTURE(std::string(part));
    CHECK(contains(text, part));
  }
  std::string shard = path + "/" + data::read_manifest(path).shards[1].name;
  std::string bytes = read_all(shard);
  bytes[bytes.size() / 2] = char(bytes[bytes.size() / 2] ^ 1);
  data::write_file_atomic(shard, bytes);
  CHECK(contains(inspect(path), "complete"));
  CHECK(contains(inspect_refusal(path, {.verify = true}), "is damaged: its checksum differs"));
  fs::remove(shard);
  CHECK(contains(inspect_refusal(path), "is missing"));
}

TEST_CASE("inspect describes tokenizers") {
  std::string tokenizer = brine::test::source_dir() + "/tests/golden/tokenizer";
  for (const auto& entry : fs::recursive_directory_iterator(tokenizer)) {
    if (entry.path().filename() != "tokenizer.json") continue;
    CHECK(contains(inspect(entry.path().string()), ": tokenizer\n"));
    CHECK(contains(inspect(entry.path().parent_path().string()), "  vocabulary "));
  }
}

TEST_CASE("inspect prints the hash by which a dump knows its text") {
  Scratch scratch;
  const std::string path = (scratch / "text").string();
  data::write_file_atomic(path, "\xef\xbb\xbfhello, hello\n");
  CHECK(contains(inspect(path), ": text in UTF-8, 13 B\n  SHA-256     "));
  const std::string tokenizer = brine::test::source_dir() + "/tests/golden/tokenizer";
  const std::unique_ptr<data::Tokenizer> t = data::load_tokenizer(tokenizer);
  const std::vector<int32_t> ids = t->encode("hello, hello\n");
  data::Sha256 hash;  // of little-endian i32
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      const auto byte = uint8_t(uint32_t(id) >> shift);
      hash.update(&byte, 1);
    }
  }
  const std::string text = inspect(path, {.tokenizer = tokenizer});
  CHECK(contains(text, join("  tokens      ", ids.size(), "\n  corpus_hash ", hash.hex(), "\n")));
  CHECK(contains(inspect_refusal(scratch.path().string(), {.tokenizer = tokenizer}),
                 "--tokenizer is for a text file"));
}

TEST_CASE("inspect refuses what it does not know in one line") {
  Scratch scratch;
  fs::create_directories(scratch / "empty");
  data::write_file_atomic(scratch / "text", "hello\x01");
  data::write_file_atomic(scratch / "nothing", "");
  data::write_file_atomic(scratch / "torn.h5", std::string("\x89HDF\r\n\x1a\n", 8));
  for (const char* name : {"absent", "empty", "text", "nothing", "torn.h5"}) {
    CAPTURE(name);
    std::string path = (scratch / name).string();
    Finished run = run_brine("inspect " + path);
    CHECK(run.status == 1);
    CHECK(run.out.empty());
    CHECK(contains(run.error, path));
    CHECK(std::count(run.error.begin(), run.error.end(), '\n') == 1);
  }
  CHECK(run_brine("inspect").status == 1);
}

TEST_CASE("inspect describes the model of a GGUF file") {
  const std::string path = brine::test::source_dir() + "/tests/golden/gguf/llama.gguf";
  const std::string text = inspect(path, {.tensors = true});
  CHECK(contains(text, "llama.gguf: model\n"));
  CHECK(contains(text, "model.layers.0.self_attn.k_proj.weight f32 [16, 32]\n"));
  CHECK(contains(text, "  hash       "));
}

}  // namespace brine::tests
