// HDF5: values as they are stored, filters, and sizes that contradict each other.
#include <doctest/doctest.h>
#include <hdf5.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "data/hdf5/hdf5_file.h"
#include "data/hdf5/hdf5_internal.h"
#include "data/io/file_io.h"
#include "tests/messages.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

// A file with one dataset "x" of f32 with the values 0, 1, 2 ..., made by the library.
std::string library_file(const Path& path, const std::vector<hsize_t>& shape, hid_t dataset_plist,
                         bool written = true, hid_t file_plist = H5P_DEFAULT) {
  hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, file_plist, H5P_DEFAULT);
  REQUIRE(file >= 0);
  hid_t space = H5Screate_simple(int(shape.size()), shape.data(), nullptr);
  hid_t x = H5Dcreate2(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, dataset_plist, H5P_DEFAULT);
  REQUIRE(x >= 0);
  std::vector<float> values(size_t(H5Sget_simple_extent_npoints(space)));
  std::iota(values.begin(), values.end(), 0.0f);
  if (written)
    REQUIRE(H5Dwrite(x, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  H5Dclose(x);
  H5Sclose(space);
  REQUIRE(H5Fclose(file) >= 0);
  return path.string();
}

std::vector<double> counted(int64_t first, int64_t count) {
  std::vector<double> v(size_t(count), 0.0);
  std::iota(v.begin(), v.end(), double(first));
  return v;
}

std::string bytes_of(std::initializer_list<uint32_t> words) {
  std::string s;
  for (uint32_t w : words) s.append(reinterpret_cast<const char*>(&w), 4);
  return s;
}

}  // namespace

TEST_CASE("hdf5: chunks of every shape with every filter contain what the library wrote") {
  Scratch dir;
  struct Case {
    std::vector<hsize_t> shape, chunk;
  };
  const Case cases[] = {{{40, 5}, {7, 5}},      {{40, 5}, {7, 2}}, {{3, 4, 5}, {1, 4, 5}},
                        {{3, 4, 5}, {2, 3, 2}}, {{17}, {5}},       {{1, 1}, {1, 1}},
                        {{2, 3, 4}, {2, 1, 4}}};
  for (const Case& c : cases) {
    for (int filters = 0; filters < 8; ++filters) {
      CAPTURE(filters);
      hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
      H5Pset_chunk(plist, int(c.chunk.size()), c.chunk.data());
      if (filters & 4) H5Pset_fletcher32(plist);
      if (filters & 1) H5Pset_shuffle(plist);
      if (filters & 2) H5Pset_deflate(plist, 4);
      std::string path = library_file(dir.path() / "x.h5", c.shape, plist);
      H5Pclose(plist);
      Hdf5Reader r(path);
      Tensor all = r.read("x");
      CHECK(all.to_vector() == counted(0, all.numel()));
      int64_t row = all.numel() / all.dim(0);
      for (int64_t first = 0; first < all.dim(0); ++first) {
        int64_t count = std::min<int64_t>(1 + first % 9, all.dim(0) - first);
        CHECK(r.read_rows("x", first, count).to_vector() == counted(first * row, count * row));
      }
    }
  }
}

TEST_CASE("hdf5: a damaged checksum or stream is refused") {
  Scratch dir;
  for (bool deflate : {false, true}) {
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[] = {16, 16};
    H5Pset_chunk(plist, 2, chunk);
    deflate ? H5Pset_deflate(plist, 6) : H5Pset_fletcher32(plist);
    std::string path = library_file(dir.path() / "x.h5", {16, 16}, plist);
    H5Pclose(plist);
    hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    hid_t x = H5Dopen2(file, "x", H5P_DEFAULT);
    hsize_t at[] = {0, 0}, size = 0;
    haddr_t address = 0;
    unsigned mask = 0;
    REQUIRE(H5Dget_chunk_info_by_coord(x, at, &mask, &address, &size) >= 0);
    H5Dclose(x);
    H5Fclose(file);
    std::string bytes = read_file(path);
    bytes[address + size / 2] = char(bytes[address + size / 2] ^ 0x10);
    std::ofstream(path, std::ios::binary) << bytes;
    std::string error = message([&] { Hdf5Reader(path).read("x"); });
    CAPTURE(error);
    CHECK(error.starts_with(path + ": x: a chunk does not "));
  }
}

TEST_CASE("hdf5: unwritten values are zero, or refused if the fill value is another") {
  Scratch dir;
  for (bool chunked : {false, true}) {
    for (bool filled : {false, true}) {
      hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
      hsize_t chunk[] = {2, 3};
      if (chunked) H5Pset_chunk(plist, 2, chunk);
      H5Pset_alloc_time(plist, H5D_ALLOC_TIME_LATE);
      float seven = 7;
      if (filled) H5Pset_fill_value(plist, H5T_NATIVE_FLOAT, &seven);
      std::string path = library_file(dir.path() / "x.h5", {4, 3}, plist, false);
      H5Pclose(plist);
      Hdf5Reader r(path);
      if (filled) {
#if BRINE_TRUST_HDF5  // the library fills in the value
        CHECK(r.read("x").to_vector() == std::vector<double>(12, 7.0));
#else
        CHECK(contains(message([&] { r.read("x"); }), "was never written and is not zero"));
#endif
      } else {
        CHECK(r.read_rows("x", 1, 2).to_vector() == std::vector<double>(6, 0.0));
      }
    }
  }
}

