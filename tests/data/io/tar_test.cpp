// tar archives of every dialect: names and sizes from headers in front of a member, kinds of
// members, and errors.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "data/io/byte_source.h"
#include "tensor/base/error.h"
#include "tests/data/io/archives.h"
#include "tests/messages.h"
#include "tests/scratch.h"
#include "tests/skip.h"

using namespace brine;
using namespace brine::data;
using test::contains;
using test::message;
using test::pax_record;
using test::Scratch;
using test::tar_member;
namespace fs = std::filesystem;

namespace {

using Members = std::vector<std::pair<std::string, std::string>>;

// Names without the archive's path, and contents.
Members members(const fs::path& path) {
  Members out;
  for_each_file(path, [&](ByteSource& source, const std::string& bare) {
    std::string content(100000, '\0');
    size_t have = 0;
    while (size_t n = source.read(content.data() + have, content.size() - have)) have += n;
    const std::string start = path.string() + ": ";
    out.emplace_back(bare.starts_with(start) ? bare.substr(start.size()) : bare,
                     content.substr(0, have));
  });
  return out;
}

struct Archives {
  Scratch scratch;
  const std::string end = std::string(1024, '\0');

  Members of(const std::string& members_before_the_end) const {
    return members(scratch.write("a.tar", members_before_the_end + end));
  }
  std::string refused(const std::string& bytes) const {
    const std::string path = scratch.write("a.tar", bytes);
    const std::string said = message([&] { members(path); });
    CHECK(said.starts_with(path + ": "));
    CHECK(said.find('\n') == said.npos);
    return said.substr(std::min(said.size(), path.size() + 2));
  }
};

}  // namespace

TEST_CASE("tar: pax records give the name and the size of the member that follows, of no other") {
  const Archives a;
  const std::string deep = std::string(300, 'd') + "/caf\xc3\xa9.txt";
  const std::string name = pax_record("mtime", "1.5") + pax_record("path", deep);
  const Members two = {{deep, "one"}, {"short.txt", "two"}};
  const std::string second = tar_member("short.txt", "two", '0');
  CHECK(a.of(tar_member("PaxHeaders/x", name, 'x') + tar_member("cut", "one", '0') + second) ==
        two);
  // Sizes: of files of 8 GiB and more, but any member may have one.
  const std::string sized = name + pax_record("size", "3");
  CHECK(a.of(tar_member("x", sized, 'x') + tar_member("cut", "one", '0', 0) + second) == two);
  // The last record of a key counts; an empty one removes it.
  const std::string twice = pax_record("path", "not this") + name;
  CHECK(a.of(tar_member("x", twice, 'x') + tar_member("cut", "one", '0') + second) == two);
  const Members cut = {{"cut", "one"}, {"short.txt", "two"}};
  CHECK(a.of(tar_member("x", name + pax_record("path", ""), 'x') + tar_member("cut", "one", '0') +
             second) == cut);
}

TEST_CASE("tar: a global header may have records that no content depends on") {
  const Archives a;
  const std::string global = pax_record("comment", "of git") + pax_record("mtime", "1.5");
  const Members out = {{"f", "one"}, {"own", "two"}, {"h", "three"}};
  CHECK(a.of(tar_member("g", global, 'g') + tar_member("f", "one", '0') +
             tar_member("x", pax_record("path", "own"), 'x') + tar_member("g", global, 'g') +
             tar_member("f", "two", '0') + tar_member("h", "three", '0') +
             tar_member("g", global, 'g')) == out);
  for (const char* key : {"path", "size", "GNU.sparse.major"})
    CHECK(a.refused(tar_member("g", global + pax_record(key, "1"), 'g') +
                    tar_member("f", "o", '0') + a.end) ==
          join("g: the record ", key, " for all members is not read"));
}

TEST_CASE("tar: GNU's long names") {
  const Archives a;
  const std::string longer(400, 'n');
  const std::string named = tar_member("././@LongLink", longer + '\0', 'L');
  const std::string link = tar_member("././@LongLink", std::string(200, 'l') + '\0', 'K');
  const Members out = {{longer, "one"}, {"f", "two"}};
  const std::string second = tar_member("f", "two", '0');
  CHECK(a.of(named + tar_member("n", "one", '0') + second) == out);
  CHECK(a.of(link + named + tar_member("n", "one", '0') + second) == out);
  // Programs disagree about the name of a member that has two.
  const std::string path = tar_member("x", pax_record("path", "p"), 'x');
  for (const std::string& two : {named + path, path + named})
    CHECK(a.refused(two + tar_member("n", "one", '0') + a.end) ==
          "n: has two long names, of GNU and of pax");
  CHECK(a.refused(path + path + tar_member("n", "one", '0') + a.end) ==
        "x: a second pax header of one member");
  // Of a link, which is not a file; the next member keeps its name.
  const Members last = {{"f", "two"}};
  CHECK(a.of(named + link + tar_member("n", "", '2') + second) == last);
}

