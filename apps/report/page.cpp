// The page: data as JSON, next to the files that show it.
#include <nlohmann/json.hpp>

#include "apps/evaluation/print.h"
#include "apps/report/pack.h"
#include "apps/report/report.h"
#include "apps/terminal/embedded_files.h"
#include "data/io/json.h"
#include "data/io/utf8.h"

namespace brine::report {
namespace {

using data::Json;

// What is left for maps after everything else, and what a few more characters in their JSON take.
constexpr size_t kMapSlack = 20000;

// The text of a block of tokens: all of a short one, the ends of a long one.
std::string block_text(const std::vector<std::string>& tokens, int64_t begin, int64_t end) {
  constexpr int64_t kEnds = 4;
  std::string out;
  for (int64_t i = begin; i < end; ++i) {
    if (end - begin > 2 * kEnds && i == begin + kEnds) {
      out += " ... ";
      i = end - kEnds;
    }
    out += tokens[size_t(i)];
  }
  return out;
}

// `packed` may have no heads yet.
Json json_of(const Attention& a, const PackedHeads& packed) {
  const distill::TextMaps& maps = packed.maps;
  const distill::Blocks cells(maps.tokens, maps.cells);
  Json starts = Json::array(), texts = Json::array(), heads = Json::array();
  for (int64_t c = 0; c <= cells.cells(); ++c) starts.push_back(cells.begin(c));
  for (int64_t c = 0; c < cells.cells(); ++c)
    texts.push_back(block_text(a.tokens, cells.begin(c), cells.begin(c + 1)));
  for (size_t i = 0; i < packed.heads.size(); ++i) {
    heads.push_back(
        {{"layer", maps.heads[i].layer}, {"head", maps.heads[i].head}, {"bytes", packed.heads[i]}});
  }
  Json out = {{"about", a.about},
              {"tokens", maps.tokens},
              {"cells", maps.cells},
              {"causal", maps.causal},
              {"planes", plane_names(maps)},
              {"starts", starts},
              {"texts", texts},
              {"maps", heads}};
  if (a.text.recall.empty()) return out;
  const std::vector<distill::MaskRow> rows = distill::mask_rows(a.text.recall);
  out["health"] = mask_table(rows);
  for (const distill::MaskRow& row : rows) {
    Json& layer = out["recall"].emplace_back(Json::array());
    for (const distill::RecallMeans& head : row.heads) layer.push_back(head[recall::kMask]);
  }
  return out;
}

Json everything_but_maps(const Report& report) {
  Json charts = Json::array(), made = Json::array();
  for (const Chart& chart : report.charts) charts.push_back(to_json(chart));
  if (report.attention)
    made.push_back({"Attention of " + report.attention->name, report.attention->settings});
  for (const RunInput& run : report.inputs.runs) made.push_back({"Run " + run.name, run.made});
  return {{"title", report.title}, {"program", report.program}, {"command", report.command},
          {"leastMass", kMinMass}, {"charts", charts},          {"made", made},
          {"attention", nullptr}};
}

std::string_view page_file(std::string_view name) {
  for (const auto& [known, text] : page_files())
    if (known == name) return text;
  throw Error("report: the page has no file of this name");
}

// The template with each "/*NAME*/" replaced by the file of that name, "/*data*/" by the data.
std::string assembled(const std::string& title, const Json& content) {
  const std::string_view html = page_file("page.html");
  std::string out;
  for (size_t at = 0; at < html.size();) {
    const size_t mark = html.find("/*", at), end = html.find("*/", mark);
    if (mark == html.npos) {
      out += html.substr(at);
      break;
    }
    out += html.substr(at, mark - at);
    const std::string_view name = html.substr(mark + 2, end - mark - 2);
    // Without "<" no text can end an element or begin another.
    if (name == "data") {
      out += data::replaced(printable_json(content), "<", "\\u003c");
    } else if (name == "title") {
      out += data::replaced(data::replaced(title, "&", "&amp;"), "<", "&lt;");
    } else {
      out += page_file(name);
    }
    at = end + 2;
  }
  return out;
}

}  // namespace

std::string page(const Report& report, const Request& request) {
  Json data = everything_but_maps(report);
  const Attention* a = report.attention ? &*report.attention : nullptr;
  if (a) data["attention"] = json_of(*a, {.maps = a->text.maps, .heads = {}});
  const size_t limit = size_t(request.max_bytes);
  const size_t used = assembled(report.title, data).size();  // what is left is for maps
  check(used <= limit, "report: the page has ", used, " bytes without maps, --max-bytes is ", limit,
        "; give fewer inputs");
  if (!a) return assembled(report.title, data);
  const size_t left = limit - used > kMapSlack ? limit - used - kMapSlack : 0;
  data["attention"] = json_of(*a, pack_heads(a->text.maps, left));
  const std::string out = assembled(report.title, data);
  check(out.size() <= limit, "report: the page has ", out.size(),
        " bytes with the coarsest maps, --max-bytes ", limit, "; give some --layers or --heads");
  return out;
}

}  // namespace brine::report
