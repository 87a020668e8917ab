// Dumps: round trips of every content, refusals, and reading ahead.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "data/hdf5/hdf5_file.h"
#include "tensor/functions/top_logits.h"
#include "tests/data/dump/dump_cases.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

void check_round_trip(const DumpSpec& spec, const DumpWriterOptions& options) {
  Scratch dir;
  Path path = dir / "dump";
  {
    DumpWriter writer(path, spec, options);
    fill_dump(writer, spec);
  }
  DumpReader reader(path);
  reader.verify();
  CHECK(spec_differences(reader.spec(), spec) == "");
  std::vector<int64_t> order = {6, 0, 3, 3, 5};
  std::string differences = batch_differences(spec, reader.read(order), batch_of(spec, order));
  CHECK(differences == "");
  CHECK(reader.read(order).samples == order);
  DumpWants wants = reader.everything();
  wants.as_stored = DumpWants::AsStored::all;
  CHECK(stored_differences(spec, reader.read(order, wants), reader.read(order)) == "");
  wants.as_stored = DumpWants::AsStored::queries_and_keys;
  const DumpBatch mixed = reader.read(order, wants), plain = reader.read(order);
  for (size_t l = 0; l < plain.layers.size(); ++l) {
    CHECK(same_stored(mixed.layers[l]["query"], plain.layers[l]["query"], spec.dtype));
    CHECK(same_stored(mixed.layers[l]["key"], plain.layers[l]["key"], spec.dtype));
    CHECK(same_bytes(mixed.layers[l]["attention_output"], plain.layers[l]["attention_output"]));
    CHECK(same_bytes(mixed.layers[l]["tau"], plain.layers[l]["tau"]));
  }
}

// A dump of 7 samples in shards of 3.
Path make_dump(const Scratch& dir, const DumpSpec& spec) {
  DumpWriter writer(dir / "dump", spec, {.shard_bytes = 3 * dump_size(spec).per_sample});
  fill_dump(writer, spec);
  return dir / "dump";
}

void replace_in(const Path& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path);
  size_t at = text.find(from);
  REQUIRE(at != text.npos);
  text.replace(at, from.size(), to);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

}  // namespace

TEST_CASE("dump: every content, type and packing comes back as it was rounded") {
  for (Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    for (DumpContent content :
         {DumpContent::none, DumpContent::maps, DumpContent::qk, DumpContent::pooled}) {
      for (DumpLogits logits : {DumpLogits::none, DumpLogits::top, DumpLogits::full}) {
        DumpSpec spec = small_spec();
        spec.dtype = dtype;
        spec.content = content;
        spec.columns = content == DumpContent::pooled ? 4 : 0;
        spec.logits = logits;
        CAPTURE(name_of(content));
        CAPTURE(name_of(logits));
        CAPTURE(dtype);
        check_round_trip(spec, {});
        spec.packed = false;
        spec.stores_tokens = false;
        check_round_trip(spec, {.shard_bytes = 1, .shuffle = true, .deflate = 4});
        spec.causal = false;
        spec.context = false;
        spec.stores_tokens = true;
        spec.windows.clear();
        check_round_trip(spec, {.shard_bytes = 2 * dump_size(spec).per_sample, .deflate = 1});
        spec.packed = true;  // means nothing where all keys are visible
        spec.output = false;
        check_round_trip(spec, {});
      }
    }
  }
}

TEST_CASE("dump: the size estimate is exact and chunks contain one sample of one layer") {
  DumpSpec spec = small_spec();
  DumpSize size = dump_size(spec, 5000);
  // packed maps, values of one group, context, output, top logits with ids, lse, tokens, window,
  // length
  uint64_t layer = 3 * 15 * 4 + 5 * 4 * 4 + 5 * (12 + 10) * 4;
  CHECK(size.per_sample == 2 * layer + 5 * 4 * 4 + 5 * 4 * 4 + 5 * 4 + 5 * 4 + 8 + 8);
  CHECK(size.total == 7 * size.per_sample);
  CHECK(size.samples_per_shard == int64_t(5000 / size.per_sample));
  CHECK(size.shards == 3);
  spec.content = DumpContent::qk;
  CHECK(dump_size(spec).per_sample == size.per_sample - 2 * 3 * 15 * 4 + 2 * (3 + 1) * 5 * 4 * 4);
  spec.content = DumpContent::pooled;
  spec.columns = 4;
  CHECK(dump_size(spec).per_sample == size.per_sample - 2 * 3 * 15 * 4 + 2 * 3 * 5 * (4 + 2) * 4);
  spec.content = DumpContent::qk;
  spec.columns = 0;
  // At T = 2048 and d = 64, q and k take an eighth of packed maps.
  spec.tokens = 2048, spec.head_size = 64, spec.key_heads = 3;
  spec.value = spec.context = spec.output = false;
  double qk = double(dump_size(spec).per_sample);
  spec.content = DumpContent::maps;
  CHECK(double(dump_size(spec).per_sample) / qk > 7.5);
  for (const DumpDataset& d : dump_datasets(spec, 9)) {
    if (d.shape.rank() < 2) continue;
    CHECK(d.chunk[0] == 1);
    CHECK(d.shape[1] % d.chunk[1] == 0);
    bool cut = d.name.ends_with("attention");  // 8.4 MB a head: one head a chunk
    CHECK(d.chunk[1] == (cut ? 1 : d.shape[1]));
  }
}

