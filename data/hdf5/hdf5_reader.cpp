// Hdf5Reader: every object is reached over hard links only and checked before it is read.
#include <bit>
#include <map>
#include <set>
#include <utility>

#include "data/hdf5/hdf5_file.h"
#include "data/hdf5/hdf5_headers.h"
#include "data/hdf5/hdf5_internal.h"
#include "data/hdf5/hdf5_storage.h"
#include "data/io/file_io.h"

namespace brine::data {

using namespace hdf5;

namespace {

constexpr uint64_t kLargeDataset = uint64_t(4) << 30;  // from here on a dataset must be plausible
constexpr uint64_t kMaxInflation = 1000;               // declared bytes for one stored byte
constexpr uint64_t kLargeChunk = uint64_t(256) << 20;  // more must be justified by the dataset
constexpr uint64_t kMaxChunks = uint64_t(1) << 24;
// libhdf5 goes through the stored chunks for every chunk that is read.
constexpr uint64_t kMaxChunkSteps = uint64_t(1) << 34;
constexpr size_t kMaxMembers = 1'000'000, kMaxAttributes = 4096;  // of one object
constexpr uint64_t kLargestAttribute = uint64_t(64) << 20;

struct OpenDataset {
  Handle id;
  StoredType type;
  Hdf5Info info;
  Storage storage;
  mutable ChunkCache cache;
};

const char* class_name(H5T_class_t c) {
  switch (c) {
    case H5T_INTEGER:
      return "an integer of a width that is not i32, i64 or u8";
    case H5T_FLOAT:
      return "a float that is not f16, bf16, f32 or f64";
    case H5T_STRING:
      return "text";
    case H5T_COMPOUND:
      return "compound";
    case H5T_REFERENCE:
      return "references";
    case H5T_ENUM:
      return "an enumeration (h5py's bool is one)";
    case H5T_VLEN:
      return "of variable length";
    case H5T_ARRAY:
      return "arrays";
    default:
      return "of an unknown kind";
  }
}

Shape read_shape(const std::string& where, hid_t space) {
  H5S_class_t kind = H5Sget_simple_extent_type(space);
  check_format(kind == H5S_SIMPLE || kind == H5S_SCALAR, where,
               ": has no elements (a null dataspace)");
  int rank = H5Sget_simple_extent_ndims(space);
  check_format(rank >= 0 && rank <= Shape::kMaxRank, where, ": has ", rank, " axes, at most ",
               Shape::kMaxRank, " are read");
  hsize_t sizes[Shape::kMaxRank] = {};
  must(H5Sget_simple_extent_dims(space, sizes, nullptr) >= 0, where, "cannot read the shape");
  Shape shape;
  for (int i = 0; i < rank; ++i) {
    check_format(sizes[i] <= uint64_t(INT64_MAX), where, ": declares an axis of ", sizes[i]);
    shape.push_back(int64_t(sizes[i]));
  }
  return shape;
}

uint64_t bytes_of(const std::string& where, const Shape& shape, size_t item) {
  uint64_t bytes = item;
  for (int64_t s : shape) {
    check_format(
        !__builtin_mul_overflow(bytes, uint64_t(s), &bytes) && bytes <= uint64_t(INT64_MAX), where,
        ": declares the impossible shape ", shape);
  }
  return bytes;
}

void check_sizes(const std::string& where, const Hdf5Info& info, uint64_t stored_chunks,
                 uint64_t file_bytes) {
  uint64_t declared = bytes_of(where, info.shape, item_size(info.dtype));
  check_format(info.stored_bytes <= file_bytes, where, ": claims ", info.stored_bytes,
               " stored bytes in a file of ", file_bytes);
  check_format(declared <= kLargeDataset || declared / kMaxInflation <= info.stored_bytes, where,
               ": declares ", declared, " bytes but stores ", info.stored_bytes,
               ", which is refused");
  if (info.chunk.rank() == 0) return;
  check_format(info.chunk.rank() == info.shape.rank(), where, ": has chunks ", info.chunk,
               " in a dataset ", info.shape);
  uint64_t chunk = bytes_of(where, info.chunk, item_size(info.dtype));
  check_format(chunk <= kLargeChunk || chunk <= declared, where, ": has chunks of ", chunk,
               " bytes in a dataset of ", declared);
  uint64_t chunks = 1;
  for (int i = 0; i < info.shape.rank(); ++i)
    chunks *= uint64_t(info.shape[i]) / uint64_t(info.chunk[i]) + 1;
  check_format(chunks <= kMaxChunks, where, ": has ", chunks, " chunks, which is refused");
  check_format(stored_chunks <= kMaxChunkSteps / chunks, where, ": has ", chunks, " chunks, ",
               stored_chunks, " of them stored, which is refused");
}

OpenDataset examine(const std::string& where, Handle id, uint64_t file_bytes) {
  OpenDataset d;
  d.id = std::move(id);
  // Before the dataspace is read: for a virtual dataset that would open other files.
  d.storage = read_storage(where, d.id.id());
  d.info.chunk = d.storage.chunk;
  Handle type(H5Dget_type(d.id.id()), H5Tclose);
  must(type.ok(), where, "cannot read the type");
  auto known = find_type(type.id());
  check_format(known.has_value(), where, ": is ", class_name(H5Tget_class(type.id())),
               "; only f16, bf16, f32, f64, i32, i64 and u8 are read");
  d.type = *known;
  d.info.dtype = known->dtype;
  Handle space(H5Dget_space(d.id.id()), H5Sclose);
  must(space.ok(), where, "cannot read the shape");
  d.info.shape = read_shape(where, space.id());
  d.info.stored_bytes = H5Dget_storage_size(d.id.id());
  hsize_t stored_chunks = 0;
  must(d.storage.layout != H5D_CHUNKED ||
           H5Dget_num_chunks(d.id.id(), space.id(), &stored_chunks) >= 0,
       where, "cannot count the chunks");
  check_sizes(where, d.info, stored_chunks, file_bytes);
  return d;
}

}  // namespace

struct Hdf5Reader::Impl {
  explicit Impl(const std::string& file_path)
      : path(file_path), stored(file_path), headers(path, stored) {
    if (!BRINE_TRUST_HDF5) headers.check_header(where("/"), headers.root());
  }

