// safetensors against files of the reference implementation, and against every kind of broken file.
#include "data/safetensors/safetensors.h"

#include <doctest/doctest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "tests/faults.h"
#include "tests/paths.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

Path golden_file(const std::string& name) {
  return Path(brine::test::source_dir()) / "tests/golden/safetensors" / name;
}

std::string length_prefix(uint64_t n) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &n, 8);
  return bytes;
}

std::string file_of(const std::string& header, size_t data_bytes) {
  return length_prefix(header.size()) + header + std::string(data_bytes, '\1');
}

// The reason with which a file of these bytes is refused, without the file's name; "" if it is not.
std::string refusal(const std::string& bytes) {
  Scratch dir;
  Path path = dir / "f.safetensors";
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    Safetensors file(path);
    for (const SafetensorsEntry& e : file.entries()) {
      try {
        file.tensor(e.name);
      } catch (const Error&) {
      }
    }
  } catch (const Error& e) {
    std::string message = e.what(), start = path.string() + ": ";
    CHECK(message.starts_with(start));
    return message.substr(std::min(start.size(), message.size()));
  }
  return "";
}

std::string one(const std::string& fields) { return "{\"a\":{" + fields + "}}"; }
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

}  // namespace

TEST_CASE("safetensors: reads the reference's file of every dtype") {
  Safetensors file(golden_file("mixed.safetensors"));
  CHECK(file.entries().size() == 11);
  CHECK(file.metadata().at("format") == "pt");
  auto ramp = [](int i) { return float(i * 757 - 4001) / 2048; };
  Tensor f32 = file.tensor("f32.matrix");
  CHECK(f32.shape() == Shape{3, 4});
  Tensor f64 = file.tensor("f64"), half = file.tensor("f16"), brain = file.tensor("bf16");
  CHECK(brain.shape() == Shape{2, 6});
  CHECK(brain.dtype() == Dtype::bf16);
  for (int i = 0; i < 12; ++i) {
    CHECK(f32.data<float>()[i] == ramp(i));
    CHECK(f64.data<double>()[i] == double(ramp(i)) / 3);
    CHECK(half.data<f16>()[i].bits == f16(ramp(i)).bits);
    CHECK(brain.data<bf16>()[i].bits == bf16(ramp(i)).bits);
  }
  CHECK(file.tensor("i32").data<int32_t>()[0] == std::numeric_limits<int32_t>::min());
  CHECK(file.tensor("i64").data<int64_t>()[1] == std::numeric_limits<int64_t>::max());
  CHECK(file.tensor("u8").data<uint8_t>()[2] == 255);
  CHECK(file.tensor("scalar").rank() == 0);
  CHECK(file.tensor("scalar").data<float>()[0] == 2.5f);
  CHECK(file.tensor("empty").shape() == Shape{0, 5});
  CHECK(file.tensor("axes").shape() == Shape{2, 1, 2, 1, 2, 1});
  CHECK(file.contains("größe \"q\"\\n\n"));
  CHECK_FALSE(file.contains("größe"));
}

TEST_CASE("safetensors: writes the reference's bytes, whatever the order given") {
  Safetensors file(golden_file("mixed.safetensors"));
  std::vector<NamedTensor> tensors;
  for (const SafetensorsEntry& e : file.entries()) tensors.push_back({e.name, file.tensor(e.name)});
  for (int order = 0; order < 3; ++order) {
    std::rotate(tensors.begin(), tensors.begin() + 4, tensors.end());
    std::string bytes;
    write_safetensors([&](std::string_view piece) { bytes += piece; }, tensors);
    CHECK(bytes == read_file(golden_file("mixed.safetensors")));
  }
  std::string bytes;
  auto append = [&](std::string_view piece) { bytes += piece; };
  write_safetensors(append,
                    {{"a", Safetensors(golden_file("no_metadata.safetensors")).tensor("a")}}, {});
  CHECK(bytes == read_file(golden_file("no_metadata.safetensors")));
  bytes.clear();
  write_safetensors(append, {}, {});
  CHECK(bytes == read_file(golden_file("empty.safetensors")));
}

TEST_CASE("safetensors: dtypes that Brine has not are listed, and refused by name on access") {
  Safetensors file(golden_file("foreign.safetensors"));
  CHECK(file.entry("f8").dtype == "F8_E4M3");
  CHECK(file.entry("f8").size == 3);
  CHECK(file.entry("u64").bytes[7] == 255);
  Tensor flags = file.tensor("bool");
  CHECK(flags.to_vector() == std::vector<double>{1, 0, 1});
  for (auto [name, dtype] : {std::pair("f8", "F8_E4M3"), {"i8", "I8"}, {"u64", "U64"}}) {
    CHECK_THROWS_WITH_AS(file.tensor(name),
                         (file.path().string() + ": tensor '" + name + "' has dtype " + dtype +
                          ", which Brine cannot use")
                             .c_str(),
                         Error);
  }
  CHECK_THROWS_WITH_AS(file.tensor("x"), (file.path().string() + ": has no tensor 'x'").c_str(),
                       Error);
}

