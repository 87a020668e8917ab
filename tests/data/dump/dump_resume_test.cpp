// A dump that was killed at any system call and continued equals one that never was.
#include <doctest/doctest.h>

#include <fstream>

#include "data/codec/checksums.h"
#include "tests/data/dump/dump_cases.h"
#include "tests/faults.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

DumpWriterOptions two_in_a_shard(const DumpSpec& spec) {
  return {.shard_bytes = 2 * dump_size(spec).per_sample, .shuffle = true, .deflate = 1};
}

void write_whole(const Path& dir, const DumpSpec& spec) {
  DumpWriter writer(dir, spec, two_in_a_shard(spec));
  fill_dump(writer, spec, 3);
}

// Every file by name with its checksum.
std::string contents(const Path& dir) {
  std::vector<std::string> lines;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    lines.push_back(entry.path().filename().string() + " " + sha256_file(entry.path().string()));
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace

TEST_CASE("dump: killed before every system call that changes a file, then continued") {
  Scratch dir;
  DumpSpec spec = small_spec();
  write_whole(dir / "whole", spec);
  std::string wanted = contents(dir / "whole");
  CHECK(std::count(wanted.begin(), wanted.end(), '\n') == 5);  // 4 shards and the manifest
  int calls = run_with_fault({}, [&] { write_whole(dir / "count", spec); }).calls;
  CHECK(contents(dir / "count") == wanted);
  REQUIRE(calls > 20);
  int killed_again = 0;
  for (Fault fault : {Fault::kill, Fault::torn}) {
    for (int at = 1; at <= calls; ++at) {
      Path path = dir / "killed";
      std::filesystem::remove_all(path);
      ChildEnd end = run_with_fault({fault, at}, [&] { write_whole(path, spec); });
      REQUIRE(end.killed);
      end = run_with_fault({fault, 1 + at % 9}, [&] { write_whole(path, spec); });
      killed_again += end.killed;  // while it continues
      write_whole(path, spec);
      CHECK(contents(path) == wanted);
    }
  }
  CHECK(killed_again > calls);
}

TEST_CASE("dump: an error of every system call surfaces, and the dump can be continued") {
  Scratch dir;
  DumpSpec spec = small_spec();
  write_whole(dir / "whole", spec);
  std::string wanted = contents(dir / "whole");
  int calls = run_with_fault({}, [&] { write_whole(dir / "count", spec); }).calls;
  for (int at = 1; at <= calls; ++at) {
    Path path = dir / "failed";
    std::filesystem::remove_all(path);
    ChildEnd end = run_with_fault({Fault::fail, at}, [&] { write_whole(path, spec); });
    CHECK_FALSE(end.killed);
    CHECK(end.status == 1);
    write_whole(path, spec);
    CHECK(contents(path) == wanted);
  }
}

TEST_CASE("dump: a run that wrote no shard does not keep others out of its directory") {
  Scratch dir;
  DumpSpec spec = small_spec();
  { DumpWriter unfinished(dir.path(), spec); }
  spec.dtype = spec.dtype == Dtype::f32 ? Dtype::f16 : Dtype::f32;
  write_whole(dir.path(), spec);
  CHECK(DumpReader(dir.path()).spec().dtype == spec.dtype);
}

TEST_CASE("dump: finished shards are verified and damaged ones written again") {
  Scratch dir;
  DumpSpec spec = small_spec();
  write_whole(dir.path(), spec);
  std::string wanted = contents(dir.path());
  // The second is flipped, the third is truncated; incomplete and unlisted files are present.
  std::string second = read_file(dir / "shard-00001.h5");
  second[second.size() / 3] ^= 4;
  std::ofstream(dir / "shard-00001.h5", std::ios::binary | std::ios::trunc) << second;
  std::filesystem::resize_file(dir / "shard-00002.h5", 1000);
  std::ofstream(dir / "shard-00003.h5.tmp") << "half";
  std::ofstream(dir / "shard-00077.h5") << "unlisted";
  std::ofstream(dir / "notes.txt") << "not ours";
  {
    DumpWriter writer(dir.path(), spec, {.shard_bytes = 1});  // the size of the start counts
    REQUIRE(writer.notes().size() == 4);
    CHECK(contains(writer.notes()[0], "shard-00000.h5: verified"));
    CHECK(contains(writer.notes()[1], "another checksum"));
    CHECK(contains(writer.notes()[2], "has 1000 bytes"));
    CHECK(writer.missing().first == 2);
    CHECK(writer.missing().samples == 4);
    CHECK(contains(message([&] { writer.put(batch_of(spec, range(2, 5))); }), "but 4 consecutive"));
    CHECK_FALSE(std::filesystem::exists(dir / "shard-00003.h5.tmp"));
    CHECK_FALSE(std::filesystem::exists(dir / "shard-00077.h5"));
  }
  CHECK(read_manifest(dir.path()).stored_samples() == 3);
  CHECK(contains(message([&] { DumpReader r(dir.path()); }), "has 3 of 7 samples"));
  write_whole(dir.path(), spec);
  CHECK(read_file(dir / "notes.txt") == "not ours");
  std::filesystem::remove(dir / "notes.txt");
  CHECK(contents(dir.path()) == wanted);
  {
    DumpWriter writer(dir.path(), spec);
    CHECK(writer.missing().samples == 0);
    writer.finish();
  }
  CHECK(contents(dir.path()) == wanted);
}