TEST_CASE("dump: the largest logits, with the log-sum-exp of all") {
  const int64_t vocab = 1037;
  Tensor x = noise_tensor(range(0, 2), 5, {2, 3, vocab});
  for (int64_t n : {int64_t(1), int64_t(64), vocab}) {
    DumpBatch batch;
    keep_top_logits(batch, x, n);
    const TopLogits top = largest_logits(x.view({6, vocab}), n);
    CHECK(batch.tensors["logits"].to_vector() == top.values.to_vector());
    CHECK(batch.tensors["logit_ids"].to_vector() == top.ids.to_vector());
    CHECK(batch.tensors["lse"].to_vector() == top.lse.to_vector());
  }
  DumpBatch batch;
  x.data<float>()[3] = NAN;
  CHECK(contains(message([&] { keep_top_logits(batch, x, 4); }), "not finite"));
  CHECK(contains(message([&] { keep_top_logits(batch, x, vocab + 1); }), "1038 of 1037"));
}

TEST_CASE("dump: the writer takes whole logits and full lengths for granted") {
  Scratch dir;
  DumpSpec spec = small_spec(2);
  DumpBatch given = batch_of(spec, range(0, 2)), lazy = given;
  lazy.tensors["logits"] = noise_tensor(range(0, 2), 1000, {2, spec.tokens, spec.vocab});
  lazy.tensors["logit_ids"] = lazy.tensors["lse"] = lazy.lengths = Tensor();
  given.lengths = Tensor::from(std::vector<int64_t>{5, 5}, {2});
  {
    DumpWriter writer(dir.path(), spec);
    writer.put(lazy);
    writer.finish();
    CHECK(writer.missing().samples == 0);
    CHECK(contains(message([&] { writer.put(given); }), "2 samples were given, but 0"));
  }
  CHECK(batch_differences(spec, DumpReader(dir.path()).read(range(0, 2)), given) == "");
}

TEST_CASE("dump: batches that do not fit the spec are refused immediately") {
  Scratch dir;
  DumpSpec spec = small_spec();
  DumpWriter writer(dir.path(), spec, {.shard_bytes = 3 * dump_size(spec).per_sample});
  auto refused = [&](const std::string& why, auto&& spoil) {
    DumpBatch batch = batch_of(spec, range(0, 2));
    spoil(batch);
    std::string error = message([&] { writer.put(batch); });
    CAPTURE(error);
    CHECK(contains(error, why));
  };
  refused("has 1 layers, must have 2", [](DumpBatch& b) { b.layers.pop_back(); });
  refused("layer 1 attention_output is missing",
          [](DumpBatch& b) { b.layers[1]["attention_output"] = Tensor(); });
  refused("layer 0 attention is f32 [2, 3, 5, 4]",
          [](DumpBatch& b) { b.layers[0]["attention"] = b.layers[0]["attention"].slice(3, 0, 4); });
  refused("logit_ids is f32", [](DumpBatch& b) { b.tensors["logit_ids"] = b.tensors["logits"]; });
  refused("tokens is missing", [](DumpBatch& b) { b.tensors["tokens"] = Tensor(); });
  refused("is window 99", [](DumpBatch& b) { b.windows[1] = 99; });
  refused("length 6", [](DumpBatch& b) { b.lengths.data<int64_t>()[0] = 6; });
  CHECK(contains(message([&] { writer.put(batch_of(spec, range(0, 8))); }), "but 7 consecutive"));
  CHECK(contains(message([&] { writer.finish(); }), "samples 0 and later are missing"));
}

