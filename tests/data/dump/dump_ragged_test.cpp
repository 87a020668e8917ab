// Dumps of samples of different lengths: nothing is stored for padding.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "data/hdf5/hdf5_file.h"
#include "data/io/file_io.h"
#include "tests/data/dump/dump_cases.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

// Lengths 1 to 5 and class logits; the samples are texts of a task.
DumpSpec ragged_spec(DumpContent content, bool causal) {
  DumpSpec s = small_spec();
  s.content = content;
  s.columns = content == DumpContent::pooled ? 4 : 0;
  s.causal = causal;
  s.ragged = true;
  s.classes = 3;
  for (int64_t i = 0; i < s.samples; ++i) s.lengths.push_back(1 + 2 * i % s.tokens);
  return s;
}

// As the teacher gives it: padded to T tokens, with noise where padding is. The noise of a head
// depends on T.
DumpBatch padded_batch(const DumpSpec& s, const std::vector<int64_t>& samples, int64_t T) {
  DumpSpec whole = s;
  whole.tokens = T;
  DumpBatch batch = batch_of(whole, samples);
  int64_t n = int64_t(samples.size());
  for (int64_t i = 0; i < n; ++i)
    batch.lengths.data<int64_t>()[i] = s.lengths[size_t(samples[size_t(i)])];
  batch.tensors["classes"] = noise_tensor(samples, 2000, {n, s.classes});
  return batch;
}

int64_t longest(const DumpSpec& s, const std::vector<int64_t>& samples) {
  int64_t T = 0;
  for (int64_t i : samples) T = std::max(T, s.lengths[size_t(i)]);
  return T;
}

// Element (axes) of a padded batch, or 0 where a token is padding.
void check_tokens(const Tensor& read, const Tensor& given, const std::vector<int64_t>& lengths,
                  int axis) {
  REQUIRE(read.rank() == given.rank());
  int64_t T = read.dim(axis), G = given.dim(axis), outer = 1, inner = 1;
  for (int i = 0; i < axis; ++i) outer *= read.dim(i);
  for (int i = axis + 1; i < read.rank(); ++i) inner *= read.dim(i);
  std::vector<double> a = read.to_vector(), b = given.to_vector();
  for (int64_t o = 0; o < outer; ++o) {
    int64_t length = lengths[size_t(o / (outer / int64_t(lengths.size())))];
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t i = 0; i < inner; ++i) {
        double wanted = t < length ? b[size_t((o * G + t) * inner + i)] : 0;
        CHECK(a[size_t((o * T + t) * inner + i)] == wanted);
      }
    }
  }
}

uint64_t values_in(const Path& shard) {
  Hdf5Reader file(shard.string());
  uint64_t values = 0;
  for (const std::string& name : file.datasets()) values += uint64_t(file.info(name).shape.numel());
  return values;
}

}  // namespace

TEST_CASE("dump: samples of different lengths are read back, padded to the longest of a batch") {
  for (DumpContent content : {DumpContent::qk, DumpContent::maps, DumpContent::pooled}) {
    for (bool causal : {false, true}) {
      for (bool filtered : {false, true}) {
        CAPTURE(name_of(content));
        CAPTURE(causal);
        Scratch dir;
        DumpSpec s = ragged_spec(content, causal);
        // Two samples of the longest kind fill a shard.
        DumpWriter writer(dir / "d", s,
                          {.shard_bytes = 2 * dump_size(s).per_sample, .deflate = filtered});
        for (auto run = writer.missing(); run.samples > 0; run = writer.missing()) {
          std::vector<int64_t> some = range(run.first, std::min<int64_t>(run.samples, 3));
          writer.put(padded_batch(s, some, 5));
        }
        writer.finish();
        DumpReader reader(dir / "d");
        CHECK(reader.manifest().shards.size() == 4);
        CHECK(reader.spec().lengths == s.lengths);
        reader.verify();
        for (std::vector<int64_t> samples : {std::vector<int64_t>{5}, {6, 0, 3}, {2, 2, 4, 1}}) {
          DumpBatch read = reader.read(samples), given = padded_batch(s, samples, 5);
          int64_t T = longest(s, samples);
          std::vector<int64_t> lengths;
          for (int64_t i : samples) lengths.push_back(s.lengths[size_t(i)]);
          CHECK(read.layers[0]["attention_output"].dim(1) == T);
          for (size_t l = 0; l < 2; ++l) {
            const TensorSet &a = read.layers[l], &b = given.layers[l];
            check_tokens(a["attention_output"], b["attention_output"], lengths, 1);
            check_tokens(a["output"], b["output"], lengths, 1);
            check_tokens(a["value"], b["value"], lengths, 2);
            if (content == DumpContent::qk) {
              check_tokens(a["query"], b["query"], lengths, 2);
              check_tokens(a["key"], b["key"], lengths, 2);
            } else if (content == DumpContent::pooled) {
              check_tokens(a["tau"], b["tau"], lengths, 2);
              check_tokens(a["t_log_t"], b["t_log_t"], lengths, 2);
              check_tokens(a["t_square"], b["t_square"], lengths, 2);
            } else {
              REQUIRE(a["attention"].shape() == Shape{int64_t(samples.size()), 3, T, T});
              Tensor keys = b["attention"].slice(3, 0, T).contiguous();
              for (size_t i = 0; i < samples.size(); ++i) {
                auto one = int64_t(i);
                Tensor shown = a["attention"].slice(0, one, 1).slice(3, 0, lengths[i]).contiguous();
                Tensor wanted = keys.slice(0, one, 1).slice(3, 0, lengths[i]).contiguous();
                check_tokens(shown, wanted, {lengths[i]}, 2);
              }
            }
          }
          check_tokens(read.tensors["logits"], given.tensors["logits"], lengths, 1);
          check_tokens(read.tensors["logit_ids"], given.tensors["logit_ids"], lengths, 1);
          check_tokens(read.tensors["lse"], given.tensors["lse"], lengths, 1);
          check_tokens(read.tensors["tokens"], given.tensors["tokens"], lengths, 1);
          CHECK(same_bytes(read.tensors["classes"], given.tensors["classes"]));
          CHECK(same_bytes(read.lengths, given.lengths));
          CHECK(read.windows == given.windows);
        }
      }
    }
  }
}