TEST_CASE("safetensors: a round trip keeps strides' values, NaN and the reader's old file") {
  Scratch dir;
  Tensor x = Tensor::from(std::vector<float>{1, 2, 3, NAN, -0.0f, INFINITY}, Shape{2, 3});
  save_safetensors(dir / "m", {{"x.t", x.transpose(0, 1)}, {"x", x}}, {{"k", "v"}});
  Safetensors before(dir / "m");
  CHECK(before.metadata() == StringMap{{"k", "v"}});
  Tensor t = before.tensor("x.t");
  CHECK(t.shape() == Shape{3, 2});
  const float* p = t.data<float>();
  CHECK((p[0] == 1 && std::isnan(p[1]) && p[2] == 2 && std::signbit(p[3]) && std::isinf(p[5])));
  save_safetensors(dir / "m", {{"x", Tensor::zeros({2, 3})}});
  CHECK(before.tensor("x").data<float>()[1] == 2);
  CHECK(Safetensors(dir / "m").tensor("x").data<float>()[1] == 0);
}

TEST_CASE("safetensors: what cannot be written is refused and leaves nothing") {
  Scratch dir;
  Tensor x = Tensor::zeros({2});
  auto save = [&](const std::vector<NamedTensor>& t) { save_safetensors(dir / "m", t); };
  CHECK_THROWS_AS(save({{"a", x}, {"a", x}}), Error);
  CHECK_THROWS_AS(save({{"__metadata__", x}}), Error);
  CHECK_THROWS_AS(save({{std::string("a\0b", 3), x}}), Error);
  CHECK_THROWS_AS(save({{"\xff", x}}), Error);
  CHECK_THROWS_AS(save({{"a", Tensor()}}), Error);
  CHECK(std::filesystem::is_empty(dir.path()));
}

TEST_CASE("safetensors: legal oddities are accepted") {
  const std::string f32 = entry("F32", "[1]", "[0,4]");
  CHECK(refusal(file_of("{}", 0)) == "");
  CHECK(refusal(file_of("{}      ", 0)) == "");
  CHECK(refusal(file_of("{\"a\":" + f32 + "}", 4)) == "");  // data not aligned
  CHECK(refusal(file_of("{\"b\":" + entry("F32", "[1]", "[4,8]") + ",\"a\":" + f32 + "}", 8)) ==
        "");
  CHECK(refusal(file_of(one("\"data_offsets\":[0,0],\"shape\":[0,7],\"dtype\":\"I64\""), 0)) == "");
  CHECK(refusal(file_of("{\"a\":" + entry("F4", "[3,2]", "[0,3]") + "}", 3)) == "");
  CHECK(refusal(file_of("{\"a\":" + entry("U8", "[1,1,1,1,1,1,1,1]", "[0,1]") + "}", 1)) == "");
}

TEST_CASE("safetensors: sizes that do not fit the file are refused") {
  CHECK(refusal("").find("0 bytes are too few") == 0);
  CHECK(refusal("1234567").find("7 bytes are too few") == 0);
  CHECK(refusal(length_prefix(0)).find("header does not begin with '{'") == 0);
  CHECK(refusal(length_prefix(3) + "{}").find("header of 3 bytes in a file of 10") == 0);
  CHECK(refusal(length_prefix(100'000'001) + "{}").find("header of 100000001 bytes, at most") == 0);
  CHECK(refusal(length_prefix(UINT64_MAX) + "{}").find("at most 100000000") != std::string::npos);
  CHECK(refusal(file_of("{}", 1)).find("1 bytes after the last tensor") == 0);
}

