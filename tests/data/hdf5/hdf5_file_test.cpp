// HDF5: round trips, h5py's view of written files, and inconsistent files.
#include "data/hdf5/hdf5_file.h"

#include <doctest/doctest.h>
#include <hdf5.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "data/io/file_io.h"
#include "tests/refusals.h"
#include "tests/scratch.h"
#include "tests/skip.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

template <class T>
Tensor numbers(const Shape& shape) {
  std::vector<T> v;
  for (int64_t i = 0; i < shape.numel(); ++i) v.push_back(T(float(i % 97) * 0.5f));
  return Tensor::from(v, shape);
}

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.raw(), b.raw(), size_t(a.numel()) * item_size(a.dtype())) == 0;
}

template <class T>
void round_trip(const Path& dir, const Shape& shape, const Hdf5Layout& layout) {
  Path path = dir / "round.h5";
  Tensor x = numbers<T>(shape);
  {
    Hdf5Writer w(path.string());
    w.write("group/deep/x", x, layout);
    w.close();
  }
  Hdf5Reader r(path.string());
  CHECK(same_bytes(r.read("group/deep/x"), x));
  CHECK(r.info("/group/deep/x").dtype == x.dtype());
  if (shape.rank() > 0 && shape[0] > 2)
    CHECK(same_bytes(r.read_rows("group/deep/x", 1, 2), x.slice(0, 1, 2).clone()));
  std::filesystem::remove(path);
}

// Makes a file with the C API, in ways that Hdf5Writer refuses.
template <class F>
std::string raw_file(const Path& path, F&& fill) {
  hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  REQUIRE(file >= 0);
  fill(file);
  REQUIRE(H5Fclose(file) >= 0);
  return path.string();
}

hid_t raw_dataset(hid_t file, const char* name, hid_t type, std::vector<hsize_t> shape,
                  hid_t plist = H5P_DEFAULT) {
  hid_t space = H5Screate_simple(int(shape.size()), shape.data(), nullptr);
  hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
  REQUIRE(d >= 0);
  return d;
}

}  // namespace

TEST_CASE("hdf5: every type and layout comes back bit for bit") {
  Scratch dir;
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{0, 3}, Shape{5, 7}, Shape{3, 1, 33}}) {
    std::vector<Hdf5Layout> layouts = {{}, {.chunk = shape, .shuffle = true, .deflate = 4}};
    if (shape.numel() > 1) {
      Shape chunk = shape;
      chunk[0] = 2;
      layouts.push_back({.chunk = chunk, .deflate = 1});
      layouts.push_back({.chunk = chunk});
    }
    for (const Hdf5Layout& layout : layouts) {
      round_trip<float>(dir.path(), shape, layout);
      round_trip<double>(dir.path(), shape, layout);
      round_trip<f16>(dir.path(), shape, layout);
      round_trip<bf16>(dir.path(), shape, layout);
      round_trip<int32_t>(dir.path(), shape, layout);
      round_trip<int64_t>(dir.path(), shape, layout);
      round_trip<uint8_t>(dir.path(), shape, layout);
    }
  }
}

