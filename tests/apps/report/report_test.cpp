// What brine report writes: a page's data against a pass of the model, and what it refuses.
#include "apps/report/report.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/apps/report/page.h"
#include "tests/apps/world.h"
#include "tests/skip.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::json;

// The maps of a pass of the student over the ids of a page.
distill::TextAttention pass_over(const Json& attention, const std::string& teacher) {
  nn::LoadedModel m = nn::load_model(world().path("student"));
  const nn::ModelShape shape = m.config.shape();
  distill::TextPass pass{.teacher = teacher, .maps = {.cells = shape.max_positions}};
  const auto tokenizer = data::load_tokenizer(world().path("tok"));
  std::string text;
  for (const auto& word : attention.at("texts")) text += word.get<std::string>();
  pass.ids = tokenizer->encode(text);
  return distill::attend_to_text(m, pass);
}

}  // namespace

TEST_CASE("report: masses as bytes are within 2.4 percent, shares within half a step") {
  CHECK(report::byte_of_mass(0) == 0);
  CHECK(report::byte_of_mass(0.99 * report::kMinMass) == 0);
  CHECK(report::byte_of_mass(report::kMinMass) == 1);
  CHECK(report::byte_of_mass(NAN) == 0);
  CHECK(report::byte_of_mass(1) == 255);
  CHECK(report::byte_of_mass(2) == 255);
  for (double mass = 1.02e-5; mass < 1; mass *= 1.0173)
    CHECK(value_of("teacher", report::byte_of_mass(mass)) == doctest::Approx(mass).epsilon(0.024));
  for (int i = 0; i <= 255; ++i) {
    CHECK(report::byte_of_share(i / 255.0) == i);
    CHECK(report::byte_of_mass(value_of("teacher", uint8_t(i))) == i);
  }
}

TEST_CASE("report: the maps of a page are those of the model's pass, text stays text") {
  const std::string html =
      written(std::string("student --teacher teacher ") + kText + "--title '<b>of & \"it\"</b>'");
  CHECK(html.size() < 2000000);
  CHECK_FALSE(contains(html, "<script>x()"));
  CHECK_FALSE(contains(html, "<b>of"));
  CHECK(contains(html, "<title>&lt;b>of &amp; \"it\"&lt;/b></title>"));
  CHECK(contains(html, "default-src 'none'"));  // a browser refuses every request
  const Json data = page_data(html);
  CHECK(data.at("title") == "<b>of & \"it\"</b>");
  CHECK(contains(data.at("command").get<std::string>(), "brine report student --teacher teacher"));
  const Json& a = data.at("attention");
  CHECK(a.at("about").get<std::string>().rfind("student: sea, k = 4 keys", 0) == 0);
  CHECK(a.at("planes") == Json({"teacher", "estimate", "mask", "student"}));
  const distill::TextAttention expected = pass_over(a, world().path("teacher"));
  const int64_t T = expected.maps.tokens;
  CHECK(a.at("tokens") == T);
  CHECK(a.at("cells") == T);  // a short text is not averaged
  REQUIRE(a.at("maps").size() == 2 * 4);
  for (size_t i = 0; i < 8; ++i) {
    CHECK(a.at("maps")[i].at("layer") == i / 4);
    CHECK(a.at("maps")[i].at("head") == i % 4);
    auto planes = planes_in(a, i);
    const distill::HeadMaps& maps = expected.maps.heads[i];
    for (int64_t r = 0; r < T; ++r) {
      double mass = 0;
      for (int64_t c = 0; c < T; ++c) {
        const auto at = size_t(r * T + c);
        for (const auto& [name, map] : {std::pair("teacher", distill::Picture::teacher),
                                        {"estimate", distill::Picture::estimate},
                                        {"student", distill::Picture::student}}) {
          const double wanted = maps[map].mass(r, c);
          if (wanted > 1.1e-5) {
            CHECK(planes.at(name)[at] == doctest::Approx(wanted).epsilon(0.025));
          } else {
            CHECK(planes.at(name)[at] <= 1.2e-5);
          }
        }
        CHECK(planes.at("mask")[at] == doctest::Approx(maps[distill::Picture::mask].sum(r, c)));
        mass += planes.at("student")[at];
      }
      CHECK(mass == doctest::Approx(1).epsilon(0.05));
    }
  }
  // Recall as the evaluation next to the teacher counts it, by layer and head.
  CHECK(contains(a.at("health").get<std::string>(), "mask recall  by layer"));
  const Json& recall = a.at("recall");
  REQUIRE(recall.size() == 3);
  for (size_t layer = 0; layer < 2; ++layer) {
    for (size_t head = 0; head < 4; ++head) {
      CHECK(recall[layer][head].get<double>() ==
            doctest::Approx(expected.recall[layer].mean(recall::kMask, int64_t(head))));
    }
  }
  const Json& chart = chart_of(data, "Mask recall by layer, student");
  CHECK(chart.at("section") == "health");
  CHECK(chart.at("lines").size() == 6);
  CHECK(chart.at("lines")[0].at("points")[1][1].get<double>() ==
        doctest::Approx(expected.recall[1].mean(recall::kMask)));
}

