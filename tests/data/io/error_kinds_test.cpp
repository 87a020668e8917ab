// Errors of files: each has the kind that tells a caller how to react.
#include <doctest/doctest.h>

#include "data/checkpoint/weights.h"
#include "data/dump/dump_reader.h"
#include "data/io/file_io.h"
#include "data/safetensors/safetensors.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

using namespace brine::data;

// The kind of what f throws, and that its message names the file.
template <class F>
std::string kind_of(const std::string& file, F f) {
  try {
    f();
  } catch (const Error& e) {
    CAPTURE(std::string(e.what()));
    CHECK(std::string(e.what()).find(file) != std::string::npos);
    return name_of(e.kind);
  }
  return "no error";
}

}  // namespace

TEST_CASE("errors of files: an absent file is not_found") {
  Scratch dir;
  CHECK(kind_of("absent", [&] { read_file(dir / "absent"); }) == "not found");
  CHECK(kind_of("absent", [&] { MappedFile(dir / "absent"); }) == "not found");
  CHECK(kind_of("absent", [&] { Safetensors(dir / "absent"); }) == "not found");
  CHECK(kind_of("model.safetensors", [&] { WeightFiles(dir.path()); }) == "not found");
  CHECK(kind_of("absent", [&] { load_tokenizer(dir / "absent"); }) == "not found");
  CHECK(kind_of("absent", [&] { DumpReader(dir / "absent"); }) == "not found");
  CHECK(kind_of("absent", [&] { write_file_atomic(dir / "absent/x", ""); }) == "not found");
}

TEST_CASE("errors of files: damaged content is a matter of format") {
  Scratch dir;
  const std::string torn = dir.write("torn.safetensors", "\x08");
  CHECK(kind_of(torn, [&] { Safetensors{torn}; }) == "format");
  const std::string text = dir.write("tokenizer.json", "{\"model\":");
  CHECK(kind_of(text, [&] { load_tokenizer(text); }) == "format");
  dir.write("model.safetensors.index.json", "[]");
  CHECK(kind_of("index.json", [&] { WeightFiles(dir.path()); }) == "format");
}

TEST_CASE("errors of files: a refusal of the system is io") {
  Scratch dir;
  dir.write("file", "");
  // A file where a directory should be: ENOTDIR.
  CHECK(kind_of("file", [&] { read_file(dir / "file/x"); }) == "io");
  CHECK(kind_of("x", [] { throw_io("x", "write", 28); }) == "io");
  CHECK(kind_of("y", [] { throw DurabilityUncertain("y: written, but"); }) == "io");
}

}  // namespace brine::test
