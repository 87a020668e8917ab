// A tensor as text: a line with shape, type and device, then values, at most one screen.
#include <algorithm>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

#include "tensor/tensor.h"

namespace brine {
namespace {

constexpr size_t kLines = 23;  // of values, after the line that describes the tensor
constexpr int64_t kEdge = 4;   // of an axis longer than twice this only the ends
const char* const kGap = "...";

template <class T>
std::string text_of(T value) {
  if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else {
    using Printed = std::conditional_t<std::is_same_v<T, double>, double, float>;
    char text[32];
    std::snprintf(text, sizeof text, "%.5g", double(Printed(value)));
    return text;
  }
}

// f(i) for the shown indices of an axis, gap() in the middle of a long one.
template <class F, class Gap>
void each_shown(int64_t n, F f, Gap gap) {
  const bool cut = n > 2 * kEdge;
  for (int64_t i = 0; i < n; ++i) {
    if (cut && i == kEdge) {
      gap();
      i = n - kEdge;
    }
    f(i);
  }
}

// An innermost row: `before` opens the brackets of the axes that begin with it, `after` closes
// those that end with it.
struct Line {
  std::string before, after;
  std::vector<std::string> texts = {};
};

void walk(const Tensor& x, size_t depth, const std::string& before, const std::string& after,
          std::vector<Line>& lines) {
  const int64_t n = x.dim(0);
  if (x.rank() == 1) {
    Line line{before + "[", "]" + after};
    dispatch_any(x.dtype(), [&]<class T>() {
      each_shown(
          n, [&](int64_t i) { line.texts.push_back(text_of(x.slice(0, i, 1).data<T>()[0])); },
          [&] { line.texts.emplace_back(kGap); });
    });
    return lines.push_back(std::move(line));
  }
  const std::string indent(depth + 1, ' ');
  each_shown(
      n,
      [&](int64_t i) {
        walk(x.select(0, i), depth + 1, i == 0 ? before + "[" : indent,
             i == n - 1 ? "]" + after : ",", lines);
      },
      [&] {
        lines.push_back({indent + kGap, ""});
      });
}

std::string format(const Line& line, size_t width) {
  std::string out = line.before;
  for (size_t i = 0; i < line.texts.size(); ++i) {
    const std::string& text = line.texts[i];
    out += i ? ", " : "";
    if (text != kGap) out.append(width - text.size(), ' ');
    out += text;
  }
  return out + line.after;
}

}  // namespace

std::ostream& operator<<(std::ostream& os, const Tensor& x) {
  if (!x.defined()) return os << "Tensor (undefined)";
  os << "Tensor " << x.shape() << " " << x.dtype() << " " << x.device();
  if (x.device().is_meta()) return os << " without values";
  if (x.numel() == 0) return os << "\n[]";
  const Tensor host = x.detach().contiguous().to(Device{});
  std::vector<Line> lines;
  walk(host.rank() ? host : host.view({1}), 0, "", "", lines);
  if (host.rank() == 0) return os << "\n" << lines[0].texts[0];
  if (lines.size() > kLines) {
    lines.resize(kLines - 1);
    lines.push_back({kGap, ""});
  }
  size_t width = 1;
  for (const Line& line : lines) {
    for (const std::string& text : line.texts) width = std::max(width, text.size());
  }
  for (const Line& line : lines) os << "\n" << format(line, width);
  return os;
}

}  // namespace brine
