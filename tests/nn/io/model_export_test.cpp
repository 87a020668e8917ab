// Exports of models: types, shards, round trips bit for bit, adapters and their errors.
#include "tests/nn/io/model_dirs.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// A SEA student of a golden model, its base untouched, its own tensors as they are drawn.
struct Student {
  nn::ModelConfig config;
  std::unique_ptr<nn::Model> model;
  std::string base;

  explicit Student(const std::string& golden) : base(golden_dir(golden)) {
    LoadedModel teacher = load_model(base);
    config.copy_sizes(teacher.config);
    config.attention = "sea";
    data::Schema keys;
    config.method().describe(keys);
    keys.set_text("k", {"3"});
    keys.set_text("columns", {"12"});
    model = make_student(config, *teacher.model, 5);
  }
  std::string hash() const { return tensor_hash(tensors_of(*model)); }
  std::string write(const Scratch& scratch, const std::string& name, const ExportOptions& options) {
    std::string out = (scratch / name).string();
    export_model(config, *model, nullptr, out, options);
    return out;
  }
  std::string refusal_of(const Scratch& scratch, const std::string& base_model) {
    try {
      write(scratch, "refused", {.base_model = base_model});
    } catch (const Error& e) {
      CHECK_FALSE(std::filesystem::exists(scratch / "refused"));
      return e.what();
    }
    return "written";
  }
};

std::string weights_in(const std::string& dir) {
  return data::read_file(dir + "/model.safetensors");
}

}  // namespace

TEST_CASE(
    "export: a SEA student comes back bit for bit, decoder and encoder, whole and in shards") {
  for (const char* golden : {"opt", "opt_350m", "bert_classifier", "bert_masked_lm"}) {
    CAPTURE(golden);
    Scratch scratch;
    Student s(golden);
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
    Student s("opt");
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

TEST_CASE("export: a value too large for f16 is refused before anything is written") {
  Scratch scratch;
  Student s("opt");
  for (auto& p : s.model->named_parameters()) {
    if (p.path == "model.decoder.layers.0.fc1.bias") p.parameter->value.data<float>()[3] = 70000;
  }
  check_refuses([&] { s.write(scratch, "out", {.dtype = Dtype::f16}); },
                {"export", "model.decoder.layers.0.fc1.bias", "70000", "f16", "bf16", "f32"});
  CHECK_FALSE(std::filesystem::exists(scratch / "out"));
  CHECK_NOTHROW(s.write(scratch, "out", {.dtype = Dtype::bf16}));
  CHECK_THROWS_AS(s.write(scratch, "out", {}), Error);  // contains a model already
}

TEST_CASE("export: no shard is larger than requested unless one tensor is") {
  Scratch scratch;
  Student s("opt");
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
    Student s(golden);
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
  Student s("opt");
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
  check_refuses(
      [&] {
        export_model(dense.config, *dense.model, nullptr, (scratch / "dense").string(),
                     {.base_model = s.base});
      },
      {"export", "flash", "adapter"});
}

}  // namespace brine::test
