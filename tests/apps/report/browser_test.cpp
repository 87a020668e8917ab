// The page of brine report in a real browser: what it shows, what its controls do, its requests.
#include "tests/apps/report/browser.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "data/io/file_io.h"
#include "tests/apps/report/page.h"
#include "tests/apps/world.h"
#include "tests/png_reader.h"
#include "tests/skip.h"

namespace brine::tests {
namespace {

using Json = nlohmann::json;

bool skipped() {
  if (!Browser::program().empty()) return false;
  test::skip("chromium is not installed");
  return true;
}

// A page with maps of a student, curves of two runs, and a sweep; made once.
std::string full_page() {
  static const std::string page = [] {
    const World& w = world();
    std::filesystem::remove(w.path("browser.tsv"));
    w.must(
        "sweep --model student --teacher teacher --data text.txt --k 2 4 --max-windows 2 --floors "
        "--out browser.tsv");
    w.must(
        "report student teacher browser.tsv --teacher teacher --out browser.html "
        "--text 'the king <script>x()</script> said'");
    return w.path("browser.html");
  }();
  return page;
}

// Why a picture is blank; "" if it is not.
std::string blank(const std::string& png, int64_t width) {
  const test::Picture picture = test::read_png(png);
  if (picture.width != width) return join("is ", picture.width, " wide");
  std::set<uint32_t> colours;
  for (const test::Colour& c : picture.pixels)
    colours.insert(uint32_t(c.red) << 16 | uint32_t(c.green) << 8 | c.blue);
  return colours.size() > 200 ? "" : join("has ", colours.size(), " colours");
}

// A place to look at the pictures: a directory named in the environment.
void keep(const std::string& name, const std::string& bytes) {
  const char* directory = std::getenv("BRINE_SCREENSHOTS");
  if (directory) data::write_file_atomic(data::Path(directory) / name, bytes);
}

// The colour in the middle of a cell of a map's canvas, from the pixels that the browser drew.
test::Colour drawn(Browser& browser, const std::string& view, int64_t row, int64_t column) {
  const Json rgb = browser.evaluate(
      "(() => { const v = brine.views." + view +
      "; v.group.cursor = null; v.group.whole(); const s = v.size(), w = v.window();"
      "const x = 74 + s.plot * (" +
      std::to_string(column) + " + 0.5) / w.columns[1], y = 4 + s.height * (" +
      std::to_string(row) +
      " + 0.5) / w.rows[1];"
      "const copy = document.createElement('canvas'); copy.width = copy.height = 1;"
      "const at = copy.getContext('2d'); at.drawImage(v.canvas, -Math.floor(x), -Math.floor(y));"
      "return Array.from(at.getImageData(0, 0, 1, 1).data); })()");
  return {rgb[0].get<uint8_t>(), rgb[1].get<uint8_t>(), rgb[2].get<uint8_t>()};
}

std::string join_lines(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += line + "\n";
  return out;
}

// Viridis at multiples of 1/8 (matplotlib), and between them.
test::Colour viridis(double value) {
  constexpr uint8_t kStops[9][3] = {{68, 1, 84},    {71, 44, 122},  {59, 81, 139},
                                    {44, 113, 142}, {33, 144, 141}, {39, 173, 129},
                                    {92, 200, 99},  {170, 220, 50}, {253, 231, 37}};
  const double at = 8 * value;
  const size_t low = std::min(size_t(at), size_t(7));
  auto mixed = [&](int channel) {
    const double a = kStops[low][channel], b = kStops[low + 1][channel];
    return uint8_t(std::lround(a + (at - double(low)) * (b - a)));
  };
  return {mixed(0), mixed(1), mixed(2)};
}

bool close(const test::Colour& a, const test::Colour& b) {
  auto similar = [](int x, int y) { return std::abs(x - y) <= 1; };
  return similar(a.red, b.red) && similar(a.green, b.green) && similar(a.blue, b.blue);
}

}  // namespace

TEST_CASE(
    "report in a browser: no complaint, no request, pictures at two widths and in the dark "
    "(needs Chromium)") {
  if (skipped()) return;
  const std::string file = full_page();
  Browser browser(file, 1280, 900);
  browser.evaluate("brine.ready");
  CHECK(browser.evaluate("document.title") == "student, teacher");
  for (const char* section : {"attention", "tokens", "health", "curves", "trade", "made"}) {
    CAPTURE(section);
    CHECK(browser.evaluate(join("document.getElementById('", section, "').hidden")) == false);
  }
  const std::string wide = browser.screenshot();
  keep("wide.png", wide);
  CHECK(blank(wide, 1280) == "");
  browser.prefer("dark");
  const std::string dark = browser.screenshot();
  keep("dark.png", dark);
  CHECK(blank(dark, 1280) == "");
  const test::Colour light_corner = test::read_png(wide).at(2, 2);
  const test::Colour dark_corner = test::read_png(dark).at(2, 2);
  CHECK(light_corner.red > 200);
  CHECK(dark_corner.red < 60);
  browser.prefer("light");
  browser.resize(390, 844);
  browser.evaluate("new Promise((done) => setTimeout(done, 600))");
  const std::string narrow = browser.screenshot();
  keep("narrow.png", narrow);
  CHECK(blank(narrow, 390) == "");
  // Nothing is wider than a phone's window.
  CHECK(browser.evaluate("document.documentElement.scrollWidth") <= 390);
  const std::string pdf = browser.printed();
  keep("printed.pdf", pdf);
  CHECK(pdf.rfind("%PDF-", 0) == 0);
  CHECK(pdf.size() > 50000);
  CHECK(join_lines(browser.complaints()) == "");
  CHECK(join_lines(browser.requests()) == "");
}

TEST_CASE("report in a browser: choosing a layer and head shows their numbers (needs Chromium)") {
  if (skipped()) return;
  const std::string file = full_page();
  const Json data = page_data(read_all(file));
  Browser browser(file, 1280, 900);
  browser.evaluate("brine.ready");
  auto choose = [&](const std::string& id, const std::string& value) {
    browser.evaluate("(async () => { const s = document.getElementById('" + id + "'); s.value = '" +
                     value +
                     "'; s.dispatchEvent(new Event('change')); await new Promise((d) => "
                     "setTimeout(d, 300)); })()");
  };
  const Json& maps = data.at("attention").at("maps");
  const int64_t T = data.at("attention").at("tokens");
  for (const auto& [layer, head] : {std::pair<int64_t, int64_t>{0, 0}, {1, 2}, {0, 3}}) {
    choose("layer", std::to_string(layer));
    choose("head", std::to_string(head));
    const auto planes = planes_in(maps[size_t(layer * 4 + head)]);
    for (const std::string view : {"teacher", "widened", "mask", "student"}) {
      CAPTURE(view);
      const std::vector<double>& values = planes.at(view);
      const int64_t largest = std::max_element(values.begin(), values.end()) - values.begin();
      int64_t brighter = 0;
      for (const auto& [row, column] : {std::pair<int64_t, int64_t>{largest / T, largest % T},
                                        {T - 1, 0},
                                        {T - 1, T - 1},
                                        {T / 2, 2},
                                        {3, T - 2}}) {
        const double value = values[size_t(row * T + column)];
        const bool shares = view == "mask";
        const test::Colour wanted = viridis(shares ? value : report::place_of_mass(value));
        CHECK(close(drawn(browser, view, row, column), wanted));
        brighter += value > 0.01;
      }
      CHECK(brighter > 0);
    }
    // The keys move a cursor, whose numbers are read out.
    browser.evaluate("brine.views.teacher.canvas.focus(); brine.views.teacher.group.move({row: " +
                     std::to_string(T - 1) + ", column: 3})");
    browser.press("ArrowLeft");
    browser.press("ArrowUp");
    const std::string readout =
        browser.evaluate("document.getElementById('readout').textContent").get<std::string>();
    const double mass = planes.at("teacher")[size_t((T - 2) * T + 2)];
    CAPTURE(readout);
    CHECK(contains(readout, join("query ", T - 2)));
    CHECK(contains(readout, "key 2 "));
    const std::string said = readout.substr(readout.find("teacher ") + 8);
    if (mass == 0) {
      CHECK(said.rfind("< ", 0) == 0);
    } else {
      CHECK(std::stod(said) == doctest::Approx(mass).epsilon(1e-2));
    }
  }
  // Tokens of the text are text.
  const std::string text =
      browser.evaluate("document.getElementById('heat-text').textContent").get<std::string>();
  CHECK(text == "the king <script>x()</script> said");
  CHECK(browser.evaluate("typeof x") == "undefined");
  CHECK(join_lines(browser.complaints()) == "");
  CHECK(join_lines(browser.requests()) == "");
}

TEST_CASE("report in a browser: maps zoom, charts are saved (needs Chromium)") {
  if (skipped()) return;
  Browser browser(full_page(), 1280, 900);
  browser.evaluate("brine.ready");
  const std::string columns = "brine.views.teacher.window().columns";
  const Json whole = browser.evaluate(columns);
  browser.evaluate("document.getElementById('zoom-in').click()");
  const Json part = browser.evaluate(columns);
  CHECK(part[1].get<int>() - part[0].get<int>() < whole[1].get<int>() - whole[0].get<int>());
  browser.evaluate("document.getElementById('zoom-all').click()");
  CHECK(browser.evaluate(columns) == whole);
  // A chart is saved as the picture of the page, and as numbers.
  const std::string chart = "document.getElementById('chart-curve-loss')";
  browser.evaluate(
      "brine.saved = []; brine.save = (name, blob) => brine.saved.push(name + ' ' + blob.size);");
  browser.evaluate("for (const b of " + chart + ".querySelectorAll('button')) b.click()");
  browser.evaluate("new Promise((done) => setTimeout(done, 100))");
  const Json saved = browser.evaluate("brine.saved.sort()");
  REQUIRE(saved.size() == 2);
  CHECK(contains(saved[0].get<std::string>(), "curve-loss.csv "));
  CHECK(contains(saved[1].get<std::string>(), "curve-loss.svg "));
  CHECK(join_lines(browser.complaints()) == "");
}

TEST_CASE("report in a browser: a chart of 38 lines has whole names (needs Chromium)") {
  if (skipped()) return;
  const World& w = world();
  std::string rows = "attention\tk\tms\n";
  for (int i = 0; i < 38; ++i) {
    for (const int k : {16, 32}) {
      rows += join("method ", i, " with a long name that was cut before, k = ", i, "\t", k, "\t",
                   i + k / 2.0, "\n");
    }
  }
  w.write("many.tsv", rows);
  w.must("report many.tsv --out many.html");
  Browser browser(w.path("many.html"), 390, 844);
  browser.evaluate("brine.ready");
  // Every text is inside the picture; on a phone the picture scrolls, not the page.
  const std::string texts =
      "Array.from(document.querySelectorAll('#chart-many-ms svg text')).filter((x) => ";
  CHECK(browser.evaluate(texts + "/^method \\d+ with a long name that was cut before, k = \\d+$/"
                                 ".test(x.textContent)).length") == 38);
  CHECK(browser.evaluate(texts +
                         "{ const box = x.getBoundingClientRect(), all = "
                         "x.ownerSVGElement.getBoundingClientRect(); return box.left < all.left || "
                         "box.right > all.right || box.top < all.top || box.bottom > all.bottom; "
                         "}).length") == 0);
  CHECK(browser.evaluate("document.documentElement.scrollWidth") <= 390);
  keep("many.png", browser.screenshot());
  CHECK(join_lines(browser.complaints()) == "");
  CHECK(join_lines(browser.requests()) == "");
}

}  // namespace brine::tests