TEST_CASE("hdf5: rows, attributes and lists") {
  Scratch dir;
  std::string path = (dir.path() / "a.h5").string();
  {
    Hdf5Writer w(path);
    w.create("x", Dtype::i32, {3, 2}, {.chunk = {1, 2}});
    for (int32_t i : {2, 0, 1}) {
      int32_t row[] = {i, -i};
      w.write_rows("x", i, 1, row, sizeof row);
    }
    w.group("g/h");
    w.write("g/y", numbers<float>({2}));
    w.attribute("/", "name", "a text");
    w.attribute("/", "empty", "");
    w.attribute("g", "count", int64_t(1) << 40);
    w.attribute("g", "eps", 1e-5);
    w.attribute("x", "list", std::vector<int64_t>{3, -1});
    int32_t row[2] = {};
    CHECK(contains(message([&] { w.write_rows("x", 3, 1, row, sizeof row); }), "outside [3, 2]"));
    CHECK(contains(message([&] { w.write_rows("x", 0, 1, row, 4); }), "4 bytes"));
    CHECK(contains(message([&] { w.write("x", numbers<float>({2})); }), "x: cannot create"));
    w.close();
    CHECK(contains(message([&] { w.group("late"); }), "closed"));
  }
  CHECK(contains(message([&] { Hdf5Writer again(path); }), "exists already"));
  Hdf5Reader r(path);
  CHECK(r.read("x").to_vector() == std::vector<double>{0, 0, 1, -1, 2, -2});
  CHECK(r.info("x").chunk == Shape{1, 2});
  CHECK(r.datasets() == std::vector<std::string>{"g/y", "x"});
  CHECK(r.has("g/h"));
  CHECK_FALSE(r.has("g/none"));
  CHECK_FALSE(r.has("x/none"));
  CHECK(r.attributes("/") == std::vector<std::string>{"empty", "name"});
  CHECK(r.string_attribute("/", "name") == "a text");
  CHECK(r.string_attribute("/", "empty") == "");
  CHECK(r.int_attribute("g", "count") == int64_t(1) << 40);
  CHECK(r.double_attribute("g", "eps") == 1e-5);
  CHECK(r.ints_attribute("x", "list") == std::vector<int64_t>{3, -1});
  CHECK(contains(message([&] { r.int_attribute("x", "list"); }), "2 values, wanted one"));
  CHECK(contains(message([&] { r.int_attribute("g", "eps"); }), "not an integer"));
  CHECK(contains(message([&] { r.double_attribute("g", "count"); }), "not a float"));
  CHECK(contains(message([&] { r.string_attribute("g", "count"); }), "not text"));
  CHECK(contains(message([&] { r.int_attribute("g", "none"); }), "\"none\": is not in the file"));
  CHECK(contains(message([&] { r.read("none"); }), path + ": none: is not in the file"));
  CHECK(contains(message([&] { r.read("g"); }), "is not a dataset"));
  CHECK(contains(message([&] { r.read("g/../x"); }), "not a name"));
  CHECK(contains(message([&] { r.read_rows("x", 2, 2); }), "outside"));
  float out[6];
  CHECK_REFUSES(r.read_rows_into("x", 0, 3, Dtype::f32, out, sizeof out), "holds i32, wanted f32");
}