TEST_CASE("dump: a value that is not finite or does not fit surfaces at a later call") {
  for (bool too_large : {false, true}) {
    Scratch dir;
    DumpSpec spec = small_spec();
    spec.dtype = Dtype::f16;
    DumpWriter writer(dir.path(), spec);
    DumpBatch batch = batch_of(spec, range(0, 2));
    batch.layers[1]["output"].data<float>()[60] = too_large ? 70000.0f : NAN;
    writer.put(batch);
    std::string error = message([&] { writer.finish(); });
    CAPTURE(error);
    CHECK(contains(error, "sample 1: layers/01/output: value 10"));
    CHECK(contains(error, too_large ? "does not fit f16" : "is nan"));
    CHECK(contains(message([&] { writer.put(batch_of(spec, range(2, 1))); }), "value 10"));
  }
}

TEST_CASE("dump: values that have the stored type already are stored as they are") {
  for (Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    CAPTURE(dtype);
    Scratch dir;
    DumpSpec spec = small_spec();
    spec.dtype = dtype;
    auto narrow = [&](DumpBatch& batch) {
      auto each = [&](TensorSet& set) {
        for (auto& [name, x] : set) {
          const TeacherTensor& tensor = *find_teacher_tensor(name);
          if (tensor.is_float() && !tensor.is_map()) x = x.to(tensor.dtype(spec));
        }
      };
      each(batch.tensors);
      for (TensorSet& layer : batch.layers) each(layer);
    };
    auto written = [&](const char* name, bool narrowed) {
      DumpBatch batch = batch_of(spec, range(0, spec.samples));
      if (narrowed) narrow(batch);
      DumpWriter writer(dir / name, spec);
      writer.put(batch);
      writer.finish();
      return read_manifest(dir / name).shards.at(0).sha256;
    };
    CHECK(written("wide", false) == written("narrow", true));
    DumpBatch batch = batch_of(spec, range(0, 2));
    batch.layers[1]["output"].data<float>()[60] = INFINITY;
    narrow(batch);
    DumpWriter writer(dir / "bad", spec);
    writer.put(batch);
    const std::string error = message([&] { writer.finish(); });
    CHECK_MESSAGE(contains(error, "sample 1: layers/01/output: value 10 is inf in "), error);
  }
}

TEST_CASE("dump: specs that cannot be are refused by name") {
  auto refused = [](const std::string& why, auto&& spoil) {
    DumpSpec spec = small_spec();
    spoil(spec);
    std::string error = message([&] { check_spec(spec, "x"); });
    CAPTURE(error);
    CHECK(contains(error, "x: "));
    CHECK(contains(error, why));
  };
  CHECK_NOTHROW(check_spec(small_spec(), "x"));
  DumpSpec unknown = small_spec();
  unknown.teacher_hash = unknown.tokenizer_hash = kNoHash;
  CHECK_NOTHROW(check_spec(unknown, "x"));
  refused("layers is 0", [](DumpSpec& s) { s.layers = 0; });
  refused("top_n is 12", [](DumpSpec& s) { s.top_n = 12; });
  refused("2 heads of keys do not divide 3 heads", [](DumpSpec& s) { s.key_heads = 2; });
  refused("key_heads is 0", [](DumpSpec& s) { s.key_heads = 0; });
  refused("model_layers has 1 numbers for 2 layers", [](DumpSpec& s) { s.model_layers = {3}; });
  refused("model_layers are not ascending", [](DumpSpec& s) { s.model_layers = {3, 3}; });
  refused("teacher_hash", [](DumpSpec& s) { s.teacher_hash = "x"; });
  refused("tokenizer_hash", [](DumpSpec& s) { s.tokenizer_hash[5] = 'G'; });
  refused("corpus_hash", [](DumpSpec& s) {
    s.corpus_hash = "none";
    s.stores_tokens = false;
  });
  refused("dtype is f64", [](DumpSpec& s) { s.dtype = Dtype::f64; });
  refused("columns is 5, but the content is maps", [](DumpSpec& s) { s.columns = 5; });
  refused("columns is 0", [](DumpSpec& s) { s.content = DumpContent::pooled; });
  refused("windows for 7", [](DumpSpec& s) { s.windows.pop_back(); });
  refused("window -1", [](DumpSpec& s) { s.windows[0] = -1; });
  refused("impossibly large", [](DumpSpec& s) { s.tokens = int64_t(1) << 31; });
}

