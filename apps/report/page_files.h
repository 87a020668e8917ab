// The files of the page, which the build embeds into the program: those of apps/report/page, and
// the charting library.
#pragma once

#include <string_view>

namespace brine::report {

// "page.html", "page.css", "map_view.js"...; "vega.js" is the library. Throws for another name.
std::string_view page_file(std::string_view name);

}  // namespace brine::report
