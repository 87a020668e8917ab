// Tensors over a mapped safetensors file: no copy, writes stay private, the file may be replaced.
#include <doctest/doctest.h>

#include <cstring>
#include <optional>

#include "data/safetensors/safetensors.h"
#include "tensor/device/allocator.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

using namespace brine::data;

using Values = std::vector<double>;

Path saved(const Scratch& dir, const std::vector<float>& values) {
  const Path path = dir / "f.safetensors";
  save_safetensors(path, {{"x", Tensor::from(values, {int64_t(values.size())})},
                          {"y", Tensor::full({2, 2}, 5, Dtype::f16)}});
  return path;
}

// A file with a header of any length, so that the data may be of any alignment.
std::string file_of(const std::string& header, const std::vector<float>& values) {
  const uint64_t size = header.size();
  std::string bytes(8 + size + values.size() * 4, '\0');
  std::memcpy(bytes.data(), &size, 8);
  std::memcpy(bytes.data() + 8, header.data(), size);
  std::memcpy(bytes.data() + 8 + size, values.data(), values.size() * 4);
  return bytes;
}

}  // namespace

TEST_CASE("mapped safetensors: values without a copy, which outlive the reader") {
  Scratch dir;
  const Path path = saved(dir, {1, 2, 3});
  const int64_t live = allocator_stats().live;
  std::optional<Safetensors> file(path);
  const unsigned char* bytes = file->entry("x").bytes;
  Tensor x = file->mapped(file->entry("x")), y = file->mapped(file->entry("y"));
  CHECK(x.raw() == bytes);
  CHECK(y.dtype() == Dtype::f16);
  CHECK(y.shape() == Shape{2, 2});
  CHECK(allocator_stats().live == live);
  file.reset();
  CHECK(x.to_vector() == Values{1, 2, 3});
  CHECK(y.to_vector() == Values{5, 5, 5, 5});
}

TEST_CASE("mapped safetensors: writes stay in this process, also after forget()") {
  Scratch dir;
  const std::vector<float> many(5000, 1);
  const Path path = saved(dir, many);
  Safetensors file(path);
  const SafetensorsEntry& e = file.entry("x");
  const Tensor x = file.mapped(e), again = file.mapped(e);
  assign(x, Tensor::full({5000}, 7));
  file.forget(e);
  CHECK(again.to_vector() == Values(5000, 7));
  CHECK(Safetensors(path).tensor("x").to_vector() == Values(5000, 1));
}

TEST_CASE("mapped safetensors: a file that is replaced or removed stays valid") {
  Scratch dir;
  const Path path = saved(dir, {1, 2, 3});
  Safetensors file(path);
  const Tensor x = file.mapped(file.entry("x"));
  saved(dir, {4, 5, 6});
  CHECK(x.to_vector() == Values{1, 2, 3});
  CHECK(Safetensors(path).tensor("x").to_vector() == Values{4, 5, 6});
  std::filesystem::remove(path);
  CHECK(x.to_vector() == Values{1, 2, 3});
}

TEST_CASE("mapped safetensors: bytes that are not aligned to their type are copied") {
  Scratch dir;
  std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  for (size_t spaces = 0; spaces < 4; ++spaces, header += ' ') {
    CAPTURE(header.size());
    Safetensors file(dir.write("f.safetensors", file_of(header, {3, 4})));
    const Tensor a = file.mapped(file.entry("a"));
    CHECK((a.raw() == file.entry("a").bytes) == (header.size() % 4 == 0));
    CHECK(a.to_vector() == Values{3, 4});
  }
}

}  // namespace brine::test
