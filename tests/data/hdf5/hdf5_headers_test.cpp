// Object headers and groups of HDF5 files: wrong sizes in them, and valid ones that must be
// accepted.
#include "data/hdf5/hdf5_headers.h"

#include <doctest/doctest.h>
#include <hdf5.h>

#include <cstring>
#include <ctime>
#include <fstream>

#include "data/hdf5/hdf5_file.h"
#include "data/io/file_io.h"
#include "tests/messages.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

// A file like a dump's: groups, datasets with and without filters, attributes of every kind.
std::string small_file(const Path& path) {
  std::vector<float> values(200, 0.5f);
  Hdf5Writer w(path.string());
  w.write("g/x", Tensor::from(values, {40, 5}), {.chunk = {7, 5}, .shuffle = true, .deflate = 3});
  w.write("y", Tensor::from(values, {200}));
  w.attribute("/", "list", std::vector<int64_t>{1, 2, 3});
  w.attribute("g", "name", "text");
  w.attribute("g/x", "eps", 1e-5);
  w.close();
  return read_file(path.string());
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Everything that a reader of dumps asks for.
std::string read_all(const std::string& path) {
  return message([&] {
    Hdf5Reader r(path);
    for (const std::string& name : r.datasets()) r.read(name);
    r.ints_attribute("/", "list");
    r.string_attribute("g", "name");
    r.double_attribute("g/x", "eps");
    r.has_attribute("g", "other");
    r.attributes("g");
  });
}

}  // namespace

TEST_CASE("hdf5: a file with any one byte changed is read, or refused in a line that names it") {
  Scratch dir;
  const std::string path = (dir.path() / "x.h5").string();
  const std::string good = small_file(path);
  CHECK(read_all(path) == "no error");
  int refused = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int change : {1 << (at % 8), 1 << ((at + 4) % 8), 0xff}) {
      std::string bad = good;
      bad[at] = char(bad[at] ^ change);
      write_bytes(path, bad);
      const std::string said = read_all(path);
      if (said == "no error") continue;
      ++refused;
      CHECK_MESSAGE(said.starts_with(path), "byte " << at << ": " << said);
      CHECK(said.find('\n') == said.npos);
    }
  }
  CHECK(refused > 1000);
}

#if !BRINE_TRUST_HDF5

TEST_CASE("hdf5: an attribute that is larger than its message is refused before libhdf5 sees it") {
  // libhdf5 1.10 copies a value of the size that the datatype and the dataspace give.
  Scratch dir;
  const std::string path = (dir.path() / "x.h5").string();
  const std::string good = small_file(path);
  // Version 1, a name of 5 bytes, a datatype and a dataspace of 8; each part is padded to 8 bytes.
  const std::string start = std::string("\1\0\5\0\10\0\10\0name\0", 13);
  const size_t at = good.find(start);
  REQUIRE(at != good.npos);
  REQUIRE(good.find(start, at + 1) == good.npos);
  struct Case {
    size_t byte;
    char value;
    const char* said;
  };
  const Case cases[] = {{2, 100, "an attribute does not fit its message"},
                        {2, 4, "an attribute does not fit its message"},  // no NUL
                        {4, 100, "an attribute does not fit its message"},
                        {5, 4, "an attribute does not fit its message"},
                        {6, 100, "an attribute does not fit its message"},
                        {6, 0, "a dataspace does not fit its message"},
                        {16, 0x16, "a datatype does not fit its message"},  // compound
                        {20, 40, "an attribute does not fit its message"},
                        {23, 1, "an attribute does not fit its message"},
                        {25, 3, "a dataspace does not fit its message"}};
  for (const Case& c : cases) {
    CAPTURE(c.byte);
    std::string bad = good;
    bad[at + c.byte] = c.value;
    if (c.byte == 16) bad[at + 17] = 1;  // of one member
    write_bytes(path, bad);
    Hdf5Reader r(path);
    for (const std::string& said :
         {message([&] { r.has_attribute("g", "name"); }), message([&] { r.read("g/x"); })}) {
      CAPTURE(said);
      CHECK(said.starts_with(path + ": g"));
      CHECK(contains(said, std::string(": damaged object header: ") + c.said));
    }
    CHECK_NOTHROW(r.read("y"));
  }
}

