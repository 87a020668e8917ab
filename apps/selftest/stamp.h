// The record that a GPU has passed `brine gpu-selftest`: a file in the user's cache, one for each
// device, which names the build, the driver and the device.
#pragma once

#include <filesystem>
#include <string>

namespace brine::selftest {

struct Stamp {
  std::string build;   // version, commit, and the linker's id of the program
  std::string driver;  // as driver_version()
  std::string device;  // as unique_name()

  // What a record must say for this program on the device, now. `index` must be below
  // device_count().
  static Stamp present(int index);
  // The file: in XDG_CACHE_HOME if that is an absolute path, else in ~/.cache. Throws without a
  // home.
  std::filesystem::path path() const;
  std::string text() const;
  void write() const;
  void remove() const;
  // Empty if its file says the same; otherwise why not, as a clause.
  std::string difference() const;
};

}  // namespace brine::selftest