TEST_CASE("dump: a short disk is refused before anything is written") {
  Scratch dir;
  DumpSpec spec = small_spec();
  uint64_t total = dump_size(spec).total, reserve = total / 100 + (16 << 20);
  uint64_t free = total + reserve - 1;
  DumpWriterOptions options{.free_bytes = [&](const Path&) { return free; }};
  std::string error = message([&] { DumpWriter w(dir / "dump", spec, options); });
  CHECK(contains(error, (dir / "dump").string() + ": the dump needs " +
                            std::to_string(total + reserve) + " bytes"));
  CHECK_FALSE(std::filesystem::exists(dir / "dump/manifest.json"));
  ++free;
  CHECK_NOTHROW(DumpWriter(dir / "dump", spec, options));
}

TEST_CASE("dump: a disk that fills up later gives one line and damages nothing") {
  Scratch dir;
  DumpSpec spec = small_spec(60);
  uint64_t shard = 50 * dump_size(spec).per_sample;
  struct rlimit before, small;
  getrlimit(RLIMIT_FSIZE, &before);
  small = before;
  small.rlim_cur = 20000;
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  std::string error = message([&] {
    DumpWriter writer(dir.path(), spec, {.shard_bytes = shard});
    fill_dump(writer, spec);
  });
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_DFL);
  CAPTURE(error);
  CHECK(contains(error, "shard-00000.h5.tmp"));
  CHECK(error.find('\n') == error.npos);
  CHECK(read_manifest(dir.path()).shards.empty());
  DumpWriter writer(dir.path(), spec, {.shard_bytes = shard});
  fill_dump(writer, spec);
  CHECK_NOTHROW(DumpReader(dir.path()).verify());
}

TEST_CASE("dump: two writers, foreign files and other dumps in the directory") {
  Scratch dir;
  DumpSpec spec = small_spec();
  {
    DumpWriter first(dir / "a", spec);
    CHECK(contains(message([&] { DumpWriter second(dir / "a", spec); }), "another process"));
    fill_dump(first, spec);
  }
  DumpSpec other = spec;
  other.layers = 3;
  other.teacher_hash = std::string(64, 'd');
  std::string error = message([&] { DumpWriter w(dir / "a", other); });
  CHECK(contains(error, "layers 2 and 3, teacher_hash aaaa"));
  std::filesystem::create_directory(dir / "b");
  std::ofstream(dir / "b/shard-00000.h5") << "precious";
  CHECK(contains(message([&] { DumpWriter w(dir / "b", spec); }), "but no manifest"));
  CHECK(read_file(dir / "b/shard-00000.h5") == "precious");
}

TEST_CASE("dump: the reader refuses missing, truncated and flipped files") {
  Scratch dir;
  DumpSpec spec = small_spec();
  Path path = make_dump(dir, spec);
  std::string shard = (path / "shard-00001.h5").string();
  std::string good = read_file(shard), manifest = read_file(manifest_path(path));
  auto restore = [&] {
    std::ofstream(shard, std::ios::binary | std::ios::trunc) << good;
    std::ofstream(manifest_path(path), std::ios::binary | std::ios::trunc) << manifest;
  };
  auto opened = [&] { return message([&] { DumpReader r(path); }); };
  CHECK(opened() == "no error");
  std::filesystem::resize_file(shard, good.size() - 100);
  CHECK(contains(opened(), shard + ": has "));
  std::filesystem::remove(shard);
  CHECK(contains(opened(), shard + ": the shard is missing"));
  restore();
  std::string bad = good;
  bad[bad.size() / 2] ^= 1;
  std::ofstream(shard, std::ios::binary | std::ios::trunc) << bad;
  int64_t heard = 0;
  std::string error = message([&] { DumpReader(path).verify([&](int64_t n) { heard = n; }); });
  CHECK(contains(error, shard + ": its checksum is"));
  CHECK(heard == 1);
  restore();
  // A shard of another dump under this one's name.
  std::filesystem::copy_file(path / "shard-00000.h5", shard,
                             std::filesystem::copy_options::overwrite_existing);
  CHECK(contains(message([&] { DumpReader(path).read(range(4, 1)); }), "has samples 0 to 3"));
  restore();
  // A shard that is cut although its size agrees with the manifest.
  std::string last = (path / "shard-00002.h5").string();
  size_t size = std::filesystem::file_size(last);
  std::filesystem::resize_file(last, size - 100);
  replace_in(manifest_path(path), std::to_string(size), std::to_string(size - 100));
  CHECK(contains(message([&] { DumpReader(path).read(range(6, 1)); }), "truncated"));
}

