// Mask recall: sums and means.
#include "distill/evaluation/recall.h"

#include <algorithm>
#include <numeric>

#include "autograd/ops.h"
#include "tensor/base/parallel.h"
#include "tensor/comm/bytes.h"

namespace brine::distill {
namespace {

using Ways = std::array<double, recall::kWays>;

constexpr int64_t kTileOfRows = 64;  // rows of the teacher's map at a time

// The rows of sequence b that count: those that see more than k keys, or as many of them as are
// counted, evenly spaced.
std::vector<int64_t> counted_rows(const RowWidths& widths, int64_t b, int64_t k) {
  const int64_t end = widths.valid(b);
  int64_t from = 0;
  while (from < end && widths(b, from) <= k) ++from;
  const int64_t all = std::max<int64_t>(0, end - from), count = std::min(all, recall::kRows);
  std::vector<int64_t> rows(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) rows[size_t(i)] = from + (2 * i + 1) * all / (2 * count);
  return rows;
}

// The teacher's attention in rows of sequence b, [H, rows, T] in f64 on the CPU; 0 beyond the keys
// that a row sees.
Tensor map_of(const TeacherAttention& teacher, int64_t b, const std::vector<int64_t>& rows,
              const RowWidths& widths) {
  const Tensor& like = teacher.map.defined() ? teacher.map : teacher.q;
  const int64_t n = int64_t(rows.size()), H = like.dim(1), T = like.dim(2);
  std::vector<double> seen;
  for (int64_t t : rows) seen.push_back(double(widths(b, t)));
  const Tensor keys = arange(T, Dtype::f64), index = Tensor::from(rows, {1, n, 1});
  const Tensor mask = less(keys, Tensor::from(seen, {n, 1})).to(like.device());
  auto part = [&](const Tensor& x) {
    return x.detach().select(0, b).to(sum_type(x.dtype())).contiguous();
  };
  if (teacher.map.defined()) {
    return where(mask, gather(part(teacher.map), 1, index), 0).to(Dtype::f64).to(Device{});
  }
  const Tensor scores = matmul(gather(part(teacher.q), 1, index), part(teacher.k), false, true);
  const Tensor visible = broadcast_to(mask, {H, n, T});
  const double scale = 1 / std::sqrt(double(teacher.q.dim(3)));
  return masked_softmax(scores, visible, scale).to(Dtype::f64).to(Device{});
}

// The keys of a row that sees w of them.
struct SeenRow {
  const double* mass;  // of each key
  int64_t head, t, w;