TEST_CASE("hdf5: a heap of names that ends before its free blocks or its names is refused") {
  Scratch dir;
  const std::string path = (dir.path() / "x.h5").string();
  const std::string good = small_file(path);
  const size_t heap = good.find("HEAP");  // of the root group
  REQUIRE(heap != good.npos);
  const auto size = static_cast<unsigned char>(good[heap + 8]);
  REQUIRE(size > 8);
  for (int shorter = 0; shorter < size; ++shorter) {
    std::string bad = good;
    bad[heap + 8] = char(shorter);
    write_bytes(path, bad);
    const std::string said = message([&] { Hdf5Reader r(path); });
    CHECK_MESSAGE(contains(said, "damaged object header: a "), shorter << ": " << said);
    CHECK(said.starts_with(path + ": /: "));
  }
}

TEST_CASE("hdf5: a header that continues in itself ends") {
  Scratch dir;
  const std::string path = (dir.path() / "x.h5").string();
  std::string bad = small_file(path);
  // The first message of the root's header becomes a reference to the piece it is in.
  const uint64_t root = 96, piece = root + 16, length = 24;
  bad[piece] = 0x10;
  std::memcpy(bad.data() + piece + 8, &piece, 8);
  std::memcpy(bad.data() + piece + 16, &length, 8);
  write_bytes(path, bad);
  CHECK(contains(message([&] { Hdf5Reader r(path); }), "damaged object header: it is too large"));
}

namespace {

std::string word(uint64_t value, size_t bytes = 8) {
  return {reinterpret_cast<const char*>(&value), bytes};
}

// A small file whose root group has other names: a tree of one node with 65,535 entries, whose
// children begin at `first_child` and are `step` bytes apart, and a heap of 16 MiB that ends with
// `heap_end`. `last` is the offset of the last name.
std::string with_names(const std::string& small, uint64_t step, uint64_t last, char heap_end) {
  constexpr uint64_t kHeap = uint64_t(16) << 20, kEntries = 65535, kNone = UINT64_MAX;
  std::string out = small;
  const uint64_t tree = out.find("TREE"), heap = out.find("HEAP"), child = out.size();
  const std::string before = word(tree) + word(heap);
  for (uint64_t i = 0; i < kEntries; ++i) out += std::string("SNOD\1\0\0\0", 8);  // without names
  const uint64_t data = out.size();
  out += std::string(kHeap - 1, 'a') + heap_end;
  const uint64_t node = out.size();
  out += "TREE" + std::string(2, '\0') + word(kEntries, 2) + word(kNone) + word(kNone);
  for (uint64_t i = 0; i < kEntries; ++i) out += word(0) + word(child + i * step);
  out += word(last);
  for (size_t at = 0; (at = out.find(before, at)) < small.size(); ++at)
    out.replace(at, 8, word(node));
  out.replace(heap + 8, 24, word(kHeap) + word(1) + word(data));
  return out;
}

}  // namespace

TEST_CASE("hdf5: headers that lead to the same bytes again and again are refused soon") {
  Scratch dir;
  const std::string path = (dir.path() / "x.h5").string(), small = small_file(path);
  // Each takes hours if every entry searches the heap, and every reference is followed.
  std::string again = small;
  constexpr uint64_t kRoot = 96, kPiece = kRoot + 16, kLarge = uint64_t(16) << 20;
  again.replace(kPiece, 2, word(0x10, 2));
  again.replace(kPiece + 8, 16, word(small.size()) + word(kLarge));
  again += word(0x10, 2) + word(16, 2) + word(0, 4) + word(small.size()) + word(kLarge) +
           std::string(kLarge - 24, '\0');
  const std::pair<std::string, const char*> cases[] = {
      {with_names(small, 0, 0, '\0'), "a node of names is damaged"},
      {with_names(small, 0, 0, 'a'), "a name does not fit its heap"},
      {with_names(small, 8, kLarge, '\0'), "a name does not fit its heap"},
      {again, "headers refer to the same bytes again and again"}};
  for (const auto& [bytes, said] : cases) {
    CAPTURE(said);
    write_bytes(path, bytes);
    const std::clock_t begin = std::clock();
    CHECK(message([&] { Hdf5Reader r(path); }) == path + ": /: damaged object header: " + said);
    CHECK(double(std::clock() - begin) / CLOCKS_PER_SEC < 10);
  }
}

