// What the fuzzer feeds: for every kind of file that comes from outside, the function that reads
// it.
//
// A reader may take the bytes or refuse them with an Error of one line that names a file; anything
// else is a find. The fuzzer (scripts/fuzz) tries inputs without end, the test test_fuzz those that
// are in seeds/ and finds/.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace brine::fuzz {

struct FuzzTarget {
  std::string name;  // of its folders in seeds/ and finds/, too
  // Puts the bytes into files of the empty directory and reads them as the program would.
  void (*read)(const std::filesystem::path& dir, std::string_view bytes);
};

const std::vector<FuzzTarget>& targets();
const FuzzTarget& target_named(const std::string& name);

// A reader violated a rule.
struct Find : std::logic_error {
  using std::logic_error::logic_error;
};

// Empties `dir`, reads the bytes, returns the error message, empty if there was none. Throws Find
// when a message is longer than a line or names no file of `dir`.
std::string feed(const FuzzTarget& target, const std::filesystem::path& dir,
                 std::string_view bytes);

// Inputs of several files: the parts between lines "---", at most `max_parts` of them.
std::vector<std::string_view> parts_of(std::string_view bytes, size_t max_parts);

void write_input(const std::filesystem::path& path, std::string_view bytes);

}  // namespace brine::fuzz