  double sum(int64_t first, int64_t end) const {
    return std::accumulate(mass + first, mass + end, 0.0);
  }
  // The first of the n of [from, w) nearest to t. In encoders as
  // in the attention method "recent".
  int64_t nearest(bool causal, int64_t n, int64_t from = 0) const {
    return causal ? w - n : std::clamp(t - n / 2, from, w - n);
  }
};

// Calls f(key) for the entries of a mask on the CPU; returns their number.
template <class F>
int64_t each_entry(const FlatCsr& csr, int64_t b, const SeenRow& row, F&& f) {
  const int64_t line = b * csr.length + row.t;
  const int32_t* offset = csr.head_offsets.data<int32_t>() + line * (csr.heads + 1) + row.head;
  const int64_t* start = csr.row_pointers.data<int64_t>() + b * (csr.length + 1) + row.t;
  const int32_t* columns = csr.columns.data<int32_t>() + *start;
  for (int32_t e = offset[0]; e < offset[1]; ++e) f(columns[e] - row.head * csr.keys);
  return offset[1] - offset[0];
}

// What the mask has in a row; returns the number of its keys.
int64_t add_mask(Ways& sums, const FlatCsr& csr, int64_t b, const SeenRow& row, bool causal) {
  const int64_t close = std::min(row.w, recall::kNear), near = row.nearest(causal, close);
  double mass = 0, of_near = 0, of_first = 0, heaviest = 0;
  const int64_t n = each_entry(csr, b, row, [&](int64_t key) {
    const double value = row.mass[key];
    mass += value;
    of_near += key >= near && key < near + close ? value : 0;
    of_first += key < recall::kSinks ? value : 0;
    heaviest = std::max(heaviest, value);
  });
  sums[recall::kMask] += mass;
  sums[recall::kTopHit] += n > 0 && heaviest >= *std::max_element(row.mass, row.mass + row.w);
  sums[recall::kNearMask] += mass > 0 ? of_near / mass : 0;
  sums[recall::kFirstMask] += mass > 0 ? of_first / mass : 0;
  sums[recall::kNearAll] += row.sum(near, near + close);
  sums[recall::kFirstAll] += row.sum(0, std::min(row.w, recall::kSinks));
  return n;
}

// The masks of n keys that do not depend on the attention.
void add_fixed(Ways& sums, const SeenRow& row, int64_t n, bool causal) {
  const int64_t recent = row.nearest(causal, n);
  sums[recall::kRecent] += row.sum(recent, recent + n);
  const int64_t sinks = n > recall::kSinks ? recall::kSinks : std::max<int64_t>(0, n - 1);
  const int64_t rest = row.nearest(causal, n - sinks, sinks);
  sums[recall::kSinksRecent] += row.sum(0, sinks) + row.sum(rest, rest + n - sinks);
}

// Adds the largest masses of rows that share `budget` keys.
void add_top(std::vector<Ways>& sums, const std::vector<SeenRow>& rows, int64_t budget) {
  std::vector<std::pair<double, size_t>> all;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t j = 0; j < rows[i].w; ++j) all.emplace_back(rows[i].mass[j], i);
  }
  std::nth_element(all.begin(), all.begin() + budget, all.end(), std::greater<>());
  for (int64_t i = 0; i < budget; ++i)
    sums[all[size_t(i)].second][recall::kTopKeys] += all[size_t(i)].first;
}

// The sums of rows of sequence b that share a budget: the keys that the mask has there.
std::vector<Ways> sums_of_group(const std::vector<SeenRow>& rows, const FlatCsr& csr,
                                const FlatCsr& best, int64_t b, bool causal) {
  std::vector<Ways> sums(rows.size(), Ways{});
  const auto members = int64_t(rows.size());
  int64_t budget = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    budget += add_mask(sums[i], csr, b, rows[i], causal);
    each_entry(best, b, rows[i],
               [&](int64_t key) { sums[i][recall::kBestColumns] += rows[i].mass[key]; });
  }
  add_top(sums, rows, budget);
  for (int64_t i = 0; i < members; ++i) {
    const SeenRow& row = rows[size_t(i)];
    const int64_t share = budget / members + (i < budget % members ? 1 : 0);
    add_fixed(sums[size_t(i)], row, std::min(share, row.w), causal);
    sums[size_t(i)][recall::kRandom] +=
        row.sum(0, row.w) * double(budget) / double(members * row.w);
  }
  return sums;
}

FlatCsr on_cpu(FlatCsr csr) {
  csr.row_pointers = csr.row_pointers.to(Device{});
  csr.head_offsets = csr.head_offsets.to(Device{});
  csr.columns = csr.columns.to(Device{});
  return csr;
}

}  // namespace

double Recall::mean(recall::Way way, int64_t head) const {
  return rows > 0 ? sums[way][size_t(head)] / double(rows) : 0;
}

double Recall::mean(recall::Way way) const {
  const double sum = std::accumulate(sums[way].begin(), sums[way].end(), 0.0);
  return rows > 0 && heads() > 0 ? sum / double(rows) / double(heads()) : 0;
}

Recall& Recall::operator+=(const Recall& other) {
  if (sums[0].empty()) {
    for (auto& way : sums) way.assign(other.sums[0].size(), 0);
  }
  check(heads() == other.heads(), "recall: ", other.heads(), " heads cannot be added to ", heads());
  for (size_t way = 0; way < sums.size(); ++way) {
    for (size_t h = 0; h < sums[way].size(); ++h) sums[way][h] += other.sums[way][h];
  }
  rows += other.rows;
  read += other.read;
  all_rows += other.all_rows;
  return *this;
}

FlatCsr mask_of(const nn::Tap& tap) {
  const Tensor& q = tap.get("q");  // [B, H, T, d]
  return {.row_pointers = tap.get("row_pointers"),
          .head_offsets = tap.get("head_offsets"),
          .columns = tap.get("columns"),
          .batch = q.dim(0),
          .heads = q.dim(1),
          .length = q.dim(2),
          .keys = q.dim(2)};
}