  std::string path;
  StoredFile stored;
  mutable HeaderChecker headers;
  Handle file;
  mutable std::map<std::string, OpenDataset> open;

  std::string where(const std::string& object) const { return path + ": " + object; }

  // Opens over hard links; a missing object gives an empty handle.
  Handle find(const std::string& object) const {
    Handle at(H5Gopen2(file.id(), "/", H5P_DEFAULT), H5Oclose);
    must(at.ok(), path, "cannot open the root group");
    for (const std::string& part : split_path(where(object), object)) {
      if (H5Iget_type(at.id()) != H5I_GROUP) return {};
      htri_t exists = H5Lexists(at.id(), part.c_str(), H5P_DEFAULT);
      must(exists >= 0, where(object), "cannot look up");
      if (exists == 0) return {};
      check_link(at.id(), part, object);
      Handle next(H5Oopen(at.id(), part.c_str(), H5P_DEFAULT), H5Oclose);
      must(next.ok(), where(object), "cannot open");
      at = std::move(next);
    }
    return at;
  }

  static haddr_t address_of([[maybe_unused]] hid_t group, const H5L_info_t& link) {
#if H5_VERSION_GE(1, 12, 0)
    haddr_t address = HADDR_UNDEF;
    H5VLnative_token_to_addr(group, link.u.token, &address);
    return address;
#else
    return link.u.address;
#endif
  }

