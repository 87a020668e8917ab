// Samples into datasets, and a commit that a crash leaves done or not done.
#include "data/dump_shard.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "data/dump_convert.h"
#include "data/sha256.h"

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
  for (const DumpDataset& d : dump_datasets(spec_, samples_)) {
    bool large = d.shape.rank() > 1;
    file_->create(d.name, d.dtype, d.shape,
                  {.chunk = d.chunk,
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
      put_floats(layer_dataset(l, "query"), layer.query, i, spec_.dtype);
      put_floats(layer_dataset(l, "key"), layer.key, i, spec_.dtype);
    }
    if (spec_.context) put_floats(layer_dataset(l, "context"), layer.context, i, spec_.dtype);
    if (spec_.output) put_floats(layer_dataset(l, "output"), layer.output, i, spec_.dtype);
  }
  if (spec_.has(DumpPart::logits)) {
    put_floats("logits/values", batch.logits, i, spec_.dtype);
    if (spec_.logits == DumpLogits::top) put_raw("logits/ids", batch.logit_ids, i);
    put_floats("logits/lse", batch.lse, i, Dtype::f32);
  }
  if (spec_.stores_tokens) put_raw("tokens", batch.tokens, i);
  if (spec_.has(DumpPart::windows)) {
    file_->write_rows("windows", written_, 1, &spec_.windows[size_t(first_ + written_)],
                      sizeof(int64_t));
  }
  put_raw("lengths", batch.lengths, i);
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

void ShardWriter::put_maps(const std::string& dataset, const Tensor& x, int64_t i) {
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
