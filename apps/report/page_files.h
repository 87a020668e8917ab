// The files of the page, which the build embeds into the program: those of apps/report/page.
#pragma once

#include <string_view>

namespace brine::report {

// "page.html", "page.css", "maps.js"... Throws for another name.
std::string_view page_file(std::string_view name);

}  // namespace brine::report
