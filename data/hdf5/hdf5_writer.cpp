// Hdf5Writer: datasets, attributes and a close that reports its errors.
#include <algorithm>
#include <filesystem>
#include <map>

#include "data/hdf5/hdf5_file.h"
#include "data/hdf5/hdf5_internal.h"

namespace brine::data {

using namespace hdf5;

namespace {

Handle dataset_properties(const std::string& where, const Shape& shape, const Hdf5Layout& layout) {
  Handle plist(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  must(plist.ok() && H5Pset_obj_track_times(plist.id(), false) >= 0 &&
           H5Pset_fill_time(plist.id(), H5D_FILL_TIME_IFSET) >= 0,
       where, "cannot set up");
  check(layout.deflate >= 0 && layout.deflate <= 9, where, ": deflate level ", layout.deflate,
        " is not in 0 to 9");
  const Shape& chunk = layout.chunk;
  if (shape.numel() == 0 || shape.rank() == 0) return plist;
  check(chunk.rank() > 0 || (layout.deflate == 0 && !layout.shuffle), where,
        ": a filter needs a chunk");
  if (chunk.rank() == 0) return plist;
  check(chunk.rank() == shape.rank(), where, ": chunk ", chunk, " of a dataset ", shape);
  for (int i = 0; i < chunk.rank(); ++i) {
    check(chunk[i] >= 1 && chunk[i] <= shape[i], where, ": chunk ", chunk, " of a dataset ", shape);
  }
  must(H5Pset_chunk(plist.id(), chunk.rank(), to_hsize(chunk).data()) >= 0, where,
       "cannot set the chunk");
  if (layout.shuffle) must(H5Pset_shuffle(plist.id()) >= 0, where, "cannot set shuffle");
  if (layout.deflate > 0)
    must(H5Pset_deflate(plist.id(), unsigned(layout.deflate)) >= 0, where, "cannot set deflate");
  return plist;
}

}  // namespace

struct Hdf5Writer::Impl {
  struct OpenDataset {
    Handle id;
    Dtype dtype;
    Shape shape;
  };
  std::string path;
  Handle file, link_properties;
  std::map<std::string, OpenDataset> open;

  std::string where(const std::string& object) const { return path + ": " + object; }
  void need_open() const { check(file.ok(), path, ": is closed already"); }

