// A record's length counts itself, the space, the key, the value and the newline at its end.
#include "data/io/pax.h"

#include <algorithm>
#include <charconv>

#include "tensor/error.h"

namespace brine::data {
namespace {

// Digits alone, no sign; the whole of the text.
bool parse_number(std::string_view text, uint64_t& value) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && at == end;
}

}  // namespace

void PaxRecords::add(std::string_view text, const std::string& where) {
  for (size_t begin = 0; begin < text.size();) {
    const std::string_view rest = text.substr(begin);
    // Nothing longer is a number that fits.
    const size_t space = rest.substr(0, 21).find(' ');
    uint64_t length = 0;
    const bool numbered = space != rest.npos && parse_number(rest.substr(0, space), length);
    check(numbered, where, ": the record at byte ", begin, " does not begin with its length");
    check(length <= rest.size(), where, ": the record at byte ", begin, " has ", length,
          " bytes, there are ", rest.size());
    check(length > space + 1 && rest[size_t(length) - 1] == '\n', where, ": the record at byte ",
          begin, " does not end with a newline");
    const std::string_view record = rest.substr(space + 1, size_t(length) - space - 2);
    const size_t equals = record.find('=');
    check(equals != record.npos && equals > 0, where, ": the record at byte ", begin,
          " is no KEY=VALUE");
    values.insert_or_assign(std::string(record.substr(0, equals)),
                            std::string(record.substr(equals + 1)));
    begin += size_t(length);
  }
}

const std::string* PaxRecords::find(std::string_view key) const {
  const auto found = values.find(key);
  return found == values.end() || found->second.empty() ? nullptr : &found->second;
}

std::optional<uint64_t> pax_size(const PaxRecords& records, const std::string& where) {
  const std::string* text = records.find("size");
  if (!text) return std::nullopt;
  uint64_t size = 0;
  check(parse_number(*text, size) && size <= INT64_MAX, where, ": the record size is no size");
  return size;
}

}  // namespace brine::data
