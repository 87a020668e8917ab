// Random access to a dump: a few shards stay open, each compared with the manifest when it is
// opened. A thread reads batches ahead. The check of a sample's numbers.
#include "data/dump/dump_reader.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <utility>

#include "data/codec/checksums.h"
#include "data/hdf5/hdf5_file.h"
#include "data/io/bounded_queue.h"
#include "data/weights/weight_file.h"
#include "tensor/functions/transfer.h"

namespace brine::data {

namespace {

constexpr size_t kOpenShards = 16;

using SharedFile = std::shared_ptr<const Hdf5Reader>;

// The location of a sample.
struct Location {
  SharedFile file;
  int64_t row = 0;
  // Ragged only: tokens of the sample, of the samples before it in its shard, and of their maps of
  // a head.
  int64_t length = 0, token = 0, map = 0;
};

// Reads rows as they are stored, or converts 16 bits to floats.
class Rows {
 public:
  Rows(Dtype stored, Dtype wanted) : dtype_(stored), wanted_(wanted) {}
  // Returns the end of the values.
  unsigned char* read(const Hdf5Reader& file, const std::string& dataset, int64_t first,
                      int64_t rows, int64_t values, unsigned char* out) {
    size_t bytes = size_t(values) * item_size(dtype_);
    if (dtype_ == wanted_) {
      file.read_rows_into(dataset, first, rows, dtype_, out, bytes);
    } else {
      stored_.resize(bytes);
      file.read_rows_into(dataset, first, rows, dtype_, stored_.data(), bytes);
      convert_values(out, wanted_, stored_.data(), dtype_, values);
    }
    return out + values * int64_t(item_size(wanted_));
  }

 private:
  Dtype dtype_, wanted_;
  std::vector<unsigned char> stored_;
};

// The type in which a batch has a tensor.
Dtype type_read(const TeacherTensor& tensor, const DumpSpec& s, DumpWants::AsStored as_stored) {
  const bool kept = as_stored == DumpWants::AsStored::all
                        ? !tensor.is_map()
                        : tensor.narrow && as_stored == DumpWants::AsStored::queries_and_keys;
  return kept || !tensor.is_float() ? tensor.dtype(s) : Dtype::f32;
}

void check_numbers(const Tensor& x, int64_t low, int64_t high, const char* what,
                   const std::string& where) {
  auto check_one = [&](int64_t v) {
    check_format(v >= low && v < high, where, ": ", what, " contains ", v, ", which is not in ",
                 low, " to ", high - 1);
  };
  for (int64_t i = 0; i < x.numel(); ++i)
    check_one(x.dtype() == Dtype::i32 ? x.data<int32_t>()[i] : x.data<int64_t>()[i]);
}

// A dataset with one row for each sample.
Tensor read_samples(const std::vector<Location>& at, const std::string& dataset, const Shape& shape,
                    Dtype stored, Dtype wanted) {
  Tensor x = Tensor::empty(shape, wanted);
  int64_t count = shape.numel() / shape[0];
  Rows rows(stored, wanted);
  unsigned char* out = x.raw();
  for (const Location& s : at) out = rows.read(*s.file, dataset, s.row, 1, count, out);
  return x;
}

// In a ragged dump: [n, (H,) T, ...] with zeros at the ends.
Tensor read_ragged(const std::vector<Location>& at, const std::string& dataset, const Shape& shape,
                   bool by_head, Dtype stored, Dtype wanted) {
  Tensor x = Tensor::zeros(shape, wanted);
  int64_t H = by_head ? shape[1] : 1, T = shape[by_head ? 2 : 1];
  int64_t width = shape.numel() / (shape[0] * H * T);
  Rows rows(stored, wanted);
  unsigned char* out = x.raw();
  for (const Location& sample : at) {
    for (int64_t h = 0; h < H; ++h, out += T * width * int64_t(item_size(wanted))) {
      rows.read(*sample.file, dataset, H * sample.token + h * sample.length, sample.length,
                sample.length * width, out);
    }
  }
  return x;
}

// Maps [n, H, T, T] of a ragged dump, or of packed rows.
Tensor read_maps(const std::vector<Location>& at, const std::string& dataset, int64_t T,
                 const DumpSpec& s) {
  Tensor x = Tensor::zeros({int64_t(at.size()), s.heads, T, T});
  Rows rows(s.dtype, Dtype::f32);
  std::vector<float> values;
  float* out = x.data<float>();
  for (const Location& sample : at) {
    const int64_t length = s.ragged ? sample.length : T;
    const int64_t count = s.heads * s.map_values(length);
    values.resize(size_t(count));
    rows.read(*sample.file, dataset, s.ragged ? s.heads * sample.map : sample.row,
              s.ragged ? count : 1, count, reinterpret_cast<unsigned char*>(values.data()));
    const float* from = values.data();
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t q = 0; q < length; ++q) {
        int64_t keys = s.packs_rows() ? q + 1 : length;
        std::copy(from, from + keys, out + (h * T + q) * T);
        from += keys;
      }
    }
    out += s.heads * T * T;
  }
  return x;
}

}  // namespace

