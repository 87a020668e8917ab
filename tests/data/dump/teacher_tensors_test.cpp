// The table of a teacher's tensors, and a registered one in dumps of every kind.
#include "data/dump/teacher_tensors.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "data/hdf5/hdf5_file.h"
#include "tests/data/dump/dump_cases.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

const char* const kNorm = "test_norm";      // [T] f32
const char* const kSketch = "test_sketch";  // [H, T, d] in the dump's type

[[maybe_unused]] const bool registered = [] {
  register_teacher_tensor(
      {.name = kNorm, .shape = {Axis::tokens}, .type = TeacherTensor::Type::f32});
  register_teacher_tensor(
      {.name = kSketch, .shape = {Axis::heads, Axis::tokens, Axis::head_size}, .narrow = true});
  return true;
}();

DumpBatch batch_with(const DumpSpec& s, const std::vector<int64_t>& samples) {
  DumpBatch batch = batch_of(s, samples);
  const int64_t n = int64_t(samples.size());
  for (size_t l = 0; l < batch.layers.size(); ++l) {
    const int64_t field = 5000 + 10 * int64_t(l);
    batch.layers[l][kNorm] = noise_tensor(samples, field, {n, s.tokens});
    batch.layers[l][kSketch] =
        noise_tensor(samples, field + 1, {n, s.heads, s.tokens, s.head_size});
  }
  for (int64_t i = 0; i < n && s.ragged; ++i)
    batch.lengths.data<int64_t>()[i] = s.lengths[size_t(samples[size_t(i)])];
  return batch;
}

DumpSpec spec_with(DumpContent content, Dtype dtype) {
  DumpSpec s = content == DumpContent::pooled ? pooled_spec() : small_spec();
  s.content = content;
  s.dtype = dtype;
  s.tensors = {kSketch, kNorm};
  return s;
}

}  // namespace

TEST_CASE("teacher tensors: registered ones are read back from dumps of every content and type") {
  for (DumpContent content :
       {DumpContent::none, DumpContent::maps, DumpContent::qk, DumpContent::pooled}) {
    for (Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      Scratch dir;
      const DumpSpec spec = spec_with(content, dtype);
      DumpWriter writer(dir / "d", spec, {.shard_bytes = 3 * dump_size(spec).per_sample});
      for (auto run = writer.missing(); run.samples > 0; run = writer.missing())
        writer.put(batch_with(spec, range(run.first, std::min<int64_t>(2, run.samples))));
      writer.finish();
      DumpReader reader(dir / "d");
      CHECK(spec_differences(reader.spec(), spec) == "");
      const std::vector<int64_t> order = {6, 0, 3};
      CHECK(batch_differences(spec, reader.read(order), batch_with(spec, order)) == "");
      const DumpBatch one = reader.read(order, {.parts = {kNorm}});
      CHECK(same_bytes(one.layers[1][kNorm], batch_with(spec, order).layers[1][kNorm]));
      CHECK_FALSE(one.layers[1].has(kSketch));
      CHECK_FALSE(one.layers[1].has("output"));
      CHECK(
          reader
              .read(order, {.parts = {kSketch}, .as_stored = DumpWants::AsStored::queries_and_keys})
              .layers[0][kSketch]
              .dtype() == dtype);
    }
  }
}

TEST_CASE("teacher tensors: of samples of their own lengths nothing is stored for padding") {
  Scratch dir;
  DumpSpec spec = spec_with(DumpContent::qk, Dtype::f32);
  spec.ragged = true;
  spec.value = false;
  for (int64_t i = 0; i < spec.samples; ++i) spec.lengths.push_back(1 + 2 * i % spec.tokens);
  DumpWriter writer(dir / "d", spec);
  const DumpBatch given = batch_with(spec, range(0, spec.samples));
  writer.put(given);
  writer.finish();
  const DumpBatch read = DumpReader(dir / "d").read(range(0, spec.samples));
  const int64_t H = spec.heads, T = spec.tokens, d = spec.head_size;
  for (int64_t i = 0; i < spec.samples; ++i) {
    for (int64_t t = 0; t < T; ++t) {
      const bool token = t < spec.lengths[size_t(i)];
      const int64_t norm = i * T + t;
      CHECK(read.layers[0][kNorm].data<float>()[norm] ==
            (token ? given.layers[0][kNorm].data<float>()[norm] : 0));
      for (int64_t h = 0; h < H; ++h) {
        const int64_t last = ((i * H + h) * T + t) * d + d - 1;
        CHECK(read.layers[1][kSketch].data<float>()[last] ==
              (token ? given.layers[1][kSketch].data<float>()[last] : 0));
      }
    }
  }
}