TEST_CASE("hdf5: the other byte order and integers of every width") {
  Scratch dir;
  std::string path = raw_file(dir.path() / "be.h5", [](hid_t file) {
    hid_t d = raw_dataset(file, "x", H5T_IEEE_F64BE, {2});
    double v[] = {1.5, -3};
    H5Dwrite(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, v);
    hid_t space = H5Screate(H5S_SCALAR);
    int value = -7;
    hid_t a = H5Acreate2(d, "short", H5T_STD_I16BE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, H5T_NATIVE_INT, &value);
    hid_t u = H5Acreate2(d, "huge", H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    uint64_t huge = UINT64_MAX;
    H5Awrite(u, H5T_NATIVE_UINT64, &huge);
    for (hid_t id : {a, u}) H5Aclose(id);
    H5Sclose(space);
    H5Dclose(d);
  });
  Hdf5Reader r(path);
  CHECK(r.read("x").to_vector() == std::vector<double>{1.5, -3});
  CHECK(r.int_attribute("x", "short") == -7);
  CHECK(contains(message([&] { r.int_attribute("x", "huge"); }), "does not fit an int64"));
}

TEST_CASE("hdf5: links and storage that lead elsewhere are refused") {
  Scratch dir;
  std::string path = raw_file(dir.path() / "links.h5", [&](hid_t file) {
    H5Dclose(raw_dataset(file, "real", H5T_IEEE_F32LE, {2}));
    H5Lcreate_soft("/real", file, "soft", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_external("other.h5", "/x", file, "external", H5P_DEFAULT, H5P_DEFAULT);
    hid_t outside = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(outside, "/etc/passwd", 0, 8);
    H5Dclose(raw_dataset(file, "storage", H5T_IEEE_F32LE, {2}, outside));
    hsize_t two[] = {2};
    hid_t space = H5Screate_simple(1, two, nullptr);
    hid_t virtual_plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_virtual(virtual_plist, space, "other.h5", "/x", space);
    hid_t group = H5Gcreate2(file, "nested", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dclose(raw_dataset(group, "virtual", H5T_IEEE_F32LE, {2}, virtual_plist));
    H5Lcreate_soft("/real", group, "soft", H5P_DEFAULT, H5P_DEFAULT);
    H5Gclose(group);
    H5Sclose(space);
    H5Pclose(virtual_plist);
    H5Pclose(outside);
  });
  Hdf5Reader r(path);
  CHECK(contains(message([&] { r.read("soft"); }), "\"soft\" is a soft link"));
  CHECK(contains(message([&] { r.read("external"); }), "link to another file"));
  CHECK(contains(message([&] { r.read("external/deeper"); }), "link to another file"));
  CHECK(contains(message([&] { r.read("storage"); }), "another file, which is refused"));
  CHECK(contains(message([&] { r.read("nested/virtual"); }), "virtual dataset"));
  CHECK(contains(message([&] { r.info("nested/virtual"); }), "virtual dataset"));
  CHECK(contains(message([&] { r.datasets(); }), "refused"));
  CHECK(contains(message([&] { r.datasets("nested"); }), "soft link"));
  CHECK(contains(message([&] { r.has("nested/soft"); }), "soft link"));
  CHECK_NOTHROW(r.read("real"));
}

TEST_CASE("hdf5: user-defined links are refused") {
  Scratch dir;
  H5L_class_t link = {};
  link.version = H5L_LINK_CLASS_T_VERS;
  link.id = H5L_type_t(70);
  link.comment = "test";
  link.trav_func = [](const char*, hid_t group, const void*, size_t, hid_t, hid_t) {
    return H5Oopen(group, "real", H5P_DEFAULT);
  };
  REQUIRE(H5Lregister(&link) >= 0);
  std::string path = raw_file(dir.path() / "ud.h5", [&](hid_t file) {
    H5Dclose(raw_dataset(file, "real", H5T_IEEE_F32LE, {2}));
    REQUIRE(H5Lcreate_ud(file, "custom", link.id, "ab", 2, H5P_DEFAULT, H5P_DEFAULT) >= 0);
  });
  Hdf5Reader r(path);
  CHECK(contains(message([&] { r.read("custom"); }), "user-defined link"));
  H5Lunregister(link.id);
}

TEST_CASE("hdf5: types, ranks, filters and sizes that Brine does not support are refused") {
  Scratch dir;
  std::string path = raw_file(dir.path() / "types.h5", [&](hid_t file) {
    H5Dclose(raw_dataset(file, "i16", H5T_STD_I16LE, {2}));
    H5Dclose(raw_dataset(file, "u64", H5T_STD_U64LE, {2}));
    hid_t vlen = H5Tvlen_create(H5T_NATIVE_INT);
    H5Dclose(raw_dataset(file, "vlen", vlen, {2}));
    H5Tclose(vlen);
    hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, H5T_VARIABLE);
    H5Dclose(raw_dataset(file, "text", text, {2}));
    hid_t compound = H5Tcreate(H5T_COMPOUND, 8);
    H5Tinsert(compound, "a", 0, H5T_NATIVE_DOUBLE);
    H5Dclose(raw_dataset(file, "compound", compound, {2}));
    H5Tclose(compound);
    H5Dclose(raw_dataset(file, "rank7", H5T_IEEE_F32LE, {1, 1, 1, 1, 1, 1, 1}));
    hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[] = {1 << 20};
    H5Pset_chunk(chunked, 1, chunk);
    H5Dclose(raw_dataset(file, "huge", H5T_IEEE_F64LE, {hsize_t(1) << 40}, chunked));
    H5Dclose(raw_dataset(file, "absurd", H5T_IEEE_F64LE, {hsize_t(1) << 61}, chunked));
    H5Pset_nbit(chunked);
    H5Dclose(raw_dataset(file, "nbit", H5T_IEEE_F64LE, {1 << 20}, chunked));
    H5Pclose(chunked);
    hid_t null_space = H5Screate(H5S_NULL);
    H5Dclose(H5Dcreate2(file, "null", H5T_IEEE_F32LE, null_space, H5P_DEFAULT, H5P_DEFAULT,
                        H5P_DEFAULT));
    H5Sclose(null_space);
    hid_t scalar = H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate2(file, "text", text, scalar, H5P_DEFAULT, H5P_DEFAULT);
    const char* words = "words";
    H5Awrite(a, text, &words);
    H5Aclose(a);
    H5Sclose(scalar);
    H5Tclose(text);
  });
  Hdf5Reader r(path);
  auto refused = [&](const std::string& name, const std::string& why) {
    std::string error = message([&] { r.read(name); });
    CAPTURE(error);
    CHECK(error.starts_with(path + ": " + name + ": "));
    CHECK(contains(error, why));
    CHECK(error.find('\n') == error.npos);
  };
  refused("i16", "an integer of a width");
  refused("u64", "an integer of a width");
  refused("vlen", "variable length");
  refused("text", "text");
  refused("compound", "compound");
  refused("rank7", "axes");
  refused("huge", "but stores 0, which is refused");
  refused("absurd", "impossible shape");
  refused("nbit", "uses filter 5");
  refused("null", "null dataspace");
  CHECK(contains(message([&] { r.string_attribute("/", "text"); }), "variable length"));
}

TEST_CASE("hdf5: a contiguous dataset larger than its file is refused before allocating") {
  Scratch dir;
  std::string path = raw_file(dir.path() / "big.h5", [&](hid_t file) {
    hid_t early = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_fill_time(early, H5D_FILL_TIME_NEVER);
    H5Pset_alloc_time(early, H5D_ALLOC_TIME_EARLY);
    H5Dclose(raw_dataset(file, "x", H5T_IEEE_F64LE, {hsize_t(1) << 20}, early));
    H5Pclose(early);
  });
  CHECK_NOTHROW(Hdf5Reader(path).read("x"));
  std::filesystem::resize_file(path, 4096);
  std::string error = message([&] { Hdf5Reader(path).read("x"); });
  CHECK(contains(error, "truncated"));
  CHECK(error.starts_with(path));
}

TEST_CASE("hdf5: files that are not HDF5, or cut at any length") {
  Scratch dir;
  std::string path = (dir.path() / "x.h5").string();
  CHECK(contains(message([&] { Hdf5Reader r(path); }), "there is no such file"));
  CHECK(contains(message([&] { Hdf5Reader r(dir.path().string()); }), "not a regular file"));
  std::ofstream(path) << "{\"not\": \"hdf5\"}";
  CHECK(contains(message([&] { Hdf5Reader r(path); }), "cannot be opened as HDF5"));
  std::filesystem::remove(path);
  auto try_all = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return message([&] {
      Hdf5Reader r(path);
      for (const std::string& name : r.datasets()) r.read(name);
      r.string_attribute("g", "name");
    });
  };
  for (bool filtered : {false, true}) {
    std::filesystem::remove(path);
    {
      Hdf5Writer w(path);
      w.write("g/x", numbers<float>({40, 5}),
              {.chunk = {7, 5}, .shuffle = filtered, .deflate = filtered ? 3 : 0});
      w.attribute("g", "name", "text");
      w.close();
    }
    std::string good = read_file(path);
    CHECK(try_all(good) == "no error");
    for (size_t cut = 0; cut < good.size(); cut += 61)
      CHECK(try_all(good.substr(0, cut)).starts_with(path));
  }
}

TEST_CASE("hdf5: h5py reads bf16 as float32 and the rest as it is (needs h5py)") {
  if (std::system("python3 -c 'import h5py' 2>/dev/null") != 0) {
    return brine::test::skip("no python3 with h5py");
  }
  Scratch dir;
  std::string path = (dir.path() / "x.h5").string();
  {
    Hdf5Writer w(path);
    std::vector<bf16> v = {bf16(1.5f), bf16(-0.0078125f), bf16(3.0e38f), bf16(0.0f)};
    w.write("bf16", Tensor::from(v, {4}));
    w.write("f16", numbers<f16>({4}), {.chunk = {4}, .shuffle = true, .deflate = 1});
    w.attribute("/", "name", "text");
    w.close();
  }
  std::ofstream(dir.path() / "t.py") << R"(import h5py, sys, numpy as np
f = h5py.File(sys.argv[1])
assert f["bf16"].dtype == np.float32, f["bf16"].dtype
v = f["bf16"][:]
assert v[0] == 1.5 and v[1] == -0.0078125 and abs(v[2] / 3e38 - 1) < .01 and v[3] == 0, v
assert f["f16"].dtype == np.float16 and list(f["f16"][:]) == [0, .5, 1, 1.5]
assert f.attrs["name"] == b"text"
)";
  std::string command = "python3 '" + (dir.path() / "t.py").string() + "' '" + path + "'";
  CHECK(std::system(command.c_str()) == 0);
}
