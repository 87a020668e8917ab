// The progress line of a run. Rates are measured between calls.
#include "distill/log/progress.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "data/io/human.h"

namespace brine::distill {
namespace {

constexpr double kBarSeconds = 0.1;  // between redraws
constexpr int kBarCells = 20;

}  // namespace

double steady_seconds() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

std::string describe_values(const Values& values) {
  std::string text;
  for (const auto& [name, value] : values) {
    char number[40];
    std::snprintf(number, sizeof number, "%.4g", value);
    text += (text.empty() ? "" : ", ") + name + " " + number;
  }
  return text;
}

Progress::Progress(std::ostream& out, ProgressConfig config)
    : out_(out), config_(std::move(config)) {
  if (!config_.clock) config_.clock = steady_seconds;
  check(config_.every_seconds >= 0 && config_.every_steps >= 0 && config_.columns >= 0,
        "progress: intervals and columns must not be negative");
  mark_ = config_.clock();
}

Progress::~Progress() {
  if (bar_shown_) out_ << std::endl;
}

double Progress::step(const StepReport& report) {
  double time = config_.clock(), seconds = time - mark_;
  busy_ += seconds;
  mark_ = time;
  tokens_ += report.tokens;
  ++steps_seen_;
  if (!report.mask.empty()) mask_ = report.mask;
  if (report.done > 0 && first_done_ < 0) {
    first_done_ = report.done;
    busy_since_done_ = busy_;
  }
  bool last = report.step == report.total;
  bool due = shown_ < 0 || last ||
             time - shown_ >= (config_.columns > 0 ? kBarSeconds : config_.every_seconds);
  if (config_.columns == 0 && config_.every_steps > 0)
    due |= report.step % config_.every_steps == 0;
  if (!due) return seconds;
  std::string text = describe(report);
  if (config_.columns > 0) {
    draw_bar(report, text);
  } else {
    out_ << "step " << text << std::endl;
  }
  shown_ = time;
  // A bar is redrawn too often for a steady rate, so it counts for at least a second.
  if (config_.columns == 0 || busy_ - busy_before_ >= 1) {
    busy_before_ = busy_;
    tokens_ = 0;
  }
  return seconds;
}

void Progress::line(std::string_view text) {
  clear_bar();
  out_ << text << std::endl;
  mark_ = config_.clock();
}

std::string Progress::describe(const StepReport& report) const {
  std::string text = std::to_string(report.step);
  if (report.total > 0) text += "/" + std::to_string(report.total);
  double seconds = busy_ - busy_before_;
  if (report.tokens > 0 && seconds > 0)
    text += "  " + human_count(double(tokens_) / seconds) + " tokens/s";
  if (!mask_.empty()) text += "  " + describe_values(mask_);
  text += "  " + describe_values(report.values);
  if (double left = seconds_left(report); left > 0) text += "  ETA " + human_seconds(left);
  return text;
}

double Progress::seconds_left(const StepReport& report) const {
  if (report.done > first_done_ && first_done_ >= 0) {
    return std::max(0.0, 1 - report.done) * (busy_ - busy_since_done_) /
           (report.done - first_done_);
  }
  if (report.total <= report.step || steps_seen_ == 0) return -1;
  return double(report.total - report.step) * busy_ / double(steps_seen_);
}

void Progress::draw_bar(const StepReport& report, const std::string& text) {
  std::string bar;
  if (report.total > 0 || report.done > 0) {
    double share = report.done > 0 ? report.done : double(report.step) / double(report.total);
    int full = int(double(kBarCells) * std::min(1.0, share));
    bar = "[" + std::string(full, '=') + std::string(kBarCells - full, ' ') + "] ";
  }
  bar += text;
  if (int(bar.size()) >= config_.columns) bar.resize(std::max(config_.columns - 1, 0));
  out_ << "\r\x1b[K" << bar << std::flush;
  bar_shown_ = true;
}

void Progress::clear_bar() {
  if (bar_shown_) out_ << "\r\x1b[K";
  bar_shown_ = false;
}

}  // namespace brine::distill
