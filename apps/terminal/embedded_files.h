// Text files that the build compiles into the program (cmake/EmbedFiles.cmake), so that it needs no
// other file.
#pragma once

#include <span>
#include <string_view>

namespace brine {

struct EmbeddedFile {
  std::string_view name, text;
};

std::span<const EmbeddedFile> python_sources();  // in apps/python/brine_sea, what a student needs
std::span<const EmbeddedFile> page_files();      // of apps/report/page

}  // namespace brine
