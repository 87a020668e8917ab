// The output of inspect for every kind of path, its errors, and a capture compared with a Tap.
#include "apps/inspect/inspect.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/inspect/capture_input.h"
#include "data/checkpoint/checkpoint.h"
#include "data/codec/sha256.h"
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

// Keeps what every layer shows.
struct Keep : nn::LayerObserver {
  void prepare(nn::Tap& tap) const override {
    tap.request("images");
    tap.request(nn::kProbabilities);
  }
  std::vector<std::map<std::string, Tensor>> layers;
  Tensor observe(int64_t, const nn::Tap& tap, const Tensor& output) override {
    layers.push_back(tap.values());
    layers.back()["output"] = output;
    return {};
  }
};

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

TEST_CASE("a capture contains exactly the entries of a Tap, for every registered method") {
  Scratch scratch;
  std::vector<int32_t> ids;
  for (int i = 0; i < 23; ++i) ids.push_back(i * 7 % 40);
  for (const auto& [name, factory] : nn::attention_methods()) {
    CAPTURE(name);
    nn::LoadedModel m = nn::load_model(write_model(scratch / name, name));
    std::string out = (scratch / (name + ".h5")).string();
    capture(m, {.ids = ids, .options = {}, .model = m.directory}, out);
    Keep keep;
    NoGrad off;
    Tensor batch = Tensor::from(ids, {1, 23});
    m.model->hidden({.ids = batch, .observer = &keep});
    data::Hdf5Reader file(out);
    CHECK(file.read("ids").to_vector() == batch.to_vector());
    CHECK(file.string_attribute("/", "attention") == name);
    size_t datasets = 2;
    for (size_t i = 0; i < keep.layers.size(); ++i) {
      for (const auto& [tensor, value] : keep.layers[i]) {
        CAPTURE(tensor);
        const std::string dataset = tensor == "scores"             ? "S"
                                    : tensor == "gates"            ? "scalers"
                                    : tensor == "attention_output" ? "context"
                                                                   : tensor;
        std::string at = join("layers/0", i, "/", dataset);
        REQUIRE(file.has(at));
        Tensor got = file.read(at);
        CHECK(got.dtype() == value.dtype());
        CHECK(got.shape() == value.shape());
        CHECK(got.to_vector() == value.to_vector());
        ++datasets;
      }
    }
    CHECK(file.datasets().size() == datasets);
    CHECK(file.string_attribute("/", "format") == "brine-capture");
    CHECK(contains(message([&] { capture(m, {.ids = ids, .options = {}, .model = ""}, out); }),
                   "exists already"));
    if (name == "sea") {
      for (const char* stage : {"C_perf", "Z", "S", "estimate", "selected", "row_pointers",
                                "head_offsets", "columns", "probabilities", "scalers", "context"}) {
        CAPTURE(stage);
        CHECK(file.has(std::string("layers/01/") + stage));
      }
    }
  }
}

TEST_CASE("capture: the dense path takes full attention with maps, other methods stay") {
  Scratch scratch;
  for (const auto& [name, dense, attention] : {std::tuple{"flash", true, "dense"},
                                               {"flash", false, "flash"},
                                               {"dense", true, "dense"},
                                               {"recent", true, "recent"},
                                               {"sea", true, "sea"}}) {
    CAPTURE(name);
    CAPTURE(dense);
    nn::LoadedModel m = nn::load_model(write_model(scratch / join(name, dense), name));
    CaptureInput input;
    input.tokens = "1,2,3";
    input.k = 4;
    if (dense) input.path = distill::AttentionPath::dense;
    const CaptureCall call = capture_call(input, m);
    CHECK(m.config.attention == attention);
    CHECK(m.model->attention_name() == attention);
    CHECK(call.ids == std::vector<int32_t>{1, 2, 3});
    CHECK(call.options.k == 4);
    CHECK(call.options.dense_path == dense);
    CHECK(call.model == m.directory);
  }
}

TEST_CASE("capture: flash attention has no map, by the dense path it has") {
  Scratch scratch;
  const std::string model = write_model(scratch / "model", "flash");
  for (const char* path : {"sparse", "dense"}) {
    const std::string out = (scratch / path).string();
    CHECK(run_brine(join("inspect ", model, " --capture ", out, " --tokens 1,2,3 --path ", path))
              .status == 0);
    CHECK(data::Hdf5Reader(out).has("layers/01/probabilities") == (path == std::string("dense")));
  }
}

TEST_CASE("a capture refuses bad input and leaves no file") {
  Scratch scratch;
  std::string model = write_model(scratch / "model", "sea"), out = (scratch / "out.h5").string();
  for (const char* more :
       {"--tokens 1,2,40", "--tokens 1,,2", "--tokens 1,x", "", "--text x", "--data /nowhere"}) {
    CAPTURE(more);
    Finished run = run_brine("inspect " + model + " --capture " + out + " " + more);
    CHECK(run.status == 1);
    CHECK(std::count(run.error.begin(), run.error.end(), '\n') == 1);
    CHECK_FALSE(fs::exists(out));
  }
  CHECK(run_brine("inspect " + model + " --tokens 1,2").status == 1);
  CHECK(run_brine("inspect " + model + " --capture " + out + " --tokens 1,2,3").status == 0);
  CHECK(fs::exists(out));
}

TEST_CASE("a capture of an encoder's text has the tokens that its tokenizer puts around it") {
  Scratch scratch;
  nn::ModelConfig config;
  config.model_type = "bert";
  config.as<nn::BertConfig>() = {.vocab_size = 40,
                                 .hidden_size = 12,
                                 .num_hidden_layers = 1,
                                 .num_attention_heads = 3,
                                 .intermediate_size = 20,
                                 .max_position_embeddings = 16};
  auto model = nn::make_model(config, 3);
  fs::path dir = scratch / "encoder";
  nn::export_model(config, *model, nullptr, dir.string());
  std::ofstream(dir / "vocab.txt") << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n";
  std::string out = (scratch / "out.h5").string();
  Finished run = run_brine("inspect " + dir.string() + " --capture " + out + " --text 'b a c'");
  REQUIRE_MESSAGE(run.status == 0, run.error);
  CHECK(data::Hdf5Reader(out).read("ids").to_vector() == std::vector<double>{2, 6, 5, 1, 3});
}

TEST_CASE("inspect describes the model of a GGUF file") {
  const std::string path = brine::test::source_dir() + "/tests/golden/gguf/llama.gguf";
  const std::string text = inspect(path, {.tensors = true});
  CHECK(contains(text, "llama.gguf: model\n"));
  CHECK(contains(text, "model.layers.0.self_attn.k_proj.weight f32 [16, 32]\n"));
  CHECK(contains(text, "  hash       "));
}

}  // namespace brine::tests
