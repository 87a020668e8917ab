// Files of others: the example of docs/formats.md, and files that break the schema.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "data/codec/checksums.h"
#include "data/hdf5/hdf5_file.h"
#include "tests/data/dump/dump_cases.h"
#include "tests/paths.h"
#include "tests/refusals.h"
#include "tests/scratch.h"
#include "tests/skip.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

using Spoil = std::function<void(DumpBatch&)>;

// A shard as another program would write it: one dataset at a time, nothing checked.
void write_foreign(const Path& path, const DumpSpec& spec, int64_t first, int64_t samples,
                   const Spoil& spoil = {}, const std::string& leave_out = "") {
  DumpBatch batch = batch_of(spec, range(first, samples));
  if (spoil) spoil(batch);
  Hdf5Writer file(path.string());
  write_shard_header(file, spec, first, samples);
  auto put = [&](const std::string& name, const Tensor& values) {
    if (values.defined() && name != leave_out) file.write(name, values);
  };
  for (int64_t l = 0; l < spec.layers; ++l) {
    const TensorSet& layer = batch.layers[size_t(l)];
    put(layer_dataset(l, "attention"), layer["attention"]);
    put(layer_dataset(l, "query"), layer["query"]);
    put(layer_dataset(l, "key"), layer["key"]);
    put(layer_dataset(l, "value"), layer["value"]);
    put(layer_dataset(l, "tau"), layer["tau"]);
    put(layer_dataset(l, "t_log_t"), layer["t_log_t"]);
    put(layer_dataset(l, "t_square"), layer["t_square"]);
    put(layer_dataset(l, "context"), layer["attention_output"]);
    put(layer_dataset(l, "output"), layer["output"]);
  }
  put("logits/values", batch.tensors["logits"]);
  put("logits/ids", batch.tensors["logit_ids"]);
  put("logits/lse", batch.tensors["lse"]);
  put("tokens", batch.tensors["tokens"]);
  put("lengths", batch.lengths);
  if (!batch.windows.empty()) put("windows", Tensor::from(batch.windows, {samples}));
  file.close();
}

DumpSpec foreign_spec() {
  DumpSpec spec = small_spec();
  spec.packed = spec.value = false;
  return spec;
}

// A dump of one such file with a manifest.
Path foreign_dump(const Scratch& dir, const DumpSpec& spec, const Spoil& spoil = {},
                  const std::string& leave_out = "") {
  const Path path = dir / "x.h5";
  write_foreign(path, spec, 0, spec.samples, spoil, leave_out);
  DumpManifest m{.spec = spec, .samples_per_shard = spec.samples, .shards = {}};
  m.shards.push_back({.name = "x.h5",
                      .bytes = std::filesystem::file_size(path),
                      .sha256 = sha256_file(path.string()),
                      .first = 0,
                      .samples = spec.samples});
  write_manifest(dir.path(), m);
  return path;
}

// The error of reading a dump and checking its samples.
std::string reading(const Scratch& dir) {
  return message([&] {
    const DumpReader reader(dir.path());
    for (int64_t i = 0; i < reader.spec().samples; ++i)
      check_dump_sample(reader, i, (dir / "x.h5").string());
  });
}

// It is one line that names the file and the reason.
void refused(std::initializer_list<std::string> why, const DumpSpec& header,
             const Spoil& spoil = {}, const std::string& leave_out = "") {
  Scratch dir;
  foreign_dump(dir, header, spoil, leave_out);
  const std::string error = reading(dir);
  CAPTURE(error);
  CHECK(error.starts_with(dir.path().string()));
  check_says(error, why);
  CHECK(error.find('\n') == error.npos);
}

}  // namespace

TEST_CASE("dumps of others: q and k, without logits and windows") {
  Scratch dir;
  DumpSpec spec = foreign_spec();
  spec.content = DumpContent::qk;
  spec.logits = DumpLogits::none;
  spec.windows.clear();
  spec.corpus_hash = "none";
  foreign_dump(dir, spec);
  CHECK(batch_differences(spec, DumpReader(dir.path()).read(range(0, 7)),
                          batch_of(spec, range(0, 7))) == "");
}

