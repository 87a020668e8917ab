// tar archives of every dialect: names and sizes that headers in front of a member give, kinds of
// members, and what is refused.
#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>

#include "data/io/byte_source.h"
#include "tensor/error.h"
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

// Names without the archive's own, and contents.
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
  // The last record of a key counts; an empty one is none.
  const std::string twice = pax_record("path", "not this") + name;
  CHECK(a.of(tar_member("x", twice, 'x') + tar_member("cut", "one", '0') + second) == two);
  const Members cut = {{"cut", "one"}, {"short.txt", "two"}};
  CHECK(a.of(tar_member("x", name + pax_record("path", ""), 'x') + tar_member("cut", "one", '0') +
             second) == cut);
}

TEST_CASE("tar: records of a global header change no member") {
  const Archives a;
  const std::string global = pax_record("comment", "of git") + pax_record("path", "every");
  const Members out = {{"f", "one"}, {"own", "two"}, {"h", "three"}, {"f", "four"}};
  CHECK(a.of(tar_member("g", global, 'g') + tar_member("f", "one", '0') +
             tar_member("x", pax_record("path", "own"), 'x') + tar_member("f", "two", '0') +
             tar_member("x", pax_record("path", ""), 'x') + tar_member("h", "three", '0') +
             tar_member("f", "four", '0')) == out);
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
  // Of a link, which is no file; the next member keeps its own name.
  const Members last = {{"f", "two"}};
  CHECK(a.of(named + link + tar_member("n", "", '2') + second) == last);
}

TEST_CASE("tar: regular files of every type, and members that are none") {
  const Archives a;
  const Members out = {{"a", "1"}, {"b", "2"}, {"c", "3"}};
  CHECK(a.of(tar_member("d/", "", '5') + tar_member("a", "1", '0') + tar_member("b", "2", '\0') +
             tar_member("old/", "", '\0') + tar_member("c", "3", '7')) == out);
  // Links, devices, pipes, directories: without content, whatever size stands in the header.
  for (char type : {'1', '2', '3', '4', '5', '6'})
    CHECK(a.of(tar_member("x", "", type, 700) + tar_member("a", "1", '0')) == Members{{"a", "1"}});
  CHECK(a.of(tar_member("volume", "", 'V') + tar_member("a", "1", '0')) == Members{{"a", "1"}});
  // Without a magic: the checksum tells.
  std::string oldest = tar_member("a", "1", '\0');
  unsigned sum = 0;
  for (size_t i = 257; i < 265; ++i) sum += uint8_t(oldest[i]);
  const unsigned whole = unsigned(std::strtoul(oldest.c_str() + 148, nullptr, 8)) - sum;
  oldest.replace(257, 8, 8, '\0');
  char digits[8];
  std::snprintf(digits, sizeof digits, "%06o", whole);
  oldest.replace(148, 7, std::string(digits, 7));
  CHECK(a.of(oldest) == Members{{"a", "1"}});
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
  const std::string file = tar_member("cut", "one", '0');
  const std::string cases[] = {"path=x\n",
                               " path=x\n",
                               "-9 path=x\n",
                               "+9 path=x\n",
                               "99999999999999999999999 path=x\n",
                               "18446744073709551615 path=x\n",
                               "11 path=x\n",
                               "0 path=x\n",
                               "2 path=x\n",
                               "8 path=x\n",
                               "9 pathx_\n10 path=y\n",
                               "7 =ab_\n",
                               pax_record("a", "b") + "3 \n",
                               pax_record("a", "b") + "3"};
  for (const std::string& records : cases) {
    INFO(records);
    const std::string got = a.refused(tar_member("PaxHeaders/f", records, 'x') + file + a.end);
    CHECK_MESSAGE(got.starts_with("damaged tar data ("), got);
    // Those of a global header are not looked at.
    CHECK(a.of(tar_member("PaxHeaders/f", records, 'g') + file) == Members{{"cut", "one"}});
  }
  auto sized = [&](const std::string& size) {
    return tar_member("x", pax_record("size", size), 'x') + file;
  };
  for (const char* size : {"-1", "0x3", "three", "9223372036854775807", "9223372036854775808"})
    CHECK_MESSAGE(a.refused(sized(size) + a.end).starts_with("damaged tar data ("), size);
  for (const char* size : {"3", "3.5", "3 "}) CHECK(a.of(sized(size)) == Members{{"cut", "one"}});
}

TEST_CASE("tar: headers that are too long, cut off, or in front of nothing are refused") {
  const Archives a;
  CHECK(contains(a.refused(tar_member("x", "", 'x', (1 << 20) + 1)), "damaged tar data ("));
  CHECK(contains(a.refused(tar_member("l", std::string(70000, 'n'), 'L') +
                           tar_member("f", "one", '0') + a.end),
                 "the name of a member has 70000 bytes, more than 65536"));
  CHECK(contains(a.refused(tar_member("x", "", 'x', 100) + "12 path"), "damaged tar data ("));
  for (char type : {'x', 'L', 'K'}) {
    const std::string x = tar_member("x", pax_record("path", "p"), type);
    for (const std::string& rest : {std::string(), a.end})
      CHECK(contains(a.refused(tar_member("f", "one", '0') + x + rest), "damaged tar data ("));
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
    return a.refused(member + a.end);
  };
  for (const std::string& size :
       {std::string("0000000000x "), std::string("-0000000003 "), std::string(12, '\xff')})
    CHECK_MESSAGE(with_size(size).starts_with("damaged tar data ("), size);
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
