// Writing a shard: samples into datasets, and an atomic commit.
#include "data/dump/dump_shard.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "data/codec/checksums.h"
#include "data/dump/dump_convert.h"

namespace brine::data {

void remove_file(const Path& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_io(path, "remove", errno);
}

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
  if (!committed_) ::unlink(temporary_.c_str());  // the next writer deletes it if it remains
}

void ShardWriter::write(const DumpBatch& batch, int64_t i) {
  auto put_stored = [&](const TensorSet& tensors, bool of_layer, int64_t layer) {
    for (const TeacherTensor* tensor : teacher_tensors()) {
      if (tensor->of_layer == of_layer && tensor->stored_in(spec_))
        put(*tensor, tensor->path(layer), tensors[tensor->name], i);
    }
  };
  for (int64_t l = 0; l < int64_t(batch.layers.size()); ++l)
    put_stored(batch.layers[size_t(l)], true, l);
  put_stored(batch.tensors, false, 0);
  if (spec_.has_windows()) {
    file_->write_rows("windows", written_, 1, &spec_.windows[size_t(first_ + written_)],
                      sizeof(int64_t));
  }
  file_->write_rows("lengths", written_, 1, batch.lengths.data<int64_t>() + i, sizeof(int64_t));
  token_ += length(written_);
  map_ += spec_.map_values(length(written_));
  ++written_;
}

std::string ShardWriter::where(const std::string& dataset) const {
  return join(temporary_.string(), ": sample ", first_ + written_, ": ", dataset);
}

void ShardWriter::append(const Tensor& x, int64_t first, int64_t count, Dtype dtype,
                         const std::string& dataset) {
  const size_t at = stored_.size(), bytes = size_t(count) * item_size(dtype);
  stored_.resize(at + bytes);
  if (x.dtype() == Dtype::i32) {
    std::memcpy(stored_.data() + at, x.data<int32_t>() + first, bytes);
  } else if (x.dtype() == dtype) {
    copy_values(x.raw() + size_t(first) * item_size(dtype), count, dtype, stored_.data() + at,
                where(dataset));
  } else {
    store_values(x.data<float>() + first, count, dtype, stored_.data() + at, where(dataset));
  }
}

void ShardWriter::put(const TeacherTensor& tensor, const std::string& dataset, const Tensor& x,
                      int64_t i) {
  if (tensor.is_map() && (spec_.ragged || spec_.packs_rows())) return put_map(dataset, x, i);
  const Dtype dtype = tensor.dtype(spec_);
  const int64_t count = x.numel() / x.dim(0);
  stored_.clear();
  if (!spec_.ragged || !tensor.has_tokens()) {
    append(x, i * count, count, dtype, dataset);
    file_->write_rows(dataset, written_, 1, stored_.data(), stored_.size());
    return;
  }
  const int64_t H = tensor.by_head() ? x.dim(1) : 1, T = x.dim(tensor.by_head() ? 2 : 1);
  const int64_t width = count / (H * T), t = length(written_);
  for (int64_t h = 0; h < H; ++h) append(x, (i * H + h) * T * width, t * width, dtype, dataset);
  file_->write_rows(dataset, H * token_, H * t, stored_.data(), stored_.size());
}

void ShardWriter::put_map(const std::string& dataset, const Tensor& x, int64_t i) {
  int64_t H = x.dim(1), T = x.dim(2), t = length(written_);
  const float* map = x.data<float>() + i * H * T * T;
  packed_.clear();
  for (int64_t h = 0; h < H; ++h) {
    for (int64_t q = 0; q < t; ++q) {
      const float* row = map + (h * T + q) * T;
      packed_.insert(packed_.end(), row, row + (spec_.packs_rows() ? q + 1 : t));
    }
  }
  int64_t count = int64_t(packed_.size());
  stored_.resize(packed_.size() * item_size(spec_.dtype));
  store_values(packed_.data(), count, spec_.dtype, stored_.data(), where(dataset));
  file_->write_rows(dataset, spec_.ragged ? H * map_ : written_, spec_.ragged ? count : 1,
                    stored_.data(), stored_.size());
}

DumpShard ShardWriter::commit() {
  file_->close();
  file_.reset();
  sync_path(temporary_);
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
