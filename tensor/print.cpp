// A tensor as text: a line with shape, type and device, then values, at most one screen.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>
#include <vector>

#include "tensor/tensor.h"

namespace brine {
namespace {

constexpr size_t kLines = 23;  // of values, after the line that describes the tensor
constexpr size_t kColumns = 100;

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

// All values of a vector, which may be strided and on a device.
void append_texts(const Tensor& x, std::vector<std::string>& texts) {
  const Tensor host = x.contiguous().to(Device{});
  dispatch_any(host.dtype(), [&]<class T>() {
    for (int64_t i = 0; i < host.numel(); ++i) texts.push_back(text_of(host.data<T>()[i]));
  });
}

// One innermost row: the texts of its values, and the index after which others were omitted.
struct Row {
  std::vector<std::string> texts;
  size_t gap = SIZE_MAX;
};

// Visits the axes of a tensor; of an axis longer than 2 `edge` only the ends.
class Lines {
 public:
  Lines(const Tensor& x, int64_t edge, int64_t row_edge) : edge_(edge), row_edge_(row_edge) {
    walk(x, 0, "", "");
    size_t width = 1;
    for (const Line& line : lines_) {
      for (const std::string& text : line.row.texts) width = std::max(width, text.size());
    }
    for (const Line& line : lines_) texts_.push_back(format(line, width));
  }

  const std::vector<std::string>& texts() const { return texts_; }
  size_t width() const {
    size_t longest = 0;
    for (const std::string& text : texts_) longest = std::max(longest, text.size());
    return longest;
  }

 private:
  struct Line {
    std::string before, after;
    Row row;
    bool is_gap = false;
  };

  // `before` opens the brackets of the axes above that begin with this line; `after` closes those
  // that end with it.
  void walk(const Tensor& x, size_t depth, const std::string& before, const std::string& after) {
    if (x.rank() == 1) {
      lines_.push_back({before + "[", "]" + after, row_of(x), false});
      return;
    }
    const int64_t n = x.dim(0);
    const std::string indent(depth + 1, ' ');
    if (n == 0) lines_.push_back({before + "[]", after, {}, true});
    for (int64_t i = 0; i < n; ++i) {
      if (n > 2 * edge_ && i == edge_) {
        lines_.push_back({indent + "...", "", {}, true});
        i = n - edge_;
      }
      walk(x.select(0, i), depth + 1, i == 0 ? before + "[" : indent,
           i == n - 1 ? "]" + after : ",");
    }
  }

  Row row_of(const Tensor& x) const {
    Row row;
    const int64_t n = x.dim(0);
    if (n <= 2 * row_edge_) {
      append_texts(x, row.texts);
      return row;
    }
    append_texts(x.slice(0, 0, row_edge_), row.texts);
    row.gap = row.texts.size();
    append_texts(x.slice(0, n - row_edge_, row_edge_), row.texts);
    return row;
  }

  static std::string format(const Line& line, size_t width) {
    std::string out = line.before;
    for (size_t i = 0; i < line.row.texts.size(); ++i) {
      if (i) out += ", ";
      if (i == line.row.gap) out += "..., ";
      out += std::string(width - line.row.texts[i].size(), ' ') + line.row.texts[i];
    }
    return out + line.after;
  }

  int64_t edge_, row_edge_;
  std::vector<Line> lines_;
  std::vector<std::string> texts_;
};

// The longest ends of axes and rows that fit on a screen; if there are still too many lines (many
// axes), they are cut off.
std::vector<std::string> fitting_lines(const Tensor& x) {
  std::vector<std::string> lines;
  for (int64_t edge : {11, 5, 3, 2, 1}) {
    for (int64_t row_edge : {16, 10, 8, 6, 5, 4, 3, 2, 1}) {
      const Lines all(x, edge, row_edge);
      lines = all.texts();
      if (lines.size() > kLines && edge > 1) break;
      if (all.width() <= kColumns) {
        if (lines.size() <= kLines) return lines;
        break;
      }
    }
  }
  lines.resize(kLines - 1);
  lines.push_back("...");
  return lines;
}

}  // namespace

std::ostream& operator<<(std::ostream& os, const Tensor& x) {
  if (!x.defined()) return os << "Tensor (undefined)";
  os << "Tensor " << x.shape() << " " << x.dtype() << " " << x.device();
  if (x.device().is_meta()) return os << " without values";
  const Tensor values = x.detach();
  if (values.rank() == 0) {
    std::vector<std::string> text;
    append_texts(values.view({1}), text);
    return os << "\n" << text[0];
  }
  if (values.numel() == 0) return os << "\n[]";
  for (const std::string& line : fitting_lines(values)) os << "\n" << line;
  return os;
}

}  // namespace brine