TEST_CASE("dumps of others: what breaks the schema is named") {
  DumpSpec spec = foreign_spec();
  refused({"layers/01/attention: value 3 is nan"}, spec,
          [](DumpBatch& b) { b.layers[1]["attention"].data<float>()[3] = NAN; });
  refused({"logits/ids contains 11"}, spec,
          [](DumpBatch& b) { b.tensors["logit_ids"].data<int32_t>()[9] = 11; });
  refused({"tokens contains -1"}, spec,
          [](DumpBatch& b) { b.tensors["tokens"].data<int32_t>()[9] = -1; });
  refused({"lengths contains 0"}, spec, [](DumpBatch& b) { b.lengths.data<int64_t>()[6] = 0; });
  refused({"logits/lse: value 4 is inf"}, spec,
          [](DumpBatch& b) { b.tensors["lse"].data<float>()[4] = INFINITY; });
  refused({"layers/00/context: is f64 [7, 5, 12], must be f32 [7, 5, 12]"}, spec, [](DumpBatch& b) {
    b.layers[0]["attention_output"] =
        Tensor::from(std::vector<double>(7 * 5 * 12, 0.0), b.layers[0]["attention_output"].shape());
  });
  refused({"layers/01/output: is f32 [6, 5, 10], must be f32 [7, 5, 10]"}, spec, [](DumpBatch& b) {
    b.layers[1]["output"] = b.layers[1]["output"].slice(0, 0, 6).contiguous();
  });
  refused({"layers/01/output: is not in the file"}, spec, {}, "layers/01/output");
  refused({"lengths: is not in the file"}, spec, {}, "lengths");
}

TEST_CASE(
    "dumps of others: attention outputs follow from q, k and values, or from the map and values") {
  // Rows of one token and of two, whose keys are equal: the mean of the values.
  DumpSpec spec = foreign_spec();
  spec.content = DumpContent::qk;
  spec.logits = DumpLogits::none;
  spec.value = true;
  auto means = [](const DumpSpec& s, DumpBatch& b, float scaled) {
    for (TensorSet& layer : b.layers) {
      const float* v = layer["value"].data<float>();
      if (layer.has("key")) {
        float* k = layer["key"].data<float>();
        for (int64_t i = 0; i < layer["key"].numel(); ++i) k[i] = 0;
      } else {
        float* map = layer["attention"].data<float>();
        for (int64_t n = 0; n < 7; ++n) {
          const int64_t length = length_of(s, n);
          for (int64_t r = 0; r < s.heads * s.tokens; ++r) {
            float* row = map + (n * s.heads * s.tokens + r) * s.tokens;
            const int64_t keys = std::min(r % s.tokens + 1, length);
            for (int64_t j = 0; j < keys; ++j) row[j] = 1 / float(keys);
          }
        }
      }
      float* y = layer["attention_output"].data<float>();
      for (int64_t n = 0; n < 7; ++n) {
        for (int64_t t = 0; t < s.tokens; ++t) {
          for (int64_t i = 0; i < s.heads * s.head_size; ++i) {
            float sum = 0;
            for (int64_t j = 0; j <= t; ++j) sum += v[(n * s.tokens + j) * 4 + i % 4];
            y[(n * s.tokens + t) * 12 + i] = scaled * sum / float(t + 1);
          }
        }
      }
    }
  };
  for (DumpContent content : {DumpContent::qk, DumpContent::maps}) {
    Scratch dir;
    spec.content = content;
    foreign_dump(dir, spec, [&](DumpBatch& b) { means(spec, b, 1.008f); });
    CHECK(reading(dir) == "no error");
  }
  refused({"sample 0: layers/00/context: differs by 200 %", "the map times v", "another point"},
          spec, [&](DumpBatch& b) { means(spec, b, -1); });
  spec.content = DumpContent::qk;
  refused({"layers/00/context: differs by 100 %", "softmax(q k^T / sqrt(d)) v"}, spec,
          [&](DumpBatch& b) { means(spec, b, 2); });
}