  void attribute(const std::string& object, const std::string& name, hid_t type, hid_t space,
                 const void* value) {
    std::string at = where(object) + ": attribute \"" + name + "\"";
    need_open();
    Handle on(H5Oopen(file.id(), object.c_str(), H5P_DEFAULT), H5Oclose);
    must(on.ok(), at, "cannot open the object");
    Handle id(H5Acreate2(on.id(), name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
    must(id.ok() && H5Awrite(id.id(), type, value) >= 0, at, "cannot write");
  }
  void number(const std::string& object, const std::string& name, Dtype dtype, const void* value) {
    Lock lock;
    Handle space(H5Screate(H5S_SCALAR), H5Sclose);
    attribute(object, name, file_type(dtype), space.id(), value);
  }
};

Hdf5Writer::Hdf5Writer(const std::string& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  Lock lock;
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  must(access.ok() && H5Pset_fclose_degree(access.id(), H5F_CLOSE_STRONG) >= 0, path,
       "cannot set up");
  check(!std::filesystem::exists(path), path, ": exists already");
  impl_->file = Handle(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access.id()), H5Fclose);
  if (!impl_->file.ok()) fail(path, "cannot be created");
  impl_->link_properties = Handle(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  must(H5Pset_create_intermediate_group(impl_->link_properties.id(), 1) >= 0, path,
       "cannot set up");
}

Hdf5Writer::~Hdf5Writer() {
  Lock lock;
  impl_.reset();
}

void Hdf5Writer::group(const std::string& name) {
  Lock lock;
  impl_->need_open();
  split_path(impl_->where(name), name);
  Handle id(H5Gcreate2(impl_->file.id(), name.c_str(), impl_->link_properties.id(), H5P_DEFAULT,
                       H5P_DEFAULT),
            H5Gclose);
  must(id.ok(), impl_->where(name), "cannot create the group");
}

void Hdf5Writer::create(const std::string& dataset, Dtype dtype, const Shape& shape,
                        const Hdf5Layout& layout) {
  Lock lock;
  impl_->need_open();
  std::string where = impl_->where(dataset);
  check(!split_path(where, dataset).empty(), where, ": is not a name of a dataset");
  Handle plist = dataset_properties(where, shape, layout);
  std::vector<hsize_t> sizes = to_hsize(shape);
  Handle space(sizes.empty() ? H5Screate(H5S_SCALAR)
                             : H5Screate_simple(int(sizes.size()), sizes.data(), nullptr),
               H5Sclose);
  must(space.ok(), where, "cannot make the shape");
  Handle id(H5Dcreate2(impl_->file.id(), dataset.c_str(), file_type(dtype), space.id(),
                       impl_->link_properties.id(), plist.id(), H5P_DEFAULT),
            H5Dclose);
  must(id.ok(), where, "cannot create the dataset");
  impl_->open.emplace(dataset, Impl::OpenDataset{std::move(id), dtype, shape});
}

void Hdf5Writer::write_rows(const std::string& dataset, int64_t first, int64_t count,
                            const void* values, size_t bytes) {
  Lock lock;
  impl_->need_open();
  std::string where = impl_->where(dataset);
  auto found = impl_->open.find(dataset);
  check(found != impl_->open.end(), where, ": was not created");
  const Impl::OpenDataset& d = found->second;
  const Shape shape = shape_of_rows(where, d.shape, first, count);
  check(size_t(shape.numel()) * item_size(d.dtype) == bytes, where, ": ", shape, " of ", d.dtype,
        " is not filled by ", bytes, " bytes");
  if (bytes == 0) return;
  hid_t memory = H5S_ALL, file = H5S_ALL;
  Handle memory_space, file_space;
  if (shape.rank() > 0) {
    std::vector<hsize_t> counts = to_hsize(shape), starts(counts.size(), 0);
    starts[0] = hsize_t(first);
    file_space = Handle(H5Dget_space(d.id.id()), H5Sclose);
    memory_space = Handle(H5Screate_simple(int(counts.size()), counts.data(), nullptr), H5Sclose);
    must(file_space.ok() && memory_space.ok() &&
             H5Sselect_hyperslab(file_space.id(), H5S_SELECT_SET, starts.data(), nullptr,
                                 counts.data(), nullptr) >= 0,
         where, "cannot select");
    memory = memory_space.id();
    file = file_space.id();
  }
  must(H5Dwrite(d.id.id(), file_type(d.dtype), memory, file, H5P_DEFAULT, values) >= 0, where,
       "cannot write");
}

void Hdf5Writer::write(const std::string& dataset, const Tensor& values, const Hdf5Layout& layout) {
  check(values.defined(), impl_->where(dataset), ": the tensor to write is undefined");
  check(!values.device().is_cuda(), impl_->where(dataset), ": needs a tensor on the cpu");
  Tensor dense = values.detach().contiguous();
  create(dataset, dense.dtype(), dense.shape(), layout);
  write_rows(dataset, 0, dense.rank() ? dense.dim(0) : 1, dense.raw(),
             size_t(dense.numel()) * item_size(dense.dtype()));
}

void Hdf5Writer::attribute(const std::string& object, const std::string& name, int64_t value) {
  impl_->number(object, name, Dtype::i64, &value);
}

void Hdf5Writer::attribute(const std::string& object, const std::string& name, double value) {
  impl_->number(object, name, Dtype::f64, &value);
}

void Hdf5Writer::attribute(const std::string& object, const std::string& name,
                           std::string_view value) {
  Lock lock;
  Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  must(type.ok() && H5Tset_size(type.id(), std::max<size_t>(1, value.size())) >= 0 &&
           H5Tset_strpad(type.id(), H5T_STR_NULLPAD) >= 0 &&
           H5Tset_cset(type.id(), H5T_CSET_UTF8) >= 0,
       impl_->where(object), "cannot make a text type");
  std::string padded(std::max<size_t>(1, value.size()), '\0');
  std::copy(value.begin(), value.end(), padded.begin());
  impl_->attribute(object, name, type.id(), space.id(), padded.data());
}

void Hdf5Writer::attribute(const std::string& object, const std::string& name,
                           const std::vector<int64_t>& values) {
  Lock lock;
  hsize_t count = values.size();
  Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  int64_t none = 0;
  impl_->attribute(object, name, file_type(Dtype::i64), space.id(),
                   values.empty() ? &none : values.data());
}

void Hdf5Writer::close() {
  Lock lock;
  impl_->need_open();
  bool ok = H5Fflush(impl_->file.id(), H5F_SCOPE_GLOBAL) >= 0;
  if (!ok) fail(impl_->path, "cannot be completed");
  for (auto& [name, dataset] : impl_->open) ok = dataset.id.reset() && ok;
  ok = impl_->file.reset() && ok;
  if (!ok) fail(impl_->path, "cannot be completed");
}

}  // namespace brine::data