#endif

TEST_CASE("hdf5: headers of both formats, in many pieces, with types of every class are accepted") {
  Scratch dir;
  for (bool latest : {false, true}) {
    CAPTURE(latest);
    const std::string path = (dir.path() / (latest ? "latest.h5" : "earliest.h5")).string();
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (latest) H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
    const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
    REQUIRE(file >= 0);
    const hsize_t two = 2, chunk = 1;
    const hid_t space = H5Screate_simple(1, &two, nullptr), scalar = H5Screate(H5S_SCALAR);
    const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(chunked, 1, &chunk);
    H5Pset_shuffle(chunked);
    H5Pset_deflate(chunked, 2);
    const float values[] = {1, 2};
    for (int i = 0; i < 40; ++i) {  // more than one node of names
      const hid_t d = H5Dcreate2(file, ("x" + std::to_string(i)).c_str(), H5T_IEEE_F32LE, space,
                                 H5P_DEFAULT, i % 2 ? chunked : H5P_DEFAULT, H5P_DEFAULT);
      REQUIRE(H5Dwrite(d, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
      H5Dclose(d);
    }
    const hid_t pair = H5Tcreate(H5T_COMPOUND, 12);
    H5Tinsert(pair, "a", 0, H5T_IEEE_F64LE);
    H5Tinsert(pair, "second", 8, H5T_STD_I32BE);
    const hid_t choice = H5Tenum_create(H5T_STD_I8LE);
    int8_t no = 0, yes = 1;
    H5Tenum_insert(choice, "FALSE", &no);
    H5Tenum_insert(choice, "TRUE", &yes);
    const hid_t array = H5Tarray_create2(pair, 1, &two), vlen = H5Tvlen_create(array);
    const hid_t opaque = H5Tcreate(H5T_OPAQUE, 5);
    H5Tset_tag(opaque, "a tag");
    const hid_t committed = H5Tcopy(H5T_STD_I64LE);
    H5Tcommit2(file, "type", committed, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const std::pair<const char*, hid_t> attributes[] = {
        {"pair", pair},     {"choice", choice},      {"array", array},        {"vlen", vlen},
        {"opaque", opaque}, {"bits", H5T_STD_B16LE}, {"committed", committed}};
    const hid_t x = H5Dopen2(file, "x1", H5P_DEFAULT);
    for (const auto& [name, type] : attributes)
      CHECK(H5Aclose(H5Acreate2(x, name, type, scalar, H5P_DEFAULT, H5P_DEFAULT)) >= 0);
    H5Dclose(x);
    for (hid_t type : {pair, choice, array, vlen, opaque, committed}) H5Tclose(type);
    H5Pclose(chunked);
    H5Sclose(scalar);
    H5Sclose(space);
    H5Pclose(access);
    REQUIRE(H5Fclose(file) >= 0);

    const Hdf5Reader r(path);
    CHECK(r.datasets().size() == 40);
    for (const std::string& name : r.datasets())
      CHECK(r.read(name).to_vector() == std::vector<double>{1, 2});
    CHECK(r.attributes("x1").size() == 7);
    for (const auto& [name, type] : attributes) CHECK(r.has_attribute("x1", name));
    CHECK(r.int_attribute("x1", "committed") == 0);
  }
}
