// Samples into datasets, and a commit that a crash leaves done or not done.
#include "data/dump/dump_shard.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "data/dump/dump_convert.h"
#include "data/io/sha256.h"

namespace brine::data {
namespace {

void sync_file(const Path& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw_io(path, "open", errno);
  int failed = ::fsync(fd) != 0 ? errno : 0;
  ::close(fd);
  if (failed) throw_io(path, "fsync", failed);
}

void remove_file(const Path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_io(path, "remove", errno);
}

}  // namespace

std::string shard_name(int64_t index) {
  char name[32];
  std::snprintf(name, sizeof name, "shard-%05lld.h5", static_cast<long long>(index));
  return name;
}

ShardWriter::ShardWriter(const Path& target, const DumpSpec& spec, int64_t first, int64_t samples,
                         const Hdf5Layout& filters)
    : target_(target),
      temporary_(target.string() + kTemporaryShard),
      spec_(spec),
      first_(first),
      samples_(samples) {
  remove_file(temporary_);
  file_ = std::make_unique<Hdf5Writer>(temporary_.string());
  write_shard_header(*file_, spec_, first_, samples_);
  bool filtered = filters.shuffle || filters.deflate > 0;
  for (const DumpDataset& d : dump_datasets(spec_, samples_, first_)) {
    bool large = d.shape.rank() > 1;
    bool contiguous = spec_.ragged && !(filtered && large);
    file_->create(d.name, d.dtype, d.shape,
                  {.chunk = contiguous ? Shape() : d.chunk,
                   .shuffle = filters.shuffle && large,
                   .deflate = large ? filters.deflate : 0});
  }
}

ShardWriter::~ShardWriter() {
  file_.reset();
  if (!committed_) ::unlink(temporary_.c_str());  // left behind it is dropped by the next writer
}

void ShardWriter::write(const DumpBatch& batch, int64_t i) {
  for (int64_t l = 0; l < int64_t(batch.layers.size()); ++l) {
    const DumpLayer& layer = batch.layers[size_t(l)];
    if (spec_.content == DumpContent::maps)
      put_maps(layer_dataset(l, "attention"), layer.attention, i);
    if (spec_.content == DumpContent::qk) {
      put_heads(layer_dataset(l, "query"), layer.query, i, spec_.dtype);
      put_heads(layer_dataset(l, "key"), layer.key, i, spec_.dtype);
    }
    if (spec_.content == DumpContent::pooled) {
      put_heads(layer_dataset(l, "tau"), layer.pooled.tau, i, spec_.dtype);
      put_heads(layer_dataset(l, "t_log_t"), layer.pooled.t_log_t, i, Dtype::f32);
      put_heads(layer_dataset(l, "t_square"), layer.pooled.t_square, i, Dtype::f32);
    }
    if (spec_.context) put_tokens(layer_dataset(l, "context"), layer.context, i, spec_.dtype);
    if (spec_.output) put_tokens(layer_dataset(l, "output"), layer.output, i, spec_.dtype);
  }
  if (spec_.has(DumpPart::logits)) {
    put_tokens("logits/values", batch.logits, i, spec_.dtype);
    if (spec_.logits == DumpLogits::top) put_integers("logits/ids", batch.logit_ids, i);
    put_tokens("logits/lse", batch.lse, i, Dtype::f32);
  }
  if (spec_.classes > 0) put_floats("logits/classes", batch.classes, i, Dtype::f32);
  if (spec_.stores_tokens) put_integers("tokens", batch.tokens, i);
  if (spec_.has(DumpPart::windows)) {
    file_->write_rows("windows", written_, 1, &spec_.windows[size_t(first_ + written_)],
                      sizeof(int64_t));
  }
  put_raw("lengths", batch.lengths, i);
  token_ += length(written_);
  map_ += spec_.map_values(length(written_));
  ++written_;
}

std::string ShardWriter::where(const std::string& dataset) const {
  return join(temporary_.string(), ": sample ", first_ + written_, ": ", dataset);
}

void ShardWriter::put_floats(const std::string& dataset, const Tensor& x, int64_t i, Dtype dtype) {
  int64_t count = x.numel() / x.dim(0);
  stored_.resize(size_t(count) * item_size(dtype));
  store_values(x.data<float>() + i * count, count, dtype, stored_.data(), where(dataset));
  file_->write_rows(dataset, written_, 1, stored_.data(), stored_.size());
}

void ShardWriter::put_tokens(const std::string& dataset, const Tensor& x, int64_t i, Dtype dtype) {
  if (!spec_.ragged) return put_floats(dataset, x, i, dtype);
  int64_t T = x.dim(1), t = length(written_), width = x.numel() / (x.dim(0) * T);
  stored_.resize(size_t(t * width) * item_size(dtype));
  store_values(x.data<float>() + i * T * width, t * width, dtype, stored_.data(), where(dataset));
  file_->write_rows(dataset, token_, t, stored_.data(), stored_.size());
}

void ShardWriter::put_integers(const std::string& dataset, const Tensor& x, int64_t i) {
  if (!spec_.ragged) return put_raw(dataset, x, i);
  int64_t T = x.dim(1), t = length(written_), width = x.numel() / (x.dim(0) * T);
  file_->write_rows(dataset, token_, t, x.data<int32_t>() + i * T * width,
                    size_t(t * width) * sizeof(int32_t));
}

void ShardWriter::put_heads(const std::string& dataset, const Tensor& x, int64_t i, Dtype dtype) {
  if (!spec_.ragged) return put_floats(dataset, x, i, dtype);
  int64_t H = x.dim(1), T = x.dim(2), d = x.numel() / (x.dim(0) * H * T), t = length(written_);
  size_t head = size_t(t * d) * item_size(dtype);
  stored_.resize(size_t(H) * head);
  for (int64_t h = 0; h < H; ++h) {
    store_values(x.data<float>() + (i * H + h) * T * d, t * d, dtype,
                 stored_.data() + size_t(h) * head, where(dataset));
  }
  file_->write_rows(dataset, H * token_, H * t, stored_.data(), stored_.size());
}

void ShardWriter::put_ragged_maps(const std::string& dataset, const Tensor& x, int64_t i) {
  int64_t H = x.dim(1), T = x.dim(2), t = length(written_);
  packed_.clear();
  for (int64_t h = 0; h < H; ++h) {
    for (int64_t q = 0; q < t; ++q) {
      const float* row = x.data<float>() + ((i * H + h) * T + q) * T;
      packed_.insert(packed_.end(), row, row + (spec_.packs_rows() ? q + 1 : t));
    }
  }
  stored_.resize(packed_.size() * item_size(spec_.dtype));
  store_values(packed_.data(), int64_t(packed_.size()), spec_.dtype, stored_.data(),
               where(dataset));
  file_->write_rows(dataset, H * map_, int64_t(packed_.size()), stored_.data(), stored_.size());
}

void ShardWriter::put_maps(const std::string& dataset, const Tensor& x, int64_t i) {
  if (spec_.ragged) return put_ragged_maps(dataset, x, i);
  if (!spec_.packs_rows()) return put_floats(dataset, x, i, spec_.dtype);
  int64_t count = spec_.heads * (spec_.tokens * (spec_.tokens + 1) / 2);
  packed_.resize(size_t(count));
  pack_rows(x.data<float>() + i * (x.numel() / x.dim(0)), spec_.heads, spec_.tokens,
            packed_.data());
  stored_.resize(size_t(count) * item_size(spec_.dtype));
  store_values(packed_.data(), count, spec_.dtype, stored_.data(), where(dataset));
  file_->write_rows(dataset, written_, 1, stored_.data(), stored_.size());
}

void ShardWriter::put_raw(const std::string& dataset, const Tensor& x, int64_t i) {
  size_t bytes = size_t(x.numel() / x.dim(0)) * item_size(x.dtype());
  file_->write_rows(dataset, written_, 1, x.raw() + size_t(i) * bytes, bytes);
}

DumpShard ShardWriter::commit() {
  file_->close();
  file_.reset();
  sync_file(temporary_);
  DumpShard shard;
  shard.name = target_.filename().string();
  shard.bytes = std::filesystem::file_size(temporary_);
  shard.sha256 = sha256_file(temporary_.string());
  shard.first = first_;
  shard.samples = samples_;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) throw_io(target_, "create", errno);
  committed_ = true;
  sync_parent_of(target_);
  return shard;
}

}  // namespace brine::data
