// TensorBoard event files: an event is a protocol buffer of five fields, a record its TFRecord
// frame with two checksums.
#include "distill/log/event_file.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "data/codec/checksums.h"

namespace brine::distill {
namespace {

// Field numbers of tensorflow.Event, Summary.Value and SessionLog.
enum Field : uint32_t {
  kWallTime = 1,
  kStep = 2,
  kFileVersion = 3,
  kSummary = 5,
  kSessionLog = 7,
  kSummaryValue = 1,
  kTag = 1,
  kSimpleValue = 2,
  kSessionStatus = 1,
};
constexpr uint64_t kSessionStart = 1;

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

template <class T>
std::string raw(T value) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += char(value | 0x80);
  return bytes + char(value);
}

std::string key(Field field, Wire wire) { return varint(field << 3 | wire); }

std::string nested(Field field, const std::string& content) {
  return key(field, kBytes) + varint(content.size()) + content;
}

double now() {
  using namespace std::chrono;
  return duration<double>(system_clock::now().time_since_epoch()).count();
}

std::string event(int64_t step, const std::string& content) {
  return key(kWallTime, kFixed64) + raw(now()) + key(kStep, kVarint) + varint(uint64_t(step)) +
         content;
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  std::string host = name;
  std::replace(host.begin(), host.end(), '/', '-');
  return host;
}

// DIR/events.out.tfevents.SECONDS.HOST.PID. TensorBoard reads the files of a directory by name, so
// the seconds are at least one more than those of any existing file.
data::Path next_name(const data::Path& dir) {
  const std::string prefix = "events.out.tfevents.";
  int64_t seconds = int64_t(now());
  std::error_code error;
  std::filesystem::directory_iterator entries(dir, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    std::string name = entries->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    int64_t taken = std::strtoll(name.c_str() + prefix.size(), nullptr, 10);
    if (taken < 9'999'999'999) seconds = std::max(seconds, taken + 1);
  }
  if (error) data::throw_io(dir, "list", error.value());
  char digits[32];
  std::snprintf(digits, sizeof digits, "%010lld", static_cast<long long>(seconds));
  return dir / (prefix + digits + "." + host_name() + "." + std::to_string(::getpid()));
}

}  // namespace

EventFile::EventFile(const data::Path& dir, int64_t first_step) : file_(next_name(dir)) {
  record(event(0, nested(kFileVersion, "brain.Event:2")));
  record(
      event(first_step, nested(kSessionLog, key(kSessionStatus, kVarint) + varint(kSessionStart))));
}

void EventFile::scalars(int64_t step, const Values& values) {
  std::string summary;
  for (const auto& [tag, value] : values) {
    summary +=
        nested(kSummaryValue, nested(kTag, tag) + key(kSimpleValue, kFixed32) + raw(float(value)));
  }
  record(event(step, nested(kSummary, summary)));
}

void EventFile::record(const std::string& event) {
  std::string length = raw(uint64_t(event.size()));
  file_.write(length + raw(data::masked_crc32c(length)) + event + raw(data::masked_crc32c(event)));
}

}  // namespace brine::distill