  // The address of a member's header. Refuses links that are not hard, and damaged headers.
  haddr_t check_link(hid_t group, const std::string& part, const std::string& object) const {
    H5L_info_t link;
    must(H5Lget_info(group, part.c_str(), &link, H5P_DEFAULT) >= 0, where(object),
         "cannot read the link");
    check_format(link.type != H5L_TYPE_SOFT, where(object), ": \"", part,
                 "\" is a soft link, which is refused");
    check_format(link.type != H5L_TYPE_EXTERNAL, where(object), ": \"", part,
                 "\" is a link to another file, which is refused");
    check_format(link.type == H5L_TYPE_HARD, where(object), ": \"", part,
                 "\" is a user-defined link, which is refused");
    const haddr_t address = address_of(group, link);
    if (!BRINE_TRUST_HDF5) headers.check_header(where(object), address);
    return address;
  }

  Handle need(const std::string& object) const {
    Handle id = find(object);
    check_format(id.ok(), where(object), ": is not in the file");
    return id;
  }

  const OpenDataset& dataset(const std::string& name) const {
    auto found = open.find(name);
    if (found != open.end()) return found->second;
    Handle id = need(name);
    check_format(H5Iget_type(id.id()) == H5I_DATASET, where(name), ": is not a dataset");
    return open.emplace(name, examine(where(name), std::move(id), stored.size())).first->second;
  }

  struct Member {
    std::string name;
    haddr_t address;
  };
  void collect(const std::string& group, int depth, std::set<haddr_t>& groups,
               std::vector<std::string>& names) const;
  std::vector<Member> members(const std::string& group) const;

  struct Attribute {
    Handle object, id, type;
    std::string where;
    size_t count = 0, item = 0;
  };
  Attribute attribute(const std::string& object, const std::string& name) const;
};

namespace {

// Receives the names of links or attributes, up to `limit`.
struct Names {
  std::vector<std::string> all;
  size_t limit;

  template <class Info>
  static herr_t add(hid_t, const char* name, const Info*, void* to) {
    auto& names = *static_cast<Names*>(to);
    names.all.emplace_back(name);
    return names.all.size() > names.limit;
  }
};

}  // namespace

std::vector<Hdf5Reader::Impl::Member> Hdf5Reader::Impl::members(const std::string& group) const {
  Handle id = need(group);
  check_format(H5Iget_type(id.id()) == H5I_GROUP, where(group), ": is not a group");
  Names names{{}, kMaxMembers};
  must(
      H5Literate(id.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, Names::add<H5L_info_t>, &names) >= 0,
      where(group), "cannot list");
  check_format(names.all.size() <= kMaxMembers, where(group), ": has more than ", kMaxMembers,
               " members");
  std::vector<Member> members;
  for (std::string& name : names.all) {
    const haddr_t address = check_link(id.id(), name, group);
    members.push_back({std::move(name), address});
  }
  return members;
}

// A group that several links lead to is refused: 32 of two links each would have 2^32 datasets.
void Hdf5Reader::Impl::collect(const std::string& group, int depth, std::set<haddr_t>& groups,
                               std::vector<std::string>& names) const {
  check_format(depth < 32, where(group), ": groups are nested too deeply");
  for (const auto& [name, address] : members(group)) {
    std::string full = group == "/" ? name : join(group, "/", name);
    Handle id = need(full);
    if (H5Iget_type(id.id()) == H5I_GROUP) {
      check_format(groups.insert(address).second, where(full),
                   ": is a group that another link leads to, which is refused");
      collect(full, depth + 1, groups, names);
    } else if (H5Iget_type(id.id()) == H5I_DATASET) {
      names.push_back(full);
    }
    check_format(names.size() <= 1000000, path, ": contains more than a million datasets");
  }
}

Hdf5Reader::Impl::Attribute Hdf5Reader::Impl::attribute(const std::string& object,
                                                        const std::string& name) const {
  Attribute a;
  a.where = where(object) + ": attribute \"" + name + "\"";
  a.object = need(object);
  htri_t exists = H5Aexists(a.object.id(), name.c_str());
  must(exists >= 0, a.where, "cannot look up");
  check_format(exists > 0, a.where, ": is not in the file");
  a.id = Handle(H5Aopen(a.object.id(), name.c_str(), H5P_DEFAULT), H5Aclose);
  must(a.id.ok(), a.where, "cannot open");
  a.type = Handle(H5Aget_type(a.id.id()), H5Tclose);
  must(a.type.ok(), a.where, "cannot read the type");
  check_format(H5Tget_class(a.type.id()) != H5T_VLEN && H5Tis_variable_str(a.type.id()) <= 0,
               a.where,
               ": has a variable length; write a string of fixed length (numpy.bytes_ in h5py)");
  Handle space(H5Aget_space(a.id.id()), H5Sclose);
  must(space.ok(), a.where, "cannot read the shape");
  Shape shape = read_shape(a.where, space.id());
  check_format(shape.rank() <= 1, a.where, ": has ", shape.rank(), " axes, wanted none or one");
  a.item = H5Tget_size(a.type.id());
  uint64_t bytes = bytes_of(a.where, shape, a.item);
  check_format(a.item > 0 && bytes <= kLargestAttribute && bytes <= stored.size(), a.where,
               ": declares ", bytes, " bytes");
  a.count = size_t(shape.numel());
  return a;
}

Hdf5Reader::Hdf5Reader(const std::string& path) : impl_(std::make_unique<Impl>(path)) {
  refuse_lfs_pointer(path);
  Lock lock;
  Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
#if H5_VERSION_GE(1, 10, 7)
  // Finished files do not change; a file system without locks must not prevent reading.
  H5Pset_file_locking(access.id(), false, true);
#endif
  impl_->file = Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose);
  if (!impl_->file.ok()) fail(path, "cannot be opened as HDF5");
}