struct DumpReader::Impl {
  Path dir;
  DumpManifest manifest;
  std::vector<int64_t> tokens_before, maps_before;        // ragged: sums over earlier samples
  mutable std::mutex mutex;                               // guards `open`
  mutable std::list<std::pair<size_t, SharedFile>> open;  // by shard, most recently used first

  SharedFile shard(size_t index) const;
  SharedFile open_shard(const DumpShard& shard) const;
  std::vector<Location> locations(std::span<const int64_t> samples) const;
  Tensor read(const std::vector<Location>& at, const TeacherTensor& tensor, int64_t layer,
              int64_t T, DumpWants::AsStored as_stored) const;
  std::vector<const TeacherTensor*> chosen(const DumpWants& wants) const;
  int64_t tokens_of(const std::vector<Location>& at, const DumpWants& wants) const;
};

SharedFile DumpReader::Impl::open_shard(const DumpShard& shard) const {
  auto file = std::make_shared<Hdf5Reader>((dir / shard.name).string());
  int64_t first = 0;
  DumpSpec found = read_shard_header(*file, first);
  check_format(first == shard.first && found.samples == shard.samples, file->path(),
               ": has samples ", first, " to ", first + found.samples, ", but the manifest has ",
               shard.first, " to ", shard.first + shard.samples);
  DumpSpec wanted = manifest.spec;
  wanted.samples = shard.samples;
  found.windows = wanted.windows;
  found.lengths = wanted.lengths;
  std::string differences = spec_differences(found, wanted);
  check_format(differences.empty(), file->path(),
               ": contradicts the manifest (shard and manifest: ", differences, ")");
  check_shard_datasets(*file, wanted, shard.first);
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

std::vector<Location> DumpReader::Impl::locations(std::span<const int64_t> samples) const {
  check(!samples.empty(), dir.string(), ": no samples were requested");
  std::vector<Location> all;
  for (int64_t sample : samples) {
    check(sample >= 0 && sample < manifest.spec.samples, dir.string(), ": sample ", sample,
          " is not in 0 to ", manifest.spec.samples - 1);
    auto after = std::upper_bound(manifest.shards.begin(), manifest.shards.end(), sample,
                                  [](int64_t s, const DumpShard& d) { return s < d.first; });
    size_t index = size_t(after - manifest.shards.begin()) - 1;
    int64_t first = manifest.shards[index].first;
    Location at{.file = shard(index), .row = sample - first};
    if (manifest.spec.ragged) {
      at.length = manifest.spec.lengths[size_t(sample)];
      at.token = tokens_before[size_t(sample)] - tokens_before[size_t(first)];
      at.map = maps_before[size_t(sample)] - maps_before[size_t(first)];
    }
    all.push_back(std::move(at));
  }
  return all;
}

int64_t DumpReader::Impl::tokens_of(const std::vector<Location>& at, const DumpWants& wants) const {
  if (!manifest.spec.ragged) return manifest.spec.tokens;
  int64_t T = 0;
  for (const Location& sample : at) T = std::max(T, sample.length);
  return std::min(wants.tokens_steps.round_up(T), manifest.spec.tokens);
}

Tensor DumpReader::Impl::read(const std::vector<Location>& at, const TeacherTensor& tensor,
                              int64_t layer, int64_t T, DumpWants::AsStored as_stored) const {
  const DumpSpec& s = manifest.spec;
  const std::string dataset = tensor.path(layer);
  if (tensor.is_map() && (s.ragged || s.packs_rows())) return read_maps(at, dataset, T, s);
  const Shape shape = tensor.padded(s, int64_t(at.size()), T);
  const Dtype stored = tensor.dtype(s), wanted = type_read(tensor, s, as_stored);
  Tensor x = s.ragged && tensor.has_tokens()
                 ? read_ragged(at, dataset, shape, tensor.by_head(), stored, wanted)
                 : read_samples(at, dataset, shape, stored, wanted);
  if (!tensor.is_float()) check_numbers(x, 0, s.vocab, dataset.c_str(), dir.string());
  return x;
}

std::vector<const TeacherTensor*> DumpReader::Impl::chosen(const DumpWants& wants) const {
  for (const std::string& part : wants.parts)
    check(manifest.spec.has(part), dir.string(), ": the dump has no ", part);
  std::vector<const TeacherTensor*> all;
  for (const TeacherTensor* tensor : teacher_tensors()) {
    const bool wanted = tensor->part == part::tokens || wants.parts.contains(tensor->part);
    if (wanted && tensor->stored_in(manifest.spec)) all.push_back(tensor);
  }
  return all;
}

DumpReader::DumpReader(const Path& dir) : impl_(std::make_unique<Impl>()) {
  DumpManifest manifest = read_manifest(dir);
  check_format(manifest.complete(), dir.string(), ": the dump is not finished: it has ",
               manifest.stored_samples(), " of ", manifest.spec.samples, " samples");
  for (const DumpShard& s : manifest.shards) {
    Path path = dir / s.name;
    std::error_code error;
    uint64_t bytes = std::filesystem::file_size(path, error);
    check_found(!error, path.string(), ": the shard is missing, but the manifest lists it");
    check_format(bytes == s.bytes, path.string(), ": has ", bytes, " bytes, but the manifest has ",
                 s.bytes);
  }
  impl_->dir = dir;
  impl_->tokens_before = {0};
  impl_->maps_before = {0};
  for (int64_t length : manifest.spec.lengths) {
    impl_->tokens_before.push_back(impl_->tokens_before.back() + length);
    impl_->maps_before.push_back(impl_->maps_before.back() + manifest.spec.map_values(length));
  }
  impl_->manifest = std::move(manifest);
}

DumpReader::~DumpReader() = default;

const Path& DumpReader::dir() const { return impl_->dir; }
const DumpManifest& DumpReader::manifest() const { return impl_->manifest; }

DumpWants DumpReader::everything() const {
  DumpWants wants;
  for (const TeacherTensor* tensor : teacher_tensors())
    if (tensor->stored_in(spec())) wants.parts.insert(tensor->part);
  return wants;
}

void DumpReader::verify(const std::function<void(int64_t)>& progress) const {
  int64_t done = 0;
  for (const DumpShard& s : manifest().shards) {
    std::string path = (dir() / s.name).string();
    std::string found = sha256_file(path);
    check_format(found == s.sha256, path, ": its checksum is ", found, ", but the manifest has ",
                 s.sha256);
    if (progress) progress(++done);
  }
}

DumpBatch DumpReader::read(std::span<const int64_t> samples, const DumpWants& wants) const {
  const std::vector<const TeacherTensor*> tensors = impl_->chosen(wants);
  const DumpSpec& s = spec();
  std::vector<Location> at = impl_->locations(samples);
  int64_t n = int64_t(at.size()), T = impl_->tokens_of(at, wants);
  std::string where = dir().string();
  DumpBatch batch;
  auto of_layer = [](const TeacherTensor* tensor) { return tensor->of_layer; };
  if (std::any_of(tensors.begin(), tensors.end(), of_layer)) batch.layers.resize(size_t(s.layers));
  for (size_t l = 0; l < batch.layers.size(); ++l) {
    for (const TeacherTensor* tensor : tensors) {
      if (!tensor->of_layer) continue;
      batch.layers[l][tensor->name] = impl_->read(at, *tensor, int64_t(l), T, wants.as_stored);
    }
  }
  for (const TeacherTensor* tensor : tensors) {
    if (!tensor->of_layer)
      batch.tensors[tensor->name] = impl_->read(at, *tensor, 0, T, wants.as_stored);
  }
  batch.lengths = read_samples(at, "lengths", {n}, Dtype::i64, Dtype::i64);
  check_numbers(batch.lengths, 1, s.tokens + 1, "lengths", where);
  for (int64_t i = 0; i < n && s.ragged; ++i) {
    int64_t length = batch.lengths.data<int64_t>()[i];
    check_format(length == at[size_t(i)].length, where, ": sample ", samples[size_t(i)], " has ",
                 length, " tokens, but the manifest has ", at[size_t(i)].length);
  }
  batch.samples.assign(samples.begin(), samples.end());
  if (s.has_windows()) {
    Tensor stored = read_samples(at, "windows", {n}, Dtype::i64, Dtype::i64);
    for (int64_t i = 0; i < n; ++i) {
      int64_t window = stored.data<int64_t>()[i];
      check_format(window == s.windows[size_t(samples[size_t(i)])], where, ": sample ",
                   samples[size_t(i)], " is window ", window, ", but the manifest has ",
                   s.windows[size_t(samples[size_t(i)])]);
      batch.windows.push_back(window);
    }
  }
  return batch;
}

struct DumpPrefetch::Impl {
  const DumpReader& reader;
  Order order;
  DumpWants wants;
  int64_t step;
  Device device;
  // An error is queued after the batches before it.
  using Item = std::pair<DumpBatch, std::exception_ptr>;
  BoundedQueue<Item> queue;
  std::exception_ptr ended;  // rethrown by every call after the first
  std::thread thread;

  void run() {
    const PinnedMemory pinned(device);
    try {
      for (;; ++step) {
        std::vector<int64_t> samples = order(step);
        if (samples.empty() || !queue.push({reader.read(samples, wants), nullptr})) break;
      }
    } catch (...) {
      queue.push({DumpBatch(), std::current_exception()});
    }
    queue.close();
  }
  // The batch of an item; nothing of none and of an error, which ends the reading.
  std::optional<DumpBatch> batch_of(std::optional<Item> item) {
    if (item) ended = item->second;
    if (!item || ended) return {};
    return std::move(item->first);
  }
};

DumpPrefetch::DumpPrefetch(const DumpReader& reader, Order order, const DumpWants& wants,
                           int64_t first_step, size_t ahead, Device device)
    : impl_(new Impl{reader,
                     std::move(order),
                     wants,
                     first_step,
                     device,
                     BoundedQueue<Impl::Item>(ahead > 0 ? ahead : 1),
                     nullptr,
                     {}}) {
  impl_->thread = std::thread([impl = impl_.get()] { impl->run(); });
}

DumpPrefetch::~DumpPrefetch() {
  impl_->queue.cancel();
  impl_->thread.join();
}

std::optional<DumpBatch> DumpPrefetch::next() {
  if (impl_->ended) std::rethrow_exception(impl_->ended);
  std::optional<DumpBatch> batch = impl_->batch_of(impl_->queue.pop());
  if (impl_->ended) std::rethrow_exception(impl_->ended);
  return batch;
}

std::optional<DumpBatch> DumpPrefetch::next_if_read() {
  if (impl_->ended) return {};
  return impl_->batch_of(impl_->queue.try_pop());  // next() reports an error
}

namespace {

void check_finite(const Tensor& x, const std::string& what) {
  const float* v = x.data<float>();
  for (int64_t i = 0; i < x.numel(); ++i)
    check_format(std::isfinite(v[i]), what, ": value ", i, " is ", v[i]);
}

// The distance of attention outputs from the attention of q and k, relative to it, which is scaled
// by `factor`, or of the map, in a few rows of every head.
double context_distance(const Tensor& x, const TensorSet& layer, int64_t length, const DumpSpec& s,
                        double factor) {
  constexpr int64_t kRows = 16;
  const int64_t H = s.heads, G = s.key_heads, d = s.head_size, T = x.dim(1);
  const float* context = x.data<float>();
  const float* value = layer["value"].data<float>();
  const bool map = layer.has("attention");
  std::vector<double> weights(static_cast<size_t>(T));
  double difference = 0, all = 0;
  for (int64_t h = 0; h < H; ++h) {
    const int64_t g = h / (H / G);
    for (int64_t r = 0; r < std::min(kRows, length); ++r) {
      const int64_t t = (r + 1) * length / std::min(kRows, length) - 1;
      const int64_t keys = s.causal ? t + 1 : length;
      double largest = -INFINITY, sum = 0;
      for (int64_t j = 0; j < keys; ++j) {
        double& w = weights[size_t(j)];
        if (map) {
          w = layer["attention"].data<float>()[(h * T + t) * T + j];
          continue;
        }
        const float* q = layer["query"].data<float>() + (h * T + t) * d;
        const float* k = layer["key"].data<float>() + (g * T + j) * d;
        w = 0;
        for (int64_t i = 0; i < d; ++i) w += double(q[i]) * k[i];
        w *= factor / std::sqrt(double(d));
        largest = std::max(largest, w);
      }
      for (int64_t j = 0; j < keys; ++j) {
        if (!map) weights[size_t(j)] = std::exp(weights[size_t(j)] - largest);
        sum += weights[size_t(j)];
      }
      for (int64_t i = 0; i < d; ++i) {
        double y = 0;
        for (int64_t j = 0; j < keys; ++j)
          y += weights[size_t(j)] / sum * value[(g * T + j) * d + i];
        const double stored = context[(t * H + h) * d + i];
        difference += (stored - y) * (stored - y);
        all += y * y;
      }
    }
  }
  return std::sqrt(difference / std::max(all, 1e-300));
}

// Throws unless the attention outputs x of a layer are softmax(q k^T / sqrt(d)) v in some rows, or
// the map times v, if it has these.
void check_context(const Tensor& x, const TensorSet& layer, int64_t length, const DumpSpec& s,
                   const std::string& what) {
  // Rounding q and k moves scores, and the weights of keys by as much.
  const double tolerance = s.dtype == Dtype::f32 ? 0.01 : s.dtype == Dtype::f16 ? 0.03 : 0.1;
  const bool follows = layer.has("value") && (layer.has("attention") || layer.has("query"));
  if (!follows) return;
  const double distance = context_distance(x, layer, length, s, 1);
  if (distance < tolerance) return;
  const bool scaled =
      layer.has("query") &&
      context_distance(x, layer, length, s, std::sqrt(double(s.head_size))) < tolerance;
  check_format(false, what, ": differs by ", std::llround(100 * distance), " % from ",
               layer.has("query") ? "softmax(q k^T / sqrt(d)) v" : "the map times v",
               " of the stored tensors; ",
               scaled ? "query is multiplied by 1 / sqrt(d) already"
                      : "one of them is from another point or from another layer");
}

}  // namespace

void check_dump_sample(const DumpReader& reader, int64_t sample, const std::string& where) {
  const DumpBatch batch = reader.read(std::vector<int64_t>{sample});
  const int64_t length = batch.lengths.data<int64_t>()[0];
  auto check_all = [&](const TensorSet& tensors, int64_t layer) {
    for (const auto& [name, x] : tensors) {
      const TeacherTensor& tensor = *find_teacher_tensor(name);
      if (!tensor.is_float() || !x.defined()) continue;
      const std::string what = join(where, ": sample ", sample, ": ", tensor.path(layer));
      check_finite(x, what);
      if (name == "attention_output") check_context(x, tensors, length, reader.spec(), what);
    }
  };
  check_all(batch.tensors, 0);
  for (size_t l = 0; l < batch.layers.size(); ++l) check_all(batch.layers[l], int64_t(l));
}

}  // namespace brine::data