TEST_CASE("dump: manifests that are newer, broken or contradict themselves") {
  Scratch dir;
  DumpSpec spec = small_spec();
  Path path = make_dump(dir, spec);
  std::string good = read_file(manifest_path(path));
  auto spoiled = [&](const std::string& from, const std::string& to) {
    std::ofstream(manifest_path(path), std::ios::trunc) << good;
    replace_in(manifest_path(path), from, to);
    std::string error = message([&] { DumpReader r(path); });
    CHECK(error.starts_with(manifest_path(path).string()));
    CHECK(error.find('\n') == error.npos);
    return error;
  };
  CHECK(contains(spoiled("\"version\": 4", "\"version\": 5"), "version 5, this program reads"));
  CHECK(contains(spoiled("\"version\": 4", "\"version\": 3"), "version 3, this program reads"));
  CHECK(contains(spoiled("brine-dump", "bread"), "is not a manifest of a dump"));
  CHECK(contains(spoiled("{", "["), "not a JSON object"));
  CHECK(contains(spoiled("\"layers\": 2", "\"layers\": \"2\""), "\"layers\" is not an integer"));
  CHECK(contains(spoiled("\"layers\": 2", "\"lairs\": 2"), "\"layers\" is missing"));
  CHECK(contains(spoiled("\"layers\": 2", "\"layers\": -2"), "layers is -2"));
  CHECK(contains(spoiled("\"maps\"", "\"charts\""), "\"charts\", which is not known"));
  CHECK(contains(spoiled("\"causal\": 1", "\"causal\": 7"), "causal is 7"));
  CHECK(contains(spoiled("shard-00001.h5", "../secret.h5"), "not a plain file name"));
  CHECK(contains(spoiled("shard-00001.h5", "shard-00000.h5"), "is a duplicate"));
  CHECK(contains(spoiled("\"first\": 3", "\"first\": 2"), "out of order"));
  CHECK(contains(spoiled("\"first\": 6", "\"first\": 9"), "out of order"));
  CHECK(contains(spoiled("\"windows\": [1,", "\"windows\": ["), "6 windows for 7 samples"));
  std::ofstream(manifest_path(path), std::ios::trunc) << good;
  replace_in(manifest_path(path), "\"head_size\": 4", "\"head_size\": 6");
  replace_in(manifest_path(path), "\"heads\": 3", "\"heads\": 2");
  CHECK_REFUSES(DumpReader(path).read(range(0, 1)), "heads 3 and 2, head_size 4 and 6");
  std::filesystem::remove(manifest_path(path));
  CHECK(contains(message([&] { DumpReader r(path); }), "is not a dump"));
}

TEST_CASE("dump: a manifest of pooled attention has the number of columns") {
  Scratch dir;
  Path path = make_dump(dir, pooled_spec());
  std::string good = read_file(manifest_path(path));
  auto spoiled = [&](const std::string& from, const std::string& to) {
    std::ofstream(manifest_path(path), std::ios::trunc) << good;
    replace_in(manifest_path(path), from, to);
    return message([&] { DumpReader(path).read(range(0, 1)); });
  };
  CHECK(contains(spoiled("\"columns\": 4", "\"columns\": 0"), "columns is 0"));
  CHECK(contains(spoiled("\"columns\": 4", "\"pillars\": 4"), "\"columns\" is missing"));
  CHECK(contains(spoiled("\"columns\": 4", "\"columns\": 5"), "columns 4 and 5"));
  CHECK(contains(spoiled("\"pooled\"", "\"qk\""), "columns is 4, but the content is qk"));
}

