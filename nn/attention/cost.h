// What a forward pass costs, foretold from sizes: `brine flops`. A test holds the formulas to what
// tensor/meter/cost_meter.h counts while the ops run.
#pragma once

#include <initializer_list>
#include <map>
#include <string>

namespace brine::nn {

// Multiply-adds, and bytes when every op reads its inputs and writes its output once.
struct CostLine {
  double macs = 0, bytes = 0;
};

// Costs by component, in f32.
class CostTable {
 public:
  // An op: its multiply-adds, and the sizes of its inputs and its output in elements.
  void op(const std::string& component, double macs, std::initializer_list<double> elements) {
    CostLine& line = lines_[component];
    line.macs += macs;
    for (double n : elements) line.bytes += 4 * n;
  }
  // y [rows, out] = x [rows, in] w^T + bias
  void linear(const std::string& component, double rows, double in, double out, bool bias = true) {
    op(component, rows * in * out, {rows * in, in * out, bias ? out : 0, rows * out});
  }
  void bytes(const std::string& component, double bytes) { lines_[component].bytes += bytes; }
  void add(const CostTable& other, double times = 1) {
    for (const auto& [component, line] : other.lines_) {
      lines_[component].macs += times * line.macs;
      lines_[component].bytes += times * line.bytes;
    }
  }
  const std::map<std::string, CostLine>& lines() const { return lines_; }
  CostLine total() const {
    CostLine sum;
    for (const auto& [component, line] : lines_) {
      sum.macs += line.macs;
      sum.bytes += line.bytes;
    }
    return sum;
  }

 private:
  std::map<std::string, CostLine> lines_;
};

}  // namespace brine::nn