TEST_CASE("tar: regular files of every type, and members that are none") {
  const Archives a;
  const Members out = {{"a", "1"}, {"b", "2"}, {"c", "3"}};
  CHECK(a.of(tar_member("d/", "", '5') + tar_member("a", "1", '0') + tar_member("b", "2", '\0') +
             tar_member("old/", "", '\0') + tar_member("c", "3", '7')) == out);
  // Links, devices, pipes, directories: without content, whatever the size in the header.
  for (char type : {'1', '2', '3', '4', '5', '6'})
    CHECK(a.of(tar_member("x", "", type, 700) + tar_member("a", "1", '0')) == Members{{"a", "1"}});
  CHECK(a.of(tar_member("volume", "", 'V') + tar_member("a", "1", '0')) == Members{{"a", "1"}});
  // A link with content, as cpio and pax write it; the header after it is checked too.
  const std::string link = tar_member("x", "x", '1', 0);
  CHECK(a.of(link.substr(0, 512) + tar_member("a", "1", '0')) == Members{{"a", "1"}});
  CHECK(contains(
      a.refused(tar_member("x", "", '1', 700) + tar_member("x", pax_record("size", "3.5"), 'x') +
                tar_member("a", "1", '0') + a.end),
      "the record size is not a number of bytes"));
  // Without a magic the checksum decides.
  std::string oldest = tar_member("a", "1", '\0');
  unsigned sum = 0;
  for (size_t i = 257; i < 265; ++i) sum += uint8_t(oldest[i]);
  const unsigned whole = unsigned(std::strtoul(oldest.c_str() + 148, nullptr, 8)) - sum;
  oldest.replace(257, 8, 8, '\0');
  char digits[8];
  std::snprintf(digits, sizeof digits, "%06o", whole);
  oldest.replace(148, 7, std::string(digits, 7));
  CHECK(a.of(oldest) == Members{{"a", "1"}});
  // Old programs of BSD and Solaris added signed bytes; another difference is damage.
  std::string of_bsd = tar_member("a", "1", '0');
  const int before = int(std::strtoul(of_bsd.c_str() + 148, nullptr, 8)) - uint8_t(of_bsd[270]);
  of_bsd[270] = '\xe9';  // in the name of the owner
  for (const auto& [byte, valid] :
       {std::pair{0xe9, true}, {0xe9 - 256, true}, {0xe9 - 255, false}}) {
    std::snprintf(digits, sizeof digits, "%06o", unsigned(before + byte));
    of_bsd.replace(148, 7, std::string(digits, 7));
    const std::string two = tar_member("e", "0", '0') + of_bsd;
    if (valid) {
      CHECK(a.of(two) == Members{{"e", "0"}, {"a", "1"}});
    } else {
      CHECK(a.refused(two + a.end) == "a tar header is damaged: its checksum differs");
    }
  }
}

TEST_CASE("tar: sparse files, other volumes and unknown types are refused by name") {
  const Archives a;
  const std::string sparse = "s.bin: a sparse file, which is not read; pack it without --sparse";
  CHECK(a.refused(tar_member("s.bin", "x", 'S') + a.end) == sparse);
  const std::string map = "1\n0\n1\n" + std::string(506, '\0') + "x";  // of one piece
  CHECK(a.refused(tar_member("x",
                             pax_record("GNU.sparse.major", "1") +
                                 pax_record("GNU.sparse.minor", "0") +
                                 pax_record("GNU.sparse.name", "s.bin") +
                                 pax_record("GNU.sparse.realsize", "9"),
                             'x') +
                  tar_member("GNUSparseFile.0/s.bin", map, '0') + a.end) == sparse);
  CHECK(contains(a.refused(tar_member("m", "x", 'M') + a.end), "m: goes on from another volume"));
  CHECK(contains(a.refused(tar_member("two\nlines", "x", 'Q') + a.end),
                 "two\\x0alines: a member of unknown type 81 ('Q')"));
}

