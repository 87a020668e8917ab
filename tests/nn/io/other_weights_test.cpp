// Models from pytorch_model.bin and from GGUF files: the same as from safetensors, bit for bit.
#include <cstring>

#include "data/tokenizer/vocabulary.h"
#include "tensor/device/allocator.h"
#include "tests/nn/io/model_dirs.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

namespace fs = std::filesystem;

std::string weights_golden(const std::string& name) {
  return source_dir() + "/tests/golden/" + name;
}

// A directory with the golden files of torch.save and the config.json of their model.
std::string torch_dir(const Scratch& scratch, const std::string& name) {
  const std::string out = (scratch / name).string();
  fs::copy(weights_golden("torch/" + name), out, fs::copy_options::recursive);
  fs::copy(golden_dir(name) + "/config.json", out + "/config.json");
  return out;
}

// A directory with the tensors and config.json that a golden GGUF file contains.
std::string expanded_gguf(const Scratch& scratch, const std::string& name) {
  const std::string out = (scratch / name).string();
  fs::create_directories(out);
  fs::copy(weights_golden("gguf/" + name + ".safetensors"), out + "/model.safetensors");
  fs::copy(weights_golden("gguf/" + name + ".json"), out + "/config.json");
  return out;
}

std::string logit_bits(LoadedModel& m) {
  NoGrad off;
  const Tensor ids = Tensor::from(std::vector<int32_t>{4, 7, 1, 9, 20, 2}, {1, 6});
  const Tensor x = m.model->logits(m.model->hidden({.ids = ids}));
  return {reinterpret_cast<const char*>(x.raw()), size_t(x.numel()) * item_size(x.dtype())};
}

constexpr const char* kGguf[] = {"llama", "llama3", "qwen2", "qwen3", "gpt2"};

}  // namespace

TEST_CASE("model: pytorch_model.bin, mapped and copied, is the model of its safetensors") {
  Scratch scratch;
  for (const char* name : {"opt_untied", "opt_350m"}) {
    CAPTURE(std::string(name));
    const std::string dir = torch_dir(scratch, name), hash = load_model(golden_dir(name)).hash();
    const int64_t before = allocator_stats().live;
    LoadedModel copied = load_model(dir);
    const int64_t between = allocator_stats().live;
    LoadedModel mapped = load_model(dir, {.map = true});
    CHECK(allocator_stats().live - between < (between - before) / 2);
    CHECK(copied.hash() == hash);
    CHECK(mapped.hash() == hash);
    CHECK(logit_bits(mapped) == logit_bits(copied));
  }
}

TEST_CASE("model: a GGUF file is the model of its tensors in Hugging Face's layout") {
  Scratch scratch;
  for (const char* name : kGguf) {
    CAPTURE(std::string(name));
    const std::string file = weights_golden(join("gguf/", name, ".gguf"));
    LoadedModel wanted = load_model(expanded_gguf(scratch, name));
    LoadedModel gguf = load_model(file), mapped = load_model(file, {.map = true});
    CHECK(gguf.directory == file);
    CHECK(gguf.hash() == wanted.hash());
    CHECK(mapped.hash() == wanted.hash());
    CHECK(logit_bits(gguf) == logit_bits(wanted));
    CHECK(
        data::differences(sizes_to_json(load_config(file)), sizes_to_json(wanted.config)).empty());
    CHECK(is_model_path(file));
    CHECK(resolve_model(file) == file);
  }
}

TEST_CASE("model: an exported GGUF file comes back bit for bit") {
  Scratch scratch;
  for (const char* name : kGguf) {
    CAPTURE(std::string(name));
    LoadedModel gguf = load_model(weights_golden(join("gguf/", name, ".gguf")));
    const std::string out = (scratch / join(name, "-out")).string();
    export_model(gguf.config, *gguf.model, nullptr, out);
    LoadedModel back = load_model(out);
    CHECK(back.hash() == gguf.hash());
    CHECK(logit_bits(back) == logit_bits(gguf));
  }
}

TEST_CASE("model: the tokenizer of a GGUF file is that of its metadata") {
  Scratch scratch;
  const std::string file = weights_golden("gguf/llama.gguf");
  CHECK(tokenizer_location(file) == file);
  const std::unique_ptr<data::Tokenizer> made =
      data::make_tokenizer(data::gguf_vocabulary(data::Path(file)), file);
  CHECK(tokenizer_of(file)->hash() == made->hash());
  CHECK(tokenizer_of(file)->vocab_size() == 260);
  CHECK(tokenizer_of(file)->encode("the <|x|>") == std::vector<int32_t>{258, 33, 259});
  LoadedModel m = load_model(file);
  const std::string out = (scratch / "out").string();
  export_model(m.config, *m.model, tokenizer_of(file).get(), out);
  CHECK(tokenizer_of(out)->hash() == made->hash());
}

TEST_CASE("model: an adapter's base may be a GGUF file") {
  Scratch scratch;
  const std::string base = weights_golden("gguf/llama.gguf");
  SeaStudent s(base);
  CHECK(load_model(s.write(scratch, "adapter", {.base_model = base})).hash() == s.hash());
}

TEST_CASE("model: what is neither a directory nor a GGUF file is refused") {
  Scratch scratch;
  const std::string text = scratch.write("model.gguf", "GGU");
  CHECK_FALSE(is_model_path(text));
  CHECK_REFUSES(load_model(text), "model.gguf", "not a directory", "GGUF");
  const std::string cut = data::read_file(weights_golden("gguf/llama.gguf")).substr(0, 8000);
  CHECK_REFUSES(load_model(scratch.write("cut.gguf", cut)), "cut.gguf", "truncated");
}

}  // namespace brine::test