TEST_CASE("teacher tensors: a dump without registered ones does not mention them") {
  Scratch dir;
  const DumpSpec spec = small_spec();
  DumpWriter writer(dir / "d", spec);
  fill_dump(writer, spec);
  CHECK_FALSE(contains(read_file(manifest_path(dir / "d")), "tensors"));
  Hdf5Reader shard((dir / "d/shard-00000.h5").string());
  CHECK_FALSE(shard.has_attribute("/", "tensors"));
  CHECK_FALSE(shard.has(std::string("layers/00/") + kNorm));
}

TEST_CASE("teacher tensors: a reader skips an unknown one, writers refuse it") {
  Scratch dir;
  DumpSpec spec = small_spec();
  spec.tensors = {"unheard_of"};
  CHECK_REFUSES(DumpWriter(dir / "a", spec), "dump", "unheard_of", "know");
  // As written by a program that knows the tensor: everything else is read.
  Hdf5Writer file((dir / "x.h5").string());
  DumpSpec known = spec;
  known.tensors.clear();
  {
    DumpWriter writer(dir / "b", known);
    fill_dump(writer, known);
  }
  const Hdf5Reader from((dir / "b/shard-00000.h5").string());
  write_shard_header(file, spec, 0, spec.samples);
  for (const std::string& name : from.datasets()) file.write(name, from.read(name));
  file.close();
  DumpManifest manifest = read_manifest(dir / "b");
  manifest.spec.tensors = spec.tensors;
  manifest.shards[0].name = "x.h5";
  manifest.shards[0].bytes = std::filesystem::file_size(dir / "x.h5");
  write_manifest(dir.path(), manifest);
  DumpReader reader(dir.path());
  CHECK(batch_differences(known, reader.read(range(0, 7)), batch_of(known, range(0, 7))) == "");
  CHECK_REFUSES(reader.read(range(0, 1), {.parts = {"unheard_of"}}), "the dump has no unheard_of");
}

TEST_CASE("teacher tensors: names and shapes that cannot be are refused") {
  auto refused = [](TeacherTensor tensor) {
    return message([&] { register_teacher_tensor(std::move(tensor)); });
  };
  using enum Axis;
  CHECK(contains(refused({.name = "query", .shape = {tokens}}), "'query' is taken"));
  CHECK(contains(refused({.name = "context", .shape = {tokens}}), "'context' is taken"));
  CHECK(contains(refused({.name = "../x", .shape = {tokens}}), "is not made of a-z, 0-9 and _"));
  CHECK(contains(refused({.name = "x", .shape = {hidden}}), "must have the shape"));
  CHECK(contains(refused({.name = "x", .shape = {heads, head_size}}), "must have the shape"));
  CHECK(contains(refused({.name = "x", .shape = {heads, tokens, keys}}), "must have the shape"));
  CHECK(contains(refused({.name = "x", .shape = {tokens}, .type = TeacherTensor::Type::token_id}),
                 "floating-point"));
  CHECK(contains(refused({.name = "x", .shape = {tokens}, .of_layer = false}), "cannot be chosen"));
  TensorSet set;
  CHECK(contains(message([&] { set["qurey"] = Tensor::zeros({1}); }), "unknown tensor 'qurey'"));
  DumpSpec spec = small_spec();
  auto wrong = [&](const std::vector<std::string>& names) {
    spec.tensors = names;
    return message([&] { check_spec(spec, "x"); });
  };
  CHECK(contains(wrong({kNorm, kNorm}), "\"test_norm\" twice"));
  CHECK(contains(wrong({"a/b"}), "\"a/b\", which is not made of"));
  CHECK(contains(wrong({"query"}), "\"query\", which has its own field"));
}