TEST_CASE("dumps of others: attributes that are missing, of another type or another value") {
  Scratch dir;
  const Path path = dir / "x.h5";
  auto with = [&](const std::function<void(Hdf5Writer&)>& fill) {
    std::filesystem::remove(path);
    Hdf5Writer writer(path.string());
    fill(writer);
    writer.close();
    return message([&] {
      int64_t first = 0;
      read_shard_header(Hdf5Reader(path.string()), first);
    });
  };
  CHECK(contains(with([](Hdf5Writer& f) { f.group("x"); }), "\"format\": is not in the file"));
  CHECK(contains(with([](Hdf5Writer& f) { f.attribute("/", "format", "bread"); }),
                 "not a shard of a dump"));
  auto format = [](Hdf5Writer& f) { f.attribute("/", "format", "brine-dump"); };
  CHECK(contains(with([&](Hdf5Writer& f) {
                   format(f);
                   f.attribute("/", "version", int64_t(3));
                 }),
                 "version 3, this program reads version 4"));
  CHECK(contains(with([&](Hdf5Writer& f) {
                   format(f);
                   f.attribute("/", "version", "4");
                 }),
                 "\"version\": is not an integer"));
  CHECK(contains(with([&](Hdf5Writer& f) {
                   format(f);
                   f.attribute("/", "version", int64_t(4));
                   f.attribute("/", "content", int64_t(1));
                 }),
                 "\"content\": is not text"));
}

TEST_CASE("dump: the example of docs/formats.md (needs h5py)") {
  std::string text = read_file(Path(brine::test::source_dir()) / "docs/formats.md");
  const std::string fence = "```python\n";
  size_t begin = text.find(fence);
  REQUIRE(begin != text.npos);
  begin += fence.size();
  std::string example = text.substr(begin, text.find("```", begin) - begin);
  CHECK(std::count(example.begin(), example.end(), '\n') <= 20);
  if (std::system("python3 -c 'import h5py' 2>/dev/null") != 0) {
    return test::skip("no python3 with h5py");
  }
  Scratch dir;
  std::ofstream(dir / "example.py") << example;
  const std::string python = "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='" +
                             std::string(brine::test::source_dir()) + "/apps/python' python3 '";
  const std::string dump = (dir / "dump").string();
  REQUIRE(std::system((python + (dir / "example.py").string() + "' '" + dump + "'").c_str()) == 0);
  DumpReader reader(dump);
  reader.verify();
  CHECK(reader.spec().samples == 3);
  CHECK(reader.spec().dtype == Dtype::f16);
  DumpBatch batch = reader.read(range(1, 2));
  CHECK(batch.layers.size() == 2);
  CHECK(batch.layers[1]["query"].shape() == Shape{2, 2, 6, 4});
  CHECK(batch.layers[1]["key"].shape() == Shape{2, 1, 6, 4});
  CHECK(batch.tensors["tokens"].shape() == Shape{2, 6});
  for (int64_t i = 0; i < batch.tensors["logits"].numel(); ++i)
    CHECK(batch.tensors["logits"].data<float>()[i] < batch.tensors["lse"].data<float>()[i / 11]);
  // What Python wrote is read back: the same sums on both sides.
  double sum = 0;
  DumpBatch all = reader.read(range(0, 3));
  for (int64_t i = 0; i < all.layers[1]["output"].numel(); ++i)
    sum += (1 + i % 7) * double(all.layers[1]["output"].data<float>()[i]);
  std::ofstream(dir / "sum.py") << R"(import h5py, sys, numpy as np
x = h5py.File(sys.argv[1])["layers/01/output"][:].astype("f8").ravel()
wanted = (x * (1 + np.arange(x.size) % 7)).sum()
assert abs(wanted - float(sys.argv[2])) < 1e-6, (wanted, sys.argv[2])
)";
  std::string check_sum = "python3 '" + (dir / "sum.py").string() + "' '" + dump +
                          "/shard-00000.h5' " + std::to_string(sum);
  CHECK(std::system(check_sum.c_str()) == 0);
}
