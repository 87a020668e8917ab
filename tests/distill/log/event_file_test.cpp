// Event files decoded by a separate reader, checksums included.
#include "distill/log/event_file.h"

#include <doctest/doctest.h>
#include <cmath>
#include <cstring>
#include <map>

#include "tests/scratch.h"

namespace fs = std::filesystem;
using namespace brine;
using namespace brine::distill;

namespace {

uint32_t slow_masked_crc(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (unsigned char byte : bytes) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class T>
T load(const std::string& bytes, size_t at) {
  T value;
  REQUIRE(at + sizeof value <= bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// One field of a message: a number's bits or the bytes.
struct FieldValue {
  uint64_t number = 0;
  std::string bytes;
};

std::multimap<int, FieldValue> decode(const std::string& message) {
  std::multimap<int, FieldValue> fields;
  size_t at = 0;
  auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      REQUIRE(at < message.size());
      unsigned char byte = static_cast<unsigned char>(message[at++]);
      value |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    uint64_t key = varint();
    FieldValue value;
    switch (key & 7) {
      case 0:
        value.number = varint();
        break;
      case 1:
        value.number = load<uint64_t>(message, at), at += 8;
        break;
      case 5:
        value.number = load<uint32_t>(message, at), at += 4;
        break;
      default: {
        REQUIRE((key & 7) == 2);
        size_t size = varint();
        REQUIRE(at + size <= message.size());
        value.bytes = message.substr(at, size);
        at += size;
      }
    }
    fields.emplace(int(key >> 3), value);
  }
  return fields;
}

const FieldValue& field(const std::multimap<int, FieldValue>& fields, int number) {
  REQUIRE(fields.count(number) == 1);
  return fields.find(number)->second;
}

std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    uint64_t size = load<uint64_t>(file, at);
    CHECK(load<uint32_t>(file, at + 8) == slow_masked_crc(file.substr(at, 8)));
    REQUIRE(at + 16 + size <= file.size());
    records.push_back(file.substr(at + 12, size));
    CHECK(load<uint32_t>(file, at + 12 + size) == slow_masked_crc(records.back()));
    at += 16 + size;
  }
  return records;
}

std::vector<data::Path> files_in(const data::Path& dir) {
  std::vector<data::Path> files;
  for (const auto& entry : fs::directory_iterator(dir)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TEST_CASE("event file: version, session start and scalars are as the format defines") {
  test::Scratch dir;
  EventFile events(dir.path(), 301);
  events.scalars(301, {{"train/loss", 2.5}, {"größe", 1.0 / 3}});
  events.scalars(70'000'000'000, {{"x", NAN}});
  events.scalars(302, {});
  REQUIRE(files_in(dir.path()).size() == 1);
  CHECK(files_in(dir.path())[0].filename().string().starts_with("events.out.tfevents.1"));
  auto records = records_of(data::read_file(files_in(dir.path())[0]));
  REQUIRE(records.size() == 5);
  auto version = decode(records[0]), start = decode(records[1]), first = decode(records[2]);
  CHECK(field(version, 3).bytes == "brain.Event:2");
  double wall = 0;
  std::memcpy(&wall, &field(version, 1).number, 8);
  CHECK((wall > 1.7e9 && wall < 1e11));
  CHECK(field(start, 2).number == 301);
  CHECK(field(decode(field(start, 7).bytes), 1).number == 1);
  CHECK(field(first, 2).number == 301);
  auto summary = decode(field(first, 5).bytes);
  REQUIRE(summary.count(1) == 2);
  auto value = decode(summary.find(1)->second.bytes);
  auto second = decode(std::next(summary.find(1))->second.bytes);
  CHECK(field(value, 1).bytes == "train/loss");
  CHECK(std::bit_cast<float>(uint32_t(field(value, 2).number)) == 2.5f);
  CHECK(field(second, 1).bytes == "größe");
  CHECK(std::bit_cast<float>(uint32_t(field(second, 2).number)) == float(1.0 / 3));
  CHECK(field(decode(records[3]), 2).number == 70'000'000'000);
}

TEST_CASE("event file: a later file sorts after the earlier ones, even in the same second") {
  test::Scratch dir;
  std::vector<std::string> firsts;
  for (int i = 0; i < 4; ++i) {
    EventFile events(dir.path(), 100 * i + 1);
    auto files = files_in(dir.path());
    CHECK(files.size() == size_t(i + 1));
    CHECK(field(decode(records_of(data::read_file(files.back()))[1]), 2).number ==
          uint64_t(100 * i + 1));
  }
  CHECK_THROWS_AS(EventFile(dir / "none", 1), Error);
}
