// PyTorch's files against the same tensors written by safetensors.
#include <doctest/doctest.h>

#include <cstring>

#include "data/checkpoint/weights.h"
#include "data/safetensors/safetensors.h"
#include "data/torch/torch_file.h"
#include "tests/data/torch/torch_bytes.h"
#include "tests/paths.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

using namespace brine::data;

Path torch_golden(const std::string& name) { return source_dir() + "/tests/golden/torch/" + name; }

bool equal_bits(const Tensor& a, const Tensor& b) {
  const size_t bytes = size_t(a.numel()) * item_size(a.dtype());
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (bytes == 0 || std::memcmp(a.raw(), b.raw(), bytes) == 0);
}

}  // namespace

TEST_CASE("torch: a state dict has the tensors that safetensors has, of every type") {
  const TorchFile torch(torch_golden("state.bin"));
  const Safetensors wanted(torch_golden("state.safetensors"));
  CHECK(torch.entries().size() == wanted.entries().size());
  for (const WeightInfo& e : wanted.entries()) {
    CAPTURE(e.name);
    REQUIRE(torch.contains(e.name));
    const WeightInfo& entry = torch.entry(e.name);
    CHECK(entry.dtype == e.dtype);
    const Tensor expected = wanted.tensor(e.name);
    CHECK(equal_bits(torch.tensor(e.name), expected));
    CHECK(equal_bits(torch.mapped(entry), expected));
    if (!is_float(expected.dtype())) continue;
    const Tensor read = Tensor::empty(expected.shape(), Dtype::f32);
    torch.read(entry, read);
    CHECK(equal_bits(read, expected.to(Dtype::f32)));
  }
}

TEST_CASE("torch: what is in order is mapped, what is not is packed") {
  const TorchFile torch(torch_golden("state.bin"));
  for (const char* name : {"f32", "rows", "parameter", "repeated", "scalar"}) {
    CAPTURE(std::string(name));
    CHECK(torch.in_order(torch.entry(name)));
    CHECK(torch.mapped(torch.entry(name)).raw() == torch.entry(name).bytes);
  }
  for (const char* name : {"transposed", "half_transposed", "columns", "permuted"}) {
    CAPTURE(std::string(name));
    CHECK_FALSE(torch.in_order(torch.entry(name)));
  }
  CHECK(torch.entry("repeated").bytes == torch.entry("f32").bytes);
}

TEST_CASE("torch: writes to a mapped tensor stay in this process") {
  Scratch dir;
  const Path path = dir.write("x.bin", TorchBytes().text());
  const TorchFile file(path);
  const Tensor x = file.tensor("x");
  assign(x, Tensor::full({2, 3}, 7));
  file.forget(file.entry("x"));
  CHECK(TorchFile(path).tensor("x").to_vector() == std::vector<double>(6, 0));
}

TEST_CASE("weights: pytorch_model.bin, alone and in shards, equals model.safetensors") {
  for (const char* name : {"opt_untied", "opt_350m"}) {
    const WeightFiles torch(torch_golden(name));
    const WeightFiles wanted(Path(source_dir()) / "tests/golden/models" / name);
    CHECK(torch.entries().size() == wanted.entries().size());
    for (const WeightEntry& w : wanted.entries()) {
      const auto found = std::find_if(torch.entries().begin(), torch.entries().end(),
                                      [&](auto& t) { return t.entry->name == w.entry->name; });
      CAPTURE(w.entry->name);
      REQUIRE(found != torch.entries().end());
      CHECK(equal(*found, w));
    }
  }
}

TEST_CASE("weights: safetensors come before pytorch_model.bin") {
  Scratch dir;
  dir.write("pytorch_model.bin", TorchBytes().text());
  CHECK(WeightFiles(dir.path()).entries().size() == 1);
  save_safetensors(dir / "model.safetensors",
                   {{"y", Tensor::zeros({2})}, {"z", Tensor::zeros({1})}});
  CHECK(WeightFiles(dir.path()).entries().size() == 2);
}

TEST_CASE("weights: an index of pytorch_model.bin names only shards that exist") {
  Scratch dir;
  dir.write("a.bin", TorchBytes().text());
  const std::string index = "pytorch_model.bin.index.json";
  auto said = [&](const std::string& map) {
    dir.write(index, "{\"weight_map\": " + map + "}");
    return message([&] { WeightFiles files(dir.path()); });
  };
  CHECK(said(R"({"x": "a.bin"})") == "no error");
  check_says(said(R"({"x": "a.safetensors"})"), {index, "a.safetensors", "not the name"});
  check_says(said(R"({"x": "../a.bin"})"), {index, "../a.bin", "not the name"});
  check_says(said(R"({"x": "b.bin"})"), {index, "1 of 1 shards", "missing", "b.bin"});
  check_says(said(R"({"x": "a.bin", "y": "a.bin"})"), {index, "'y'", "a.bin"});
}

}  // namespace brine::test