TEST_CASE("tar: records that are malformed or go beyond their header are refused") {
  const Archives a;
  const std::string file = tar_member("cut", "one", '0') + a.end;
  const std::pair<std::string, const char*> cases[] = {
      {"path=x\n", "does not begin with its length"},
      {" path=x\n", "does not begin with its length"},
      {"-9 path=x\n", "does not begin with its length"},
      {"+9 path=x\n", "does not begin with its length"},
      {"99999999999999999999999 path=x\n", "does not begin with its length"},
      {"18446744073709551615 path=x\n", "has 18446744073709551615 bytes, there are 28"},
      {"11 path=x\n", "has 11 bytes, there are 10"},
      {"0 path=x\n", "does not end with a newline"},
      {"2 path=x\n", "does not end with a newline"},
      {"8 path=x\n", "does not end with a newline"},
      {"9 pathx_\n10 path=y\n", "record at byte 0 is not KEY=VALUE"},
      {"7 =ab_\n", "is not KEY=VALUE"},
      {pax_record("a", "b") + "3 \n", "record at byte 6 is not KEY=VALUE"},
      {pax_record("a", "b") + "3", "record at byte 6 does not begin with its length"}};
  for (const auto& [records, said] : cases) {
    INFO(records);
    for (char type : {'x', 'g'}) {
      const std::string got = a.refused(tar_member("PaxHeaders/f", records, type) + file);
      CHECK_MESSAGE(contains(got, said), got);
      CHECK(got.starts_with("PaxHeaders/f: the record at byte "));
    }
  }
  auto sized = [&](const std::string& size) {
    return a.refused(tar_member("x", pax_record("size", size), 'x') + file);
  };
  for (const char* size : {"-1", "3.5", "0x3", "three", "9223372036854775808", "3 ", " 3", ""})
    CHECK(sized(size) == "x: the record size is not a number of bytes");
  CHECK(sized("9223372036854775807").starts_with("damaged tar data ("));
  CHECK(a.refused(tar_member("x", pax_record("path", std::string("a\0b", 3)), 'x') + file) ==
        "x: the record path has a NUL");
}

TEST_CASE("tar: headers that are too long, cut off, or in front of nothing are refused") {
  const Archives a;
  for (char type : {'x', 'g'})
    CHECK(a.refused(tar_member("x", "", type, (1 << 20) + 1)) ==
          "x: an extended header has 1048577 bytes, more than 1048576");
  for (char type : {'L', 'K'})
    CHECK(a.refused(tar_member("l", std::string(70000, 'n'), type) + tar_member("f", "one", '0')) ==
          "l: an extended header has 70000 bytes, more than 65536");
  CHECK(contains(a.refused(tar_member("x", pax_record("path", std::string(70000, 'n')), 'x') +
                           tar_member("f", "one", '0') + a.end),
                 "the name of a member has 70000 bytes, more than 65536"));
  CHECK(contains(a.refused(tar_member("x", "", 'x', 100) + "12 path"), "damaged tar data ("));
  for (char type : {'x', 'L', 'K'}) {
    const std::string x = tar_member("x", pax_record("path", "p"), type);
    CHECK(contains(a.refused(tar_member("f", "one", '0') + x), "damaged tar data ("));
    CHECK(a.refused(tar_member("f", "one", '0') + x + a.end) ==
          "the tar archive ends after an extended header, without its member");
  }
  auto with_size = [&](const std::string& field) {
    std::string member = tar_member("f", "one", '0');
    member.replace(124, 12, field);
    unsigned sum = 0;
    member.replace(148, 8, "        ");
    for (size_t i = 0; i < 512; ++i) sum += uint8_t(member[i]);
    char digits[8];
    std::snprintf(digits, sizeof digits, "%06o", sum);
    member.replace(148, 7, std::string(digits, 7));
    // A first header is looked at more closely by libarchive than the others.
    const std::string said = a.refused(tar_member("e", "zero", '0') + member + a.end);
    CHECK(a.refused(member + a.end) == said);
    return said;
  };
  for (const std::string& size :
       {std::string("0000000000x "), std::string("-0000000003 "), std::string(12, '\xff')})
    CHECK(with_size(size) == "f: the size in its tar header is malformed or too large");
  std::string flipped = tar_member("f", "one", '0');
  flipped[3] ^= 1;
  CHECK(a.refused(tar_member("e", "zero", '0') + flipped + a.end) ==
        "a tar header is damaged: its checksum differs");
}

TEST_CASE("tar: what the program tar writes, in each of its formats (needs GNU tar)") {
  if (std::system("tar --version 2>/dev/null | grep -q GNU") != 0) {
    return test::skip("GNU tar is missing");
  }
  const Scratch scratch;
  const std::string folder = std::string(90, 'f'), name = std::string(60, 'n') + ".txt";
  const std::string longest = std::string(200, 'l') + ".txt";
  fs::create_directories(scratch / "in" / folder);
  scratch.write("in/a.txt", "first");
  scratch.write("in/" + folder + "/" + name, "second");
  for (const char* format : {"v7", "oldgnu", "gnu", "ustar", "pax"}) {
    INFO(format);
    const bool any_length = std::string(format) != "v7" && std::string(format) != "ustar";
    Members expected = {{"a.txt", "first"}};
    std::string files = "a.txt";
    if (std::string(format) != "v7") {
      files += " " + folder;
      expected.emplace_back(folder + "/" + name, "second");
    }
    if (any_length) {
      scratch.write("in/" + longest, "third");
      files += " " + longest;
      expected.emplace_back(longest, "third");
    }
    const std::string archive = (scratch / (std::string(format) + ".tar")).string();
    REQUIRE(std::system(("cd " + (scratch / "in").string() + " && tar --format=" + format +
                         " -cf " + archive + " " + files)
                            .c_str()) == 0);
    CHECK(members(archive) == expected);
  }
}
