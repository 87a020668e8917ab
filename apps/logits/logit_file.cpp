// The file that `brine logits` writes. Both formats are a head and then the numbers, so that rows
// can be written before the later ones are computed.
#include "apps/logits/logit_file.h"

#include "data/io/human.h"
#include "data/safetensors/safetensors_header.h"

namespace brine {
namespace {

bool is_numpy(const std::string& path) { return path.ends_with(".npy"); }

uint64_t bytes_of(const Shape& shape, Dtype dtype) {
  return uint64_t(shape.numel()) * item_size(dtype);
}

// Format version 1.0: magic, size of the dictionary, a Python dictionary that ends the head at a
// multiple of 64 bytes.
std::string numpy_head(const Shape& shape) {
  std::string list;
  for (const int64_t size : shape) list += (list.empty() ? "" : ", ") + std::to_string(size);
  if (shape.rank() == 1) list += ",";
  std::string text = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + list + "), }";
  const size_t before = 10;
  text.append(64 - (before + text.size() + 1) % 64, ' ');
  text += '\n';
  std::string head = "\x93NUMPY\x01";
  head += '\0';
  head += char(text.size() & 0xff);
  head += char(text.size() >> 8);
  return head + text;
}

// Larger types come first in such a file: the logits before their ids.
std::string safetensors_head(const std::string& path, const Shape& shape,
                             const std::vector<NamedTensor>& ids) {
  data::SafetensorsHeader header{{{"format", "pt"}}, {}};
  uint64_t end = 0;
  auto add = [&](const std::string& name, Dtype dtype, const Shape& of) {
    const uint64_t begin = end;
    end += bytes_of(of, dtype);
    const char* type = data::safetensors_type(dtype).name;
    header.records.push_back({name, type, {of.begin(), of.end()}, begin, end});
  };
  add("logits", Dtype::f32, shape);
  for (const NamedTensor& t : ids) add(t.name, t.tensor.dtype(), t.tensor.shape());
  const std::string text = data::format_safetensors_header(path, header);
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + text;
}

std::string_view bytes_in(const Tensor& x) {
  return {reinterpret_cast<const char*>(x.raw()), size_t(x.numel()) * item_size(x.dtype())};
}

}  // namespace

void check_logit_path(const std::string& path) {
  check(is_numpy(path) || path.ends_with(".safetensors"), path,
        ": ends in neither .npy nor .safetensors, the formats of logits");
  check(!std::filesystem::is_directory(path), path, ": is a directory, wanted a file");
  const data::Path parent = data::Path(path).parent_path();
  check_found(parent.empty() || std::filesystem::is_directory(parent), path, ": no directory ",
              parent.string());
}

LogitFile::LogitFile(const std::string& path, const Shape& shape, std::vector<NamedTensor> ids)
    : shape_(shape), ids_(std::move(ids)), missing_(shape.numel()) {
  check_logit_path(path);
  if (is_numpy(path)) ids_.clear();
  head_ = is_numpy(path) ? numpy_head(shape) : safetensors_head(path, shape, ids_);
  uint64_t bytes = head_.size() + bytes_of(shape, Dtype::f32);
  for (const NamedTensor& t : ids_) bytes += bytes_of(t.tensor.shape(), t.tensor.dtype());
  const uint64_t free = data::free_disk_bytes(path);
  check(bytes <= free, path, ": logits ", shape, " need ", human_bytes(double(bytes)),
        ", the disk has ", human_bytes(double(free)));
  file_ = std::make_unique<data::AtomicFile>(path);
  file_->write(head_);
}

void LogitFile::write(const Tensor& rows) {
  check(rows.dim(-1) == shape_[shape_.axis(-1)] && rows.numel() <= missing_, "logits: rows ",
        rows.shape(), " are not the next ones of ", shape_);
  const Tensor host = rows.detach().to(Device{}).to(Dtype::f32).contiguous();
  missing_ -= host.numel();
  file_->write(bytes_in(host));
}

void LogitFile::commit() {
  check(missing_ == 0, "logits: ", missing_, " numbers are missing");
  for (const NamedTensor& t : ids_) file_->write(bytes_in(t.tensor));
  file_->commit();
}

}  // namespace brine