TEST_CASE("report: a map that does not fit is averaged, never cut") {
  const std::string words = "--text 'the king said unto his people and went' ";
  const Json fine = page_data(written("student " + words)).at("attention");
  const Json coarse = page_data(written("student --cells 4 " + words)).at("attention");
  const auto T = fine.at("tokens").get<size_t>();
  CHECK(coarse.at("tokens") == T);
  CHECK(coarse.at("cells") == 4);
  CHECK(coarse.at("starts").back() == T);
  for (size_t head = 0; head < 8; ++head) {
    auto single = planes_in(fine, head), block = planes_in(coarse, head);
    for (size_t r = 0; r < 4; ++r) {
      for (size_t c = 0; c < 4; ++c) {
        const auto from = coarse.at("starts")[r].get<size_t>();
        const auto end = coarse.at("starts")[r + 1].get<size_t>();
        double sum = 0;
        for (size_t t = from; t < end; ++t) {
          for (size_t j = coarse.at("starts")[c]; j < coarse.at("starts")[c + 1].get<size_t>();
               ++j) {
            sum += single.at("teacher")[t * T + j];
          }
        }
        CHECK(block.at("teacher")[4 * r + c] ==
              doctest::Approx(sum / double(end - from)).epsilon(0.06));
      }
    }
  }
}

TEST_CASE("report: some layers and heads, and a page that may not be larger") {
  const std::string some = std::string("student ") + kText + "--layers 1 --heads 0 3";
  const Json a = page_data(written(some)).at("attention");
  REQUIRE(a.at("maps").size() == 2);
  CHECK(a.at("maps")[1].at("layer") == 1);
  CHECK(a.at("maps")[1].at("head") == 3);
  CHECK(written(std::string("student ") + kText + "--max-bytes 1000000").size() <= 1000000);
  check_says(refusal(std::string("student ") + kText + "--layers 2"), {"no layer 2", "0"});
  check_says(refusal(std::string("student ") + kText + "--heads 4"), {"no head 4"});
}

TEST_CASE("report: long curves are means on the page") {
  const World& w = world();
  fs::create_directories(w.path("long-log"));
  std::string log;
  for (int step = 1; step <= 2000; ++step) {
    log += join("{\"type\":\"step\",\"step\":", step, ",\"loss\":", step % 4,
                ".5,\"layer.3\":1,\"layer.3.recall\":2}\n");
  }
  w.write("long-log/log.jsonl", log);
  const Json data = page_data(written("long-log"));
  const Json& loss = chart_of(data, "loss");
  const Json& points = loss.at("lines")[0].at("points");
  REQUIRE(points.size() == 500);
  CHECK(points[0][0] == 2.5);
  for (const Json& point : points) CHECK(point[1].get<double>() == doctest::Approx(2));
  CHECK(contains(loss.at("note").get<std::string>(), "means of neighbours"));
  for (const char* of_layer : {"loss by layer, long-log", "recall by layer, long-log"})
    CHECK(chart_of(data, of_layer).at("lines")[0].at("name") == "layer 3");
}

