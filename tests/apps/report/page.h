// The data of a page of brine report, for tests of what the program wrote.
#pragma once

#include <zlib.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/report/pack.h"
#include "tests/apps/world.h"

namespace brine::tests {

inline nlohmann::json page_data(const std::string& html) {
  const std::string start = "<script type=\"application/json\" id=\"data\">";
  const size_t at = html.find(start) + start.size();
  return nlohmann::json::parse(html.substr(at, html.find("</script>", at) - at));
}

// What a byte of a map means, by its definition in apps/report/pack.h.
inline double value_of(const std::string& plane, uint8_t byte) {
  if (plane == "mask") return byte / 255.0;
  return byte == 0 ? 0 : std::pow(report::kMinMass, 1 - (byte - 1) / 254.0);
}

inline std::string from_base64(const std::string& text) {
  const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  unsigned bits = 0;
  int count = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | unsigned(letters.find(c));
    count += 6;
    if (count >= 8) out += char(bits >> (count -= 8) & 255);
  }
  return out;
}

// The numbers of the planes of one head, as the page reads them.
inline std::map<std::string, std::vector<double>> planes_in(const nlohmann::json& attention,
                                                            size_t head) {
  const std::string packed =
      from_base64(attention.at("maps").at(head).at("bytes").get<std::string>());
  const auto side = attention.at("cells").get<size_t>();
  std::string bytes(side * side * attention.at("planes").size(), '\0');
  uLongf got = uLongf(bytes.size());
  check(uncompress(reinterpret_cast<Bytef*>(bytes.data()), &got,
                   reinterpret_cast<const Bytef*>(packed.data()), uLong(packed.size())) == Z_OK &&
            got == bytes.size(),
        "page: a head's bytes are damaged");
  std::map<std::string, std::vector<double>> out;
  size_t at = 0;
  for (const std::string plane : attention.at("planes")) {
    for (size_t i = 0; i < side * side; ++i, ++at) {
      if (i >= side) bytes[at] = char(bytes[at] + bytes[at - side]);
      out[plane].push_back(value_of(plane, uint8_t(bytes[at])));
    }
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

inline const nlohmann::json& chart_of(const nlohmann::json& data, const std::string& title) {
  for (const nlohmann::json& chart : data.at("charts")) {
    if (chart.at("title") == title) return chart;
  }
  FAIL("no chart " << title);
  return data;
}

}  // namespace brine::tests