Hdf5Reader::~Hdf5Reader() {
  Lock lock;
  impl_.reset();
}

const std::string& Hdf5Reader::path() const { return impl_->path; }

bool Hdf5Reader::has(const std::string& object) const {
  Lock lock;
  return impl_->find(object).ok();
}

std::vector<std::string> Hdf5Reader::datasets(const std::string& group) const {
  Lock lock;
  std::vector<std::string> names;
  std::set<haddr_t> groups = {impl_->headers.root()};
  impl_->collect(group, 0, groups, names);
  return names;
}

Hdf5Info Hdf5Reader::info(const std::string& dataset) const {
  Lock lock;
  return impl_->dataset(dataset).info;
}

Tensor Hdf5Reader::read(const std::string& dataset) const {
  const Shape shape = info(dataset).shape;
  return read_rows(dataset, 0, shape.rank() > 0 ? shape[0] : 1);
}

Tensor Hdf5Reader::read_rows(const std::string& dataset, int64_t first, int64_t count) const {
  const Hdf5Info of = info(dataset);
  const Shape shape = shape_of_rows(impl_->where(dataset), of.shape, first, count);
  Tensor values = Tensor::empty(shape, of.dtype);
  read_rows_into(dataset, first, count, of.dtype, values.raw(),
                 size_t(shape.numel()) * item_size(of.dtype));
  return values;
}

void Hdf5Reader::read_rows_into(const std::string& dataset, int64_t first, int64_t count,
                                Dtype dtype, void* out, size_t bytes) const {
  Lock lock;
  const OpenDataset& d = impl_->dataset(dataset);
  std::string where = impl_->where(dataset);
  check_format(d.info.dtype == dtype, where, ": holds ", d.info.dtype, ", wanted ", dtype);
  const Shape shape = shape_of_rows(where, d.info.shape, first, count);
  check_format(size_t(shape.numel()) * item_size(dtype) == bytes, where, ": ", shape, " of ", dtype,
               " does not fill ", bytes, " bytes");
  if (bytes == 0) return;
  read_stored_rows(where, impl_->stored, d.id.id(), d.storage, d.info.shape, item_size(dtype),
                   first, count, static_cast<char*>(out), d.cache);
  if (d.type.swapped) swap_bytes(out, size_t(shape.numel()), item_size(dtype));
}

