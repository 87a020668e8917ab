// The file that `brine logits` writes: a head and then the numbers, so that rows can be written
// before the later ones are computed.
#include "apps/logits/logit_file.h"

#include "data/io/human.h"
#include "data/safetensors/safetensors_header.h"

namespace brine {
namespace {

uint64_t bytes_of(const Shape& shape, Dtype dtype) {
  return uint64_t(shape.numel()) * item_size(dtype);
}

// The logits stand before their tokens: files of the format are ordered by type.
std::string head_of(const std::string& path, const Shape& shape, const Tensor& tokens) {
  data::SafetensorsHeader header{{{"format", "pt"}}, {}};
  uint64_t end = 0;
  auto add = [&](const std::string& name, Dtype dtype, const Shape& of) {
    const uint64_t begin = end;
    end += bytes_of(of, dtype);
    const char* type = data::safetensors_type(dtype).name;
    header.records.push_back({name, type, {of.begin(), of.end()}, begin, end});
  };
  add("logits", Dtype::f32, shape);
  add("tokens", tokens.dtype(), tokens.shape());
  const std::string text = data::format_safetensors_header(path, header);
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + text;
}

std::string_view bytes_in(const Tensor& x) {
  return {reinterpret_cast<const char*>(x.raw()), size_t(x.numel()) * item_size(x.dtype())};
}

}  // namespace

void check_logit_path(const std::string& path) {
  check(path.ends_with(".safetensors"), path, ": logits are a file that ends in .safetensors");
  check(!std::filesystem::is_directory(path), path, ": is a directory, wanted a file");
  const data::Path parent = data::Path(path).parent_path();
  check_found(parent.empty() || std::filesystem::is_directory(parent), path, ": no directory ",
              parent.string());
}

LogitFile::LogitFile(const std::string& path, const Shape& shape, const Tensor& tokens)
    : shape_(shape), tokens_(tokens), missing_(shape.numel()) {
  check_logit_path(path);
  const std::string head = head_of(path, shape, tokens);
  const uint64_t bytes = head.size() + bytes_of(shape, Dtype::f32) + bytes_in(tokens).size();
  const uint64_t free = data::free_disk_bytes(path);
  check(bytes <= free, path, ": logits ", shape, " need ", human_bytes(double(bytes)),
        ", the disk has ", human_bytes(double(free)));
  file_ = std::make_unique<data::AtomicFile>(path);
  file_->write(head);
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
  file_->write(bytes_in(tokens_));
  file_->commit();
}

}  // namespace brine