std::string bytes_of(const std::vector<Recall>& layers) {
  ByteWriter out;
  for (const Recall& layer : layers) {
    for (const std::vector<double>& way : layer.sums) out.list(way);
    out.number(layer.rows);
    out.number(layer.read);
    out.number(layer.all_rows);
  }
  return out.bytes();
}

void add_bytes(std::vector<Recall>& layers, const std::string& bytes) {
  ByteReader reader(bytes);
  for (Recall& layer : layers) {
    Recall part;
    for (std::vector<double>& way : part.sums) way = reader.list<double>();
    part.rows = reader.number<int64_t>();
    part.read = reader.number<double>();
    part.all_rows = reader.number<int64_t>();
    if (part.heads() > 0) layer += part;
  }
}

Recall attention_recall(const TeacherAttention& teacher, const FlatCsr& given, int64_t K,
                        const Visibility& visible, const SelectConfig& config) {
  const NoGrad off;
  const FlatCsr csr = on_cpu(given);
  const Tensor like = teacher.map.defined() ? teacher.map : teacher.q;
  const int64_t H = csr.heads, T = csr.length;
  check(like.defined() && like.rank() == 4 && like.dim(0) == csr.batch && like.dim(1) == H &&
            like.dim(2) == T && csr.keys == T,
        "attention_recall: the teacher does not fit a mask of ", csr.batch, " sequences, ", H,
        " heads, ", T, " rows and ", csr.keys, " keys");
  const TeacherSummary summary = summarize_teacher(teacher, K, visible);
  const FlatCsr best =
      on_cpu(build_csr(select_columns(summary.tau, visible, config).selected, visible, config.k));
  const bool across_heads =
      config.mode == SelectMode::per_batch || config.mode == SelectMode::causal_per_batch;
  const bool across_rows =
      config.mode == SelectMode::per_batch || config.mode == SelectMode::per_head;
  const RowWidths widths(visible, T);
  Recall out;
  for (auto& way : out.sums) way.assign(size_t(H), 0);
  for (int64_t b = 0; b < csr.batch; ++b) {
    out.all_rows += widths.valid(b);
    const std::vector<int64_t> counted = counted_rows(widths, b, config.k);
    const auto count = int64_t(counted.size()), step = across_rows ? count : kTileOfRows;
    out.rows += count;
    for (int64_t first = 0; first < count; first += step) {
      const auto begin = counted.begin() + first;
      const std::vector<int64_t> rows(begin, begin + std::min(step, count - first));
      const Tensor map = map_of(teacher, b, rows, widths);
      const auto n = int64_t(rows.size());
      // Groups of members of a tile: heads by rows.
      const int64_t tall = across_rows ? n : 1, wide = across_heads ? H : 1;
      std::vector<std::vector<Ways>> parts(size_t(n / tall * (H / wide)));
      parallel_for(int64_t(parts.size()), 1, [&](int64_t group, int64_t) {
        std::vector<SeenRow> members;
        for (int64_t i = 0; i < wide * tall; ++i) {
          const int64_t h = group % (H / wide) * wide + i / tall;
          const int64_t r = group / (H / wide) * tall + i % tall, t = rows[size_t(r)];
          members.push_back({map.data<double>() + (h * n + r) * T, h, t, widths(b, t)});
        }
        parts[size_t(group)] = sums_of_group(members, csr, best, b, visible.causal);
      });
      for (size_t group = 0; group < parts.size(); ++group) {
        for (int64_t i = 0; i < wide * tall; ++i) {
          const int64_t h = int64_t(group) % (H / wide) * wide + i / tall;
          for (size_t way = 0; way < recall::kWays; ++way) {
            out.sums[way][size_t(h)] += parts[group][size_t(i)][way];
          }
        }
      }
    }
  }
  const Tensor& ends = csr.row_pointers;  // exact on a device, too
  out.read = double(ends.data<int64_t>()[ends.numel() - 1]) / double(H);
  return out;
}

}  // namespace brine::distill