std::vector<std::string> Hdf5Reader::attributes(const std::string& object) const {
  Lock lock;
  Handle id = impl_->need(object);
  Names names{{}, kMaxAttributes};
  must(H5Aiterate2(id.id(), H5_INDEX_NAME, H5_ITER_INC, nullptr, Names::add<H5A_info_t>, &names) >=
           0,
       impl_->where(object), "cannot list the attributes");
  check_format(names.all.size() <= kMaxAttributes, impl_->where(object), ": has more than ",
               kMaxAttributes, " attributes");
  return std::move(names.all);
}

bool Hdf5Reader::has_attribute(const std::string& object, const std::string& name) const {
  Lock lock;
  Handle id = impl_->need(object);
  return H5Aexists(id.id(), name.c_str()) > 0;
}

std::vector<int64_t> Hdf5Reader::ints_attribute(const std::string& object,
                                                const std::string& name) const {
  Lock lock;
  Impl::Attribute a = impl_->attribute(object, name);
  const hid_t type = a.type.id();
  const bool is_whole = std::has_single_bit(a.item) && a.item <= sizeof(int64_t) &&
                        H5Tget_precision(type) == 8 * a.item;
  check_format(H5Tget_class(type) == H5T_INTEGER && is_whole, a.where, ": is not an integer");
  const bool is_signed = H5Tget_sign(type) == H5T_SGN_2;
  std::vector<int64_t> values(a.count);
  if (values.empty()) return values;
  must(H5Aread(a.id.id(), is_signed ? H5T_NATIVE_INT64 : H5T_NATIVE_UINT64, values.data()) >= 0,
       a.where, "cannot read");
  for (int64_t value : values)
    check_format(is_signed || value >= 0, a.where, ": ", uint64_t(value), " does not fit an int64");
  return values;
}

int64_t Hdf5Reader::int_attribute(const std::string& object, const std::string& name) const {
  std::vector<int64_t> values = ints_attribute(object, name);
  check_format(values.size() == 1, impl_->where(object), ": attribute \"", name, "\": has ",
               values.size(), " values, wanted one");
  return values[0];
}

double Hdf5Reader::double_attribute(const std::string& object, const std::string& name) const {
  Lock lock;
  Impl::Attribute a = impl_->attribute(object, name);
  auto type = find_type(a.type.id());
  check_format(type && (type->dtype == Dtype::f32 || type->dtype == Dtype::f64), a.where,
               ": is not a float of 32 or 64 bits");
  check_format(a.count == 1, a.where, ": has ", a.count, " values, wanted one");
  double value = 0;
  must(H5Aread(a.id.id(), H5T_NATIVE_DOUBLE, &value) >= 0, a.where, "cannot read");
  return value;
}

std::string Hdf5Reader::string_attribute(const std::string& object, const std::string& name) const {
  Lock lock;
  Impl::Attribute a = impl_->attribute(object, name);
  check_format(H5Tget_class(a.type.id()) == H5T_STRING, a.where, ": is not text");
  check_format(a.count == 1, a.where, ": has ", a.count, " texts, wanted one");
  std::string text(a.item, '\0');
  must(H5Aread(a.id.id(), a.type.id(), text.data()) >= 0, a.where, "cannot read");
  if (H5Tget_strpad(a.type.id()) == H5T_STR_SPACEPAD) {
    text.resize(text.find_last_not_of(' ') + 1);
  } else {
    text.resize(std::min(text.find('\0'), text.size()));
  }
  return text;
}

}  // namespace brine::data