TEST_CASE("hdf5: values inside the header are read, a block of the user's is refused") {
  Scratch dir;
  hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_layout(plist, H5D_COMPACT);
  std::string path = library_file(dir.path() / "compact.h5", {5, 3}, plist);
  H5Pclose(plist);
  CHECK(Hdf5Reader(path).read_rows("x", 2, 2).to_vector() == counted(6, 6));
  hid_t block = H5Pcreate(H5P_FILE_CREATE);
  H5Pset_userblock(block, 512);
  path = library_file(dir.path() / "block.h5", {5, 3}, H5P_DEFAULT, true, block);
  H5Pclose(block);
  CHECK(contains(message([&] { Hdf5Reader r(path); }), "a user block"));
}

TEST_CASE("hdf5: a layout that contradicts its chunks is refused") {
  Scratch dir;
  hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
  hsize_t chunk[] = {7, 5};
  H5Pset_chunk(plist, 2, chunk);
  std::string path = library_file(dir.path() / "x.h5", {40, 5}, plist);
  H5Pclose(plist);
  std::string good = read_file(path);
  // The layout message names the sizes of a chunk and of an element; the index names the bytes of
  // each chunk. libhdf5 1.10 takes its buffer by the index and its steps by the message.
  auto changed = [&](const std::string& what, const std::string& to) {
    size_t at = good.find(what);
    REQUIRE(at != good.npos);
    REQUIRE(good.find(what, at + 1) == good.npos);
    std::string bad = good;
    bad.replace(at, to.size(), to);
    std::ofstream(path, std::ios::binary) << bad;
    std::string error = message([&] { Hdf5Reader(path).read("x"); });
    CAPTURE(error);
    CHECK(error.starts_with(path + ": x: "));
    return error;
  };
  CHECK(
      contains(changed(bytes_of({7, 5, 4}), bytes_of({7, 133, 4})), "has 140 bytes, wanted 3724"));
  CHECK(contains(changed(bytes_of({7, 5, 4}), bytes_of({70, 5, 4})), "has 140 bytes, wanted 1400"));
  changed(bytes_of({7, 5, 4}), bytes_of({0, 5, 4}));
  changed(bytes_of({7, 5, 4}), bytes_of({1u << 31, 5, 4}));
  // A key of the index: bytes, filters left out, then the offsets as 64-bit numbers; here row 14.
  CHECK(contains(changed(bytes_of({140, 0, 14, 0}), bytes_of({70, 0, 14, 0})),
                 "chunk [14, 0] has 70 bytes, wanted 140"));
  CHECK(contains(changed(bytes_of({140, 0, 14, 0}), bytes_of({1u << 30, 0, 14, 0})),
                 "stored bytes in a file of"));
}

TEST_CASE("hdf5: groups that two links lead to, many attributes and many chunks are refused") {
  Scratch dir;
  const std::string path = (dir.path() / "x.h5").string();
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  // Four groups of two links each to the next one.
  std::string at = "g", below = "g";
  H5Gclose(H5Gcreate2(file, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  for (int i = 0; i < 4; ++i, at = below) {
    below = at + "/a";
    H5Gclose(H5Gcreate2(file, below.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    REQUIRE(H5Lcreate_hard(file, below.c_str(), file, (at + "/b").c_str(), H5P_DEFAULT,
                           H5P_DEFAULT) >= 0);
  }
  const hid_t one = H5Screate(H5S_SCALAR);
  const hid_t many = H5Gcreate2(file, "many", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  for (int i = 0; i < 4097; ++i) {
    const std::string name = std::to_string(i);
    H5Aclose(H5Acreate2(many, name.c_str(), H5T_STD_I8LE, one, H5P_DEFAULT, H5P_DEFAULT));
  }
  const hsize_t bytes = hsize_t(1) << 23, chunk = 1, none = 0;
  const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(plist, 1, &chunk);
  for (const hsize_t written : {hsize_t(2000), hsize_t(2100)}) {
    const hid_t space = H5Screate_simple(1, &bytes, nullptr);
    const hid_t part = H5Screate_simple(1, &written, nullptr);
    const std::string name = "x" + std::to_string(written);
    const hid_t x =
        H5Dcreate2(file, name.c_str(), H5T_STD_U8LE, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, &none, nullptr, &written, nullptr);
    const std::vector<uint8_t> values(written, 1);
    REQUIRE(H5Dwrite(x, H5T_NATIVE_UINT8, part, space, H5P_DEFAULT, values.data()) >= 0);
    H5Dclose(x);
    H5Sclose(part);
    H5Sclose(space);
  }
  H5Gclose(many);
  H5Sclose(one);
  H5Pclose(plist);
  REQUIRE(H5Fclose(file) >= 0);

  const Hdf5Reader r(path);
  CHECK(message([&] { r.datasets(); }) ==
        path + ": g/a/a/a/b: is a group that another link leads to, which is refused");
  CHECK(message([&] { r.attributes("many"); }) == path + ": many: has more than 4096 attributes");
  CHECK(r.int_attribute("many", "4096") == 0);
  CHECK(r.read_rows("x2000", 1998, 4).to_vector() == std::vector<double>{1, 1, 0, 0});
  CHECK(message([&] { r.info("x2100"); }) ==
        path + ": x2100: has 8388609 chunks, 2100 of them stored, which is refused");
}