TEST_CASE("dump: absent parts, wrong samples and other teachers are named") {
  Scratch dir;
  DumpSpec spec = small_spec();
  spec.context = false;
  spec.logits = DumpLogits::none;
  Path path = make_dump(dir, spec);
  DumpReader reader(path);
  CHECK(reader.has(part::attention));
  CHECK_FALSE(reader.has(part::attention_outputs));
  CHECK_FALSE(reader.has(part::logits));
  CHECK(contains(message([&] { reader.read(range(0, 1), {.parts = {part::attention_outputs}}); }),
                 "no attention outputs"));
  CHECK(
      contains(message([&] { reader.read(range(0, 1), {.parts = {part::logits}}); }), "no logits"));
  CHECK_REFUSES(reader.read(range(0, 1), {.parts = {part::pooled}}), "no pooled attention");
  CHECK(contains(message([&] { reader.read(range(6, 2)); }), "sample 7 is not in 0 to 6"));
  CHECK(contains(message([&] { reader.read(range(0, 0)); }), "no samples"));
  DumpBatch only = reader.read(range(2, 1), {.parts = {part::layer_outputs}});
  CHECK_FALSE(only.layers[0]["attention"].defined());
  DumpSource source{spec.teacher_hash, spec.tokenizer_hash, spec.corpus_hash};
  CHECK_NOTHROW(check_dump_source(spec, path, source));
  source.teacher_hash = std::string(64, '1');
  std::string error = message([&] { check_dump_source(spec, path, source); });
  CHECK(contains(error, "teacher " + spec.teacher_hash));
  CHECK(contains(error, "given one is " + source.teacher_hash));
  source = {"", std::string(64, '2'), ""};
  CHECK(contains(message([&] { check_dump_source(spec, path, source); }), "tokenizer bbbb"));
  source = {"", "", std::string(64, '3')};
  CHECK(contains(message([&] { check_dump_source(spec, path, source); }), "corpus cccc"));
  // Nothing is known to compare with.
  spec.tokenizer_hash = kNoHash;
  CHECK_NOTHROW(check_dump_source(spec, path, {spec.teacher_hash, std::string(64, '2'), ""}));
}

TEST_CASE("dump: reading ahead gives the batches of direct reads, in order") {
  Scratch dir;
  DumpSpec spec = small_spec();
  spec.dtype = Dtype::bf16;
  DumpReader reader(make_dump(dir, spec));
  auto order = [](int64_t step) {
    return step < 9 ? std::vector<int64_t>{step % 7, (step * 3) % 7} : std::vector<int64_t>{};
  };
  for (size_t ahead : {size_t(1), size_t(4)}) {
    DumpPrefetch prefetch(reader, order, reader.everything(), 2, ahead);
    for (int64_t step = 2; step < 9; ++step) {
      auto batch = prefetch.next();
      REQUIRE(batch.has_value());
      CHECK(batch->samples == order(step));
      CHECK(batch_differences(spec, *batch, batch_of(spec, order(step))) == "");
    }
    CHECK_FALSE(prefetch.next().has_value());
    CHECK_FALSE(prefetch.next().has_value());
  }
  { DumpPrefetch cancelled(reader, order, reader.everything()); }
  auto endless = [](int64_t step) { return std::vector<int64_t>{step % 7}; };
  {
    DumpPrefetch cancelled(reader, endless, reader.everything());
    CHECK(cancelled.next().has_value());
  }
  auto failing = [](int64_t step) { return std::vector<int64_t>{step == 2 ? 99 : 0}; };
  DumpPrefetch prefetch(reader, failing, reader.everything());
  CHECK(prefetch.next().has_value());
  CHECK(prefetch.next().has_value());
  CHECK(contains(message([&] { prefetch.next(); }), "sample 99"));
  CHECK(contains(message([&] { prefetch.next(); }), "sample 99"));
}

TEST_CASE("dump: a batch is taken early where it is read, and an error waits for its turn") {
  Scratch dir;
  DumpSpec spec = small_spec();
  DumpReader reader(make_dump(dir, spec));
  auto failing = [](int64_t step) { return std::vector<int64_t>{step == 2 ? 99 : step}; };
  DumpPrefetch prefetch(reader, failing, reader.everything());
  auto taken = [&] {
    std::optional<DumpBatch> batch;
    while (!batch) batch = prefetch.next_if_read();
    return batch->samples;
  };
  CHECK(taken() == std::vector<int64_t>{0});
  CHECK(prefetch.next()->samples == std::vector<int64_t>{1});
  for (int i = 0; i < 100; ++i) {
    CHECK_FALSE(prefetch.next_if_read().has_value());
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  CHECK(contains(message([&] { prefetch.next(); }), "sample 99"));
}

TEST_CASE("dump: several threads read one dump") {
  Scratch dir;
  DumpSpec spec = small_spec();
  spec.dtype = Dtype::f16;
  DumpReader reader(make_dump(dir, spec));
  std::vector<std::string> differences(3);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 40; ++i) {
        std::vector<int64_t> samples = {(i * 5 + int64_t(t)) % 7};
        differences[t] += batch_differences(spec, reader.read(samples), batch_of(spec, samples));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& d : differences) CHECK(d == "");
}