TEST_CASE("report: axes of charts are logarithmic over decades only") {
  const World& w = world();
  w.write("ppl.tsv", "attention\tk\tperplexity\na\t16\t22.5\na\t256\t22.25\n");
  const Json chart = chart_of(page_data(written("ppl.tsv")), "perplexity of ppl");
  CHECK(chart.at("log_x") == true);
  CHECK(chart.at("log_y") == false);
  CHECK(chart.at("x") == "kept keys k");
  CHECK(chart.at("lines") ==
        Json::parse(R"([{"name": "a", "points": [[16, 22.5], [256, 22.25]]}])"));
}

TEST_CASE("report: the curves of several runs are those of their logs") {
  const Json data = page_data(written("student teacher"));
  const Json& loss = chart_of(data, "loss");
  REQUIRE(loss.at("lines").size() == 2);
  CHECK(loss.at("lines")[0].at("name") == "student");
  const auto log = distill::read_log(world().path("teacher/log.jsonl"));
  size_t point = 0;
  for (const distill::LogRecord& record : log) {
    for (const auto& [name, value] : record.values) {
      if (name != "loss") continue;
      CHECK(loss.at("lines")[1].at("points")[point][0] == record.step);
      CHECK(loss.at("lines")[1].at("points")[point++][1].get<double>() == doctest::Approx(value));
    }
  }
  CHECK(point == 3);
  for (const char* title : {"approx", "prob", "mask_recall", "valid_perplexity"})
    chart_of(data, title);
  const std::string made = data.at("made")[0][1].get<std::string>();
  CHECK(contains(made, "\nbrine distill --config"));
  CHECK(contains(made, "columns = 12"));
}

TEST_CASE("report: keys read against perplexity and recall from a sweep") {
  const World& w = world();
  fs::remove(w.path("trade.tsv"));
  w.must(
      "sweep --model student --teacher teacher --data text.txt --k 2 4 --max-windows 2 --floors "
      "--out trade.tsv");
  const Json data = page_data(written("trade.tsv student"));
  const Json& perplexity = chart_of(data, "perplexity of trade");
  CHECK(perplexity.at("section") == "trade");
  bool found = false;
  std::istringstream table(read_all(w.path("trade.tsv")));
  for (std::string line; std::getline(table, line);) {
    std::istringstream cells(line);
    std::string name, k, value;
    std::getline(cells, name, '\t');
    std::getline(cells, k, '\t');
    std::string keys_read;
    std::getline(cells, keys_read, '\t');
    std::getline(cells, value, '\t');
    if (name != "student" || k != "4") continue;
    for (const Json& each : perplexity.at("lines")) {
      if (each.at("name") != "student") continue;
      found = true;
      CHECK(double(each.at("points")[1][0]) == std::stod(keys_read));
      CHECK(each.at("points")[1][1].get<double>() == doctest::Approx(std::stod(value)));
    }
  }
  CHECK(found);
  for (const Json& each : perplexity.at("lines")) {
    // At every number of keys that another row reads.
    if (each.at("name") == "teacher, dense") CHECK(each.at("points").size() > 2);
  }
  chart_of(data, "mask_recall of trade");
}

TEST_CASE("report: the lines of a sweep over f have the names of their f") {
  const World& w = world();
  w.write("skips.tsv", "k\tquery_skip\tperplexity\n2\t1\t9.5\n2\t4\t9.75\n4\t1\t9\n");
  const Json data = page_data(written("skips.tsv"));
  const Json& lines = chart_of(data, "perplexity of skips").at("lines");
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].at("name") == "query skip 1");
  CHECK(lines[0].at("points") == Json({{2, 9.5}, {4, 9}}));
  CHECK(lines[1].at("points") == Json({{2, 9.75}}));
}

}  // namespace brine::tests