TEST_CASE("dump: samples of their own lengths as they are stored") {
  for (DumpContent content : {DumpContent::qk, DumpContent::maps, DumpContent::pooled}) {
    for (Dtype dtype : {Dtype::f16, Dtype::bf16}) {
      Scratch dir;
      DumpSpec s = ragged_spec(content, true);
      s.dtype = dtype;
      DumpWriter writer(dir / "d", s, {});
      writer.put(padded_batch(s, range(0, s.samples), s.tokens));
      writer.finish();
      DumpReader reader(dir / "d");
      DumpWants wants = reader.everything();
      wants.as_stored = DumpWants::AsStored::all;
      const std::vector<int64_t> samples = {6, 0, 3};
      CHECK(stored_differences(s, reader.read(samples, wants), reader.read(samples)) == "");
    }
  }
}

TEST_CASE("dump: padding takes no space") {
  Scratch dir;
  DumpSpec s = ragged_spec(DumpContent::maps, false);
  s.samples = 2;
  s.windows.resize(2);
  s.lengths = {2, 5};
  DumpWriter writer(dir / "d", s);
  writer.put(padded_batch(s, {0, 1}, 5));
  writer.finish();
  uint64_t tokens = 7, maps = 4 + 25;
  uint64_t of_layer = 3 * maps + tokens * (4 + 12 + 10), of_logits = tokens * (4 + 4 + 1);
  uint64_t of_sample = 2 * (3 + 1 + 1);  // class logits, window, length
  CHECK(values_in(dir / "d/shard-00000.h5") == 2 * of_layer + of_logits + tokens + of_sample);
  CHECK(dump_size(s).total == 4 * (2 * of_layer + of_logits + tokens + 2 * 3) + 8 * 4);
}

TEST_CASE("dump: tokens of a ragged batch are made a multiple, up to the longest sample") {
  Scratch dir;
  DumpSpec s = ragged_spec(DumpContent::qk, false);
  DumpWriter writer(dir / "d", s);
  writer.put(padded_batch(s, range(0, s.samples), 5));
  writer.finish();
  DumpReader reader(dir / "d");
  auto tokens = [&](int64_t sample, int64_t step) {
    DumpWants wants{.parts = {part::layer_outputs}, .tokens_steps = {.least = step}};
    return reader.read(std::vector<int64_t>{sample}, wants).layers[0]["output"].dim(1);
  };
  CHECK(tokens(0, 1) == 1);
  CHECK(tokens(0, 2) == 2);
  CHECK(tokens(1, 4) == 4);
  CHECK(tokens(1, 8) == 5);
}

TEST_CASE("dump: lengths that contradict each other are refused") {
  Scratch dir;
  DumpSpec s = ragged_spec(DumpContent::qk, false);
  DumpSpec bad = s;
  bad.lengths.pop_back();
  CHECK(contains(message([&] { DumpWriter w(dir / "a", bad); }), "has 6 lengths for 7 samples"));
  bad = s;
  bad.lengths[2] = 6;
  CHECK(contains(message([&] { DumpWriter w(dir / "a", bad); }), "length 6 is not in 1 to 5"));
  {
    DumpWriter writer(dir / "b", s);
    DumpBatch batch = padded_batch(s, {0, 1}, 5);
    batch.lengths.data<int64_t>()[1] = 4;
    CHECK(
        contains(message([&] { writer.put(batch); }), "sample 1 has 4 tokens, but the spec has 3"));
    writer.put(padded_batch(s, range(0, s.samples), 5));
    writer.finish();
  }
  std::string manifest = read_file(manifest_path(dir / "b"));
  size_t at = manifest.find("\"lengths\": [1,3");
  REQUIRE(at != manifest.npos);
  std::string changed = manifest;
  changed[at + 14] = '2';
  std::ofstream(manifest_path(dir / "b")) << changed;
  CHECK(contains(message([&] { DumpReader(dir / "b").read(range(0, 2)); }), "must be f32 ["));
}

TEST_CASE("dump: of logits of classes alone, which have no tokens") {
  Scratch dir;
  DumpSpec s = ragged_spec(DumpContent::none, false);
  s.value = s.context = s.output = s.stores_tokens = false;
  s.logits = DumpLogits::none;
  const Tensor classes = noise_tensor(range(0, s.samples), 2000, {s.samples, s.classes});
  DumpWriter writer(dir / "d", s);
  DumpBatch batch;
  batch.tensors["classes"] = classes;
  batch.lengths = Tensor::from(s.lengths, {s.samples});
  writer.put(batch);
  writer.finish();
  const DumpBatch read = DumpReader(dir / "d").read(range(0, s.samples));
  CHECK(same_bytes(read.tensors["classes"], classes));
  CHECK(same_bytes(read.lengths, batch.lengths));
}
