// Charts of logs: losses, recall and validation over steps.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>

#include "apps/report/charts.h"
#include "distill/losses/loss_table.h"

namespace brine::report {
namespace {

// Values of a step that say how it went, not what was learned.
constexpr const char* kBookkeeping[] = {"total", "seconds", "tokens", "worst_layer"};

// What logs contain.
struct Known {
  std::string name, meaning;
  bool log;  // spans orders of magnitude
};

// In the order of the page; other values come after them.
const std::vector<Known>& known_values() {
  static const std::vector<Known> all = [] {
    std::vector<Known> out = {{"loss", "all losses, weighted", true}};
    for (const distill::Loss& loss : distill::losses()) {
      const std::string& help = loss.help;  // "Weight of L_kd: layer outputs"
      const size_t colon = help.find(": ");
      out.push_back({loss.name,
                     (colon == std::string::npos ? help : help.substr(colon + 2)) + ", weighted",
                     true});
    }
    out.insert(out.end(),
               {{"task_nll", "negative log-likelihood of a token in training, nats", false},
                {"worst_loss", "loss of the worst layer", true},
                {"valid_perplexity", "perplexity of the validation text", true},
                {"valid_nll", "negative log-likelihood of a validation token, nats", false},
                {"mask_recall", "teacher's attention on the kept keys, mean over heads", false},
                {"mask_recall_min", "the same of the worst head", false},
                {"mask_recall_p10", "the same, 10th percentile of the heads", false},
                {"mask_top1_hit", "share of queries whose heaviest key is kept", false},
                {"gradient_norm", "norm of the gradient before clipping", true},
                {"rate", "learning rate", false},
                {"tokens_per_second", "tokens a second", false}});
    return out;
  }();
  return all;
}

const Known* known(const std::string& name) {
  for (const Known& each : known_values()) {
    if (each.name == name) return &each;
  }
  return nullptr;
}

std::string spaced(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

// "layer.3.recall" -> 3 and "recall"; "layer.3" -> 3 and "loss".
std::optional<std::pair<int64_t, std::string>> of_layer(const std::string& name) {
  if (name.rfind("layer.", 0) != 0) return std::nullopt;
  int64_t layer = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + 6, end, layer);
  if (error != std::errc()) return std::nullopt;
  if (rest == end) return std::pair(layer, std::string("loss"));
  return *rest == '.' ? std::optional(std::pair(layer, std::string(rest + 1, end))) : std::nullopt;
}

// Charts under construction, in the order of their first values.
class Curve {
 public:
  void add(const std::string& id, const std::string& title, const std::string& name,
           const std::string& line, int64_t step, double value) {
    if (!std::isfinite(value)) return;  // has no place; the log still has it
    auto chart = std::find_if(charts_.begin(), charts_.end(),
                              [&](const Chart& each) { return each.id == id; });
    if (chart == charts_.end()) {
      const Known* about = known(name);
      Chart made{.id = id, .section = Section::curves, .lines = {}, .note = {}};
      made.lines.title = title;
      made.lines.x_label = "step";
      made.lines.y_label = about ? about->meaning : name;
      made.lines.log_y = about && about->log;
      chart = charts_.insert(charts_.end(), std::move(made));
    }
    auto& lines = chart->lines.lines;
    auto found = std::find_if(lines.begin(), lines.end(),
                              [&](const figure::Line& each) { return each.name == line; });
    if (found == lines.end()) found = lines.insert(lines.end(), {.name = line, .points = {}});
    found->points[double(step)] = {value};
    chart->lines.log_y = chart->lines.log_y && value > 0;
  }
  Charts take() {
    auto place = [&all = known_values()](const Chart& chart) {
      return std::find_if(all.begin(), all.end(), [&](const Known& each) {
        return chart.id == "curve-" + id_of(each.name);
      });
    };
    std::stable_sort(charts_.begin(), charts_.end(),
                     [&](const Chart& a, const Chart& b) { return place(a) < place(b); });
    return std::move(charts_);
  }

 private:
  Charts charts_;
};

}  // namespace

Charts curve_charts(const std::vector<Curves>& runs) {
  Curve curve;
  for (const Curves& run : runs) {
    for (const distill::LogRecord& record : run.log) {
      for (const auto& [name, value] : record.values) {
        const bool skipped = std::any_of(std::begin(kBookkeeping), std::end(kBookkeeping),
                                         [&, key = name](const char* each) { return key == each; });
        if (skipped) continue;
        if (const auto layer = of_layer(name)) {
          const std::string what = layer->second + " by layer, " + run.run;
          curve.add("curve-" + id_of(what), what, layer->second, join("layer ", layer->first),
                    record.step, value);
        } else {
          curve.add("curve-" + id_of(name), spaced(name), name, run.run, record.step, value);
        }
      }
    }
  }
  return curve.take();
}

}  // namespace brine::report
