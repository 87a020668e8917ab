// Random access: a few shards stay open, each checked against the manifest when it is opened.
#include "data/dump_reader.h"

#include <algorithm>
#include <list>
#include <mutex>

#include "data/dump_convert.h"
#include "data/hdf5_file.h"
#include "data/sha256.h"

namespace brine::data {
namespace {

constexpr size_t kOpenShards = 16;

using SharedFile = std::shared_ptr<const Hdf5Reader>;

// Where a sample lies.
struct Place {
  SharedFile file;
  int64_t row = 0;
};

void check_numbers(const Tensor& x, int64_t low, int64_t high, const char* what,
                   const std::string& where) {
  auto check_one = [&](int64_t v) {
    check(v >= low && v < high, where, ": ", what, " holds ", v, ", which is not in ", low, " to ",
          high - 1);
  };
  for (int64_t i = 0; i < x.numel(); ++i)
    check_one(x.dtype() == Dtype::i32 ? x.data<int32_t>()[i] : x.data<int64_t>()[i]);
}

}  // namespace

struct DumpReader::Impl {
  Path dir;
  DumpManifest manifest;
  mutable std::mutex mutex;                               // guards `open`
  mutable std::list<std::pair<size_t, SharedFile>> open;  // by shard, last used first

  SharedFile shard(size_t index) const;
  SharedFile open_shard(const DumpShard& shard) const;
  std::vector<Place> places(std::span<const int64_t> samples) const;
  Tensor floats(const std::vector<Place>& places, const std::string& dataset, const Shape& shape,
                Dtype dtype) const;
  Tensor maps(const std::vector<Place>& places, const std::string& dataset) const;
  Tensor integers(const std::vector<Place>& places, const std::string& dataset, const Shape& shape,
                  Dtype dtype) const;
  DumpLayer layer(const std::vector<Place>& places, int64_t l, const DumpWants& wants) const;
  void check_wants(const DumpWants& wants) const;
};

SharedFile DumpReader::Impl::open_shard(const DumpShard& shard) const {
  auto file = std::make_shared<Hdf5Reader>((dir / shard.name).string());
  int64_t first = 0;
  DumpSpec found = read_shard_header(*file, first);
  check(first == shard.first && found.samples == shard.samples, file->path(), ": holds samples ",
        first, " to ", first + found.samples, ", but the manifest says ", shard.first, " to ",
        shard.first + shard.samples);
  DumpSpec wanted = manifest.spec;
  wanted.samples = shard.samples;
  found.windows = wanted.windows;
  std::string differences = spec_differences(found, wanted);
  check(differences.empty(), file->path(),
        ": contradicts the manifest (there and in the manifest: ", differences, ")");
  check_shard_datasets(*file, wanted);
  return file;
}

SharedFile DumpReader::Impl::shard(size_t index) const {
  std::lock_guard lock(mutex);
  auto found = std::find_if(open.begin(), open.end(), [&](auto& o) { return o.first == index; });
  if (found != open.end()) {
    open.splice(open.begin(), open, found);
  } else {
    open.emplace_front(index, open_shard(manifest.shards[index]));
    if (open.size() > kOpenShards) open.pop_back();
  }
  return open.front().second;
}

std::vector<Place> DumpReader::Impl::places(std::span<const int64_t> samples) const {
  check(!samples.empty(), dir.string(), ": no samples were asked for");
  std::vector<Place> all;
  for (int64_t sample : samples) {
    check(sample >= 0 && sample < manifest.spec.samples, dir.string(), ": sample ", sample,
          " is not in 0 to ", manifest.spec.samples - 1);
    auto after = std::upper_bound(manifest.shards.begin(), manifest.shards.end(), sample,
                                  [](int64_t s, const DumpShard& d) { return s < d.first; });
    size_t index = size_t(after - manifest.shards.begin()) - 1;
    all.push_back({shard(index), sample - manifest.shards[index].first});
  }
  return all;
}

Tensor DumpReader::Impl::floats(const std::vector<Place>& places, const std::string& dataset,
                                const Shape& shape, Dtype dtype) const {
  Tensor x = Tensor::empty(shape);
  int64_t count = shape.numel() / shape[0];
  std::vector<unsigned char> stored(dtype == Dtype::f32 ? 0 : size_t(count) * item_size(dtype));
  float* out = x.data<float>();
  for (const Place& place : places) {
    bool direct = dtype == Dtype::f32;
    void* target = direct ? static_cast<void*>(out) : stored.data();
    place.file->read_rows_into(dataset, place.row, 1, dtype, target,
                               size_t(count) * item_size(dtype));
    if (!direct) load_values(stored.data(), count, dtype, out);
    out += count;
  }
  return x;
}

Tensor DumpReader::Impl::maps(const std::vector<Place>& places, const std::string& dataset) const {
  const DumpSpec& s = manifest.spec;
  int64_t n = int64_t(places.size());
  Shape shape{n, s.heads, s.tokens, s.tokens};
  if (!s.packs_rows()) return floats(places, dataset, shape, s.dtype);
  Tensor x = Tensor::empty(shape);
  int64_t count = s.heads * (s.tokens * (s.tokens + 1) / 2);
  std::vector<unsigned char> stored(size_t(count) * item_size(s.dtype));
  std::vector<float> packed(size_t(count), 0.0f);
  for (int64_t i = 0; i < n; ++i) {
    const Place& place = places[size_t(i)];
    place.file->read_rows_into(dataset, place.row, 1, s.dtype, stored.data(), stored.size());
    load_values(stored.data(), count, s.dtype, packed.data());
    unpack_rows(packed.data(), s.heads, s.tokens, x.data<float>() + i * (x.numel() / n));
  }
  return x;
}

Tensor DumpReader::Impl::integers(const std::vector<Place>& places, const std::string& dataset,
                                  const Shape& shape, Dtype dtype) const {
  Tensor x = Tensor::empty(shape, dtype);
  size_t bytes = size_t(shape.numel() / shape[0]) * item_size(dtype);
  unsigned char* out = x.raw();
  for (const Place& place : places) {
    place.file->read_rows_into(dataset, place.row, 1, dtype, out, bytes);
    out += bytes;
  }
  return x;
}

DumpLayer DumpReader::Impl::layer(const std::vector<Place>& places, int64_t l,
                                  const DumpWants& wants) const {
  const DumpSpec& s = manifest.spec;
  int64_t n = int64_t(places.size());
  DumpLayer layer;
  if (wants.attention && s.content == DumpContent::maps)
    layer.attention = maps(places, layer_dataset(l, "attention"));
  if (wants.attention && s.content == DumpContent::qk) {
    Shape shape{n, s.heads, s.tokens, s.head_size};
    layer.query = floats(places, layer_dataset(l, "query"), shape, s.dtype);
    layer.key = floats(places, layer_dataset(l, "key"), shape, s.dtype);
  }
  Shape features{n, s.tokens, s.hidden};
  if (wants.context) layer.context = floats(places, layer_dataset(l, "context"), features, s.dtype);
  if (wants.output) layer.output = floats(places, layer_dataset(l, "output"), features, s.dtype);
  return layer;
}

void DumpReader::Impl::check_wants(const DumpWants& wants) const {
  auto need = [&](bool wanted, DumpPart part) {
    check(!wanted || manifest.spec.has(part), dir.string(), ": the dump holds no ", name_of(part));
  };
  need(wants.attention, DumpPart::attention);
  need(wants.context, DumpPart::context);
  need(wants.output, DumpPart::output);
  need(wants.logits, DumpPart::logits);
}

DumpReader::DumpReader(const Path& dir) : DumpReader(dir, read_manifest(dir)) {}

DumpReader::DumpReader(const Path& dir, DumpManifest manifest) : impl_(std::make_unique<Impl>()) {
  check(manifest.complete(), dir.string(), ": the dump is not finished: it holds ",
        manifest.stored_samples(), " of ", manifest.spec.samples, " samples");
  for (const DumpShard& s : manifest.shards) {
    Path path = dir / s.name;
    std::error_code error;
    uint64_t bytes = std::filesystem::file_size(path, error);
    check(!error, path.string(), ": the shard is not there, though the manifest lists it");
    check(bytes == s.bytes, path.string(), ": has ", bytes, " bytes, but the manifest says ",
          s.bytes);
  }
  impl_->dir = dir;
  impl_->manifest = std::move(manifest);
}

DumpReader::~DumpReader() = default;

const Path& DumpReader::dir() const { return impl_->dir; }
const DumpManifest& DumpReader::manifest() const { return impl_->manifest; }

DumpWants DumpReader::everything() const {
  return {.attention = has(DumpPart::attention),
          .context = has(DumpPart::context),
          .output = has(DumpPart::output),
          .logits = has(DumpPart::logits)};
}

void DumpReader::verify(const std::function<void(int64_t)>& progress) const {
  int64_t done = 0;
  for (const DumpShard& s : manifest().shards) {
    std::string path = (dir() / s.name).string();
    std::string found = sha256_file(path);
    check(found == s.sha256, path, ": its checksum is ", found, ", but the manifest says ",
          s.sha256);
    if (progress) progress(++done);
  }
}

DumpBatch DumpReader::read(std::span<const int64_t> samples, const DumpWants& wants) const {
  impl_->check_wants(wants);
  const DumpSpec& s = spec();
  std::vector<Place> places = impl_->places(samples);
  int64_t n = int64_t(places.size());
  std::string where = dir().string();
  DumpBatch batch;
  if (wants.attention || wants.context || wants.output) {
    for (int64_t l = 0; l < s.layers; ++l) batch.layers.push_back(impl_->layer(places, l, wants));
  }
  if (wants.logits) {
    int64_t width = s.logits == DumpLogits::top ? s.top_n : s.vocab;
    batch.logits = impl_->floats(places, "logits/values", {n, s.tokens, width}, s.dtype);
    batch.lse = impl_->floats(places, "logits/lse", {n, s.tokens}, Dtype::f32);
    if (s.logits == DumpLogits::top) {
      batch.logit_ids = impl_->integers(places, "logits/ids", {n, s.tokens, width}, Dtype::i32);
      check_numbers(batch.logit_ids, 0, s.vocab, "logits/ids", where);
    }
  }
  if (s.stores_tokens) {
    batch.tokens = impl_->integers(places, "tokens", {n, s.tokens}, Dtype::i32);
    check_numbers(batch.tokens, 0, s.vocab, "tokens", where);
  }
  batch.lengths = impl_->integers(places, "lengths", {n}, Dtype::i64);
  check_numbers(batch.lengths, 1, s.tokens + 1, "lengths", where);
  batch.samples.assign(samples.begin(), samples.end());
  if (has(DumpPart::windows)) {
    Tensor stored = impl_->integers(places, "windows", {n}, Dtype::i64);
    for (int64_t i = 0; i < n; ++i) {
      int64_t window = stored.data<int64_t>()[i];
      check(window == s.windows[size_t(samples[size_t(i)])], where, ": sample ", samples[size_t(i)],
            " is window ", window, ", but the manifest says ",
            s.windows[size_t(samples[size_t(i)])]);
      batch.windows.push_back(window);
    }
  }
  return batch;
}

}  // namespace brine::data
