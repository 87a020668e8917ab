// The data of a page of brine report, for tests of what the program wrote.
#pragma once

#include <zlib.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/report/pack.h"
#include "tests/apps/report/browser.h"
#include "tests/apps/world.h"

namespace brine::tests {

inline nlohmann::json page_data(const std::string& html) {
  const std::string start = "<script type=\"application/json\" id=\"data\">";
  const size_t at = html.find(start) + start.size();
  return nlohmann::json::parse(html.substr(at, html.find("</script>", at) - at));
}

// The numbers of the planes of one head, as the page reads them.
inline std::map<std::string, std::vector<double>> planes_in(const nlohmann::json& head) {
  const std::string packed = from_base64(head.at("bytes").get<std::string>());
  size_t size = 0;
  for (const auto& plane : head.at("planes"))
    size += plane[1].get<size_t>() * plane[2].get<size_t>();
  std::string bytes(size, '\0');
  uLongf got = uLongf(size);
  check(uncompress(reinterpret_cast<Bytef*>(bytes.data()), &got,
                   reinterpret_cast<const Bytef*>(packed.data()), uLong(packed.size())) == Z_OK &&
            got == size,
        "page: a head's bytes are damaged");
  std::map<std::string, std::vector<double>> out;
  size_t at = 0;
  std::string before;  // of the plane before
  for (const auto& plane : head.at("planes")) {
    std::vector<double>& values = out[plane[0].get<std::string>()];
    const auto columns = plane[2].get<size_t>();
    const size_t cells = plane[1].get<size_t>() * columns;
    std::string decoded = bytes.substr(at, cells);
    at += cells;
    const bool largest = plane[0].get<std::string>().ends_with(".most");
    for (size_t i = 0; i < cells; ++i) {
      const char above = i < columns ? '\0' : decoded[i - columns];
      decoded[i] = char(decoded[i] + (largest ? before[i] : above));
      const auto byte = uint8_t(decoded[i]);
      values.push_back(plane[3] == 1 ? byte / 255.0 : report::mass_of_byte(byte));
    }
    before = decoded;
  }
  return out;
}

inline constexpr const char* kText = "--text 'the king <script>x()</script>' ";

inline std::string written(const std::string& arguments, const std::string& out = "page.html") {
  world().must("report " + arguments + " --out " + out);
  return read_all(world().path(out));
}

inline std::string refusal(const std::string& arguments) {
  const Finished f = world().run("report " + arguments + " --out refused.html");
  CHECK_FALSE(std::filesystem::exists(world().path("refused.html")));
  return refusal_in(f);
}

inline const nlohmann::json& chart_of(const nlohmann::json& data, const std::string& id) {
  for (const nlohmann::json& chart : data.at("charts")) {
    if (chart.at("id") == id) return chart;
  }
  FAIL("no chart " << id);
  return data;
}

}  // namespace brine::tests