TEST_CASE("safetensors: every broken header is refused with its reason") {
  const std::string good = entry("F32", "[1]", "[0,4]");
  const std::string second = entry("F32", "[1]", "[4,8]");
  struct Bad {
    std::string header, reason;
    size_t data = 4;
  };
  const std::vector<Bad> cases = {
      {" {\"a\":" + good + "}", "does not begin with '{'"},
      {"[1]", "does not begin with '{'"},
      {"{\"a\":" + good, "bad JSON"},
      {"{\"a\":" + good + "}}", "bad JSON"},
      {"{\"a\":" + good + "}x", "bad JSON"},
      {"{\"\xff\":" + good + "}", "bad JSON"},
      {"{\"a\":" + good + "}" + std::string(1, '\0') + "junk", "NUL byte in the header"},
      {"{\"a\\u0000b\":" + good + "}", "NUL byte in the name"},
      {"{\"a\":" + good + ",\"a\":" + good + "}", "key \"a\" is a duplicate"},
      {"{\"__metadata__\":{},\"__metadata__\":{},\"a\":" + good + "}", "is a duplicate"},
      {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"},\"a\":" + good + "}",
       "key \"k\" is a duplicate"},
      {"{\"__metadata__\":{\"k\":1},\"a\":" + good + "}", "unexpected a number"},
      {"{\"__metadata__\":{\"k\":null}}", "unexpected null"},
      {"{\"__metadata__\":{\"k\":{}}}", "unexpected an object"},
      {"{\"__metadata__\":{\"k\":[]}}", "unexpected an array"},
      {"{\"__metadata__\":{\"k\":\"a\\u0000\"}}", "NUL byte in the metadata"},
      {"{\"__metadata__\":\"pt\"}", "unexpected a string"},
      {"{\"a\":3}", "unexpected a number"},
      {"{\"a\":[]}", "unexpected an array"},
      {"{\"a\":{}}", "needs dtype, shape and data_offsets"},
      {one("\"dtype\":\"F32\",\"shape\":[1]"), "needs dtype"},
      {one("\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"),
       "is a duplicate"},
      {one("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1"), "the key 'x'"},
      {one("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\\n\":1"),
       "the key 'x\\x0a'"},
      {one("\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]"), "unexpected a number"},
      {one("\"dtype\":[],\"shape\":[1],\"data_offsets\":[0,4]"), "unexpected an array"},
      {one("\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]"), "unexpected a number"},
      {"{\"a\":" + entry("F32", "[[1]]", "[0,4]") + "}", "unexpected an array"},
      {"{\"a\":" + entry("F32", "[1.0]", "[0,4]") + "}", "the number 1.0"},
      {"{\"a\":" + entry("F32", "[-1]", "[0,4]") + "}", "a negative number"},
      {"{\"a\":" + entry("F32", "[\"1\"]", "[0,4]") + "}", "unexpected a string"},
      {"{\"a\":" + entry("F32", "[true]", "[0,4]") + "}", "a boolean"},
      {"{\"a\":" + entry("F32", "[18446744073709551616]", "[0,4]") + "}", "the number"},
      {"{\"a\":" + entry("F32", "[1]", "[0]") + "}", "must be two numbers"},
      {"{\"a\":" + entry("F32", "[1]", "[0,4,8]") + "}", "must be two numbers"},
      {"{\"a\":" + entry("F99", "[1]", "[0,4]") + "}", "unknown dtype 'F99'"},
      {"{\"a\":" + entry("F32", "[2]", "[0,4]") + "}", "its dtype and shape need 8"},
      {"{\"a\":" + entry("F32", "[0]", "[0,4]") + "}", "its dtype and shape need 0"},
      {"{\"a\":" + entry("F4", "[7]", "[0,4]") + "}", "does not fill whole bytes"},
      {"{\"a\":" + entry("F32", "[1]", "[4,0]") + "}", "outside"},
      {"{\"a\":" + entry("F32", "[2]", "[0,8]") + "}", "outside"},
      {"{\"a\":" + entry("F32", "[4294967296,4294967296]", "[0,4]") + "}", "elements overflows"},
      {"{\"a\":" + entry("F32", "[9223372036854775808]", "[0,4]") + "}", "elements overflows"},
      {"{\"a\":" + entry("F32", "[0,4294967296,4294967296]", "[0,0]") + "}", "overflows", 0},
      {"{\"a\":" + entry("F64", "[4611686018427387904]", "[0,4]") + "}", "bytes overflows"},
      {"{\"a\":" + good + ",\"b\":" + good + "}", "overlaps"},
      {"{\"a\":" + good + ",\"b\":" + entry("F32", "[1]", "[2,6]") + "}", "overlaps", 6},
      {"{\"a\":" + second + "}", "leaves a hole", 8},
      {"{\"a\":" + good + ",\"b\":" + entry("F32", "[1]", "[5,9]") + "}", "leaves a hole", 9},
      {"{\"a\":" + good + "}", "1 bytes after the last tensor", 5},
      {std::string("{\"a\":") + std::string(100'000, '['), "more than 4 levels deep"},
  };
  for (const Bad& bad : cases) {
    CAPTURE(bad.header.substr(0, 200));
    std::string reason = refusal(file_of(bad.header, bad.data));
    CAPTURE(reason);
    CHECK(reason.find(bad.reason) != std::string::npos);
  }
}

TEST_CASE("safetensors: a fault at every system call of a save keeps the file before") {
  Scratch dir;
  Path path = dir / "m";
  Tensor old = Tensor::full({7}, 1), fresh = Tensor::full({7}, 2);
  auto save = [&](const Tensor& t) { save_safetensors(path, {{"w", t}, {"v", t}}); };
  save(old);
  for (Fault fault : {Fault::kill, Fault::torn, Fault::fail, Fault::disk_full}) {
    for (int at = 1; at <= 6; ++at) {  // four writes, fsync, rename
      if (fault == Fault::disk_full && at > 4) continue;
      auto end = test::run_with_fault({fault, at}, [&] { save(fresh); });
      CHECK((end.killed || end.status == 1));
      CHECK(Safetensors(path).tensor("w").data<float>()[6] == 1);
    }
  }
  save(fresh);
  CHECK(Safetensors(path).tensor("w").data<float>()[6] == 2);
}
