// Code shared by the kernels of attention_recall: which rows count, which of them share a budget,
// and the locations of the current teacher rows.
#pragma once

#include "tensor/cuda/core/common.cuh"
#include "tensor/kernels/teacher.h"
#include "tensor/mask/recall.h"

namespace brine::cuda::recall {

using namespace brine::recall;

using Count = unsigned long long;
constexpr int kDigits = 256;

struct CsrView {
  const int64_t* pointers;
  const int32_t *offsets, *columns;
  explicit CsrView(const FlatCsr& csr)
      : pointers(csr.row_pointers.data<int64_t>()),
        offsets(csr.head_offsets.data<int32_t>()),
        columns(csr.columns.data<int32_t>()) {}
};

// What a group still has to find, and the contribution of every row.
struct Found {
  int64_t *budget,
      *take;         // [groups]; `take` ends as the number of keys to select among those equal to
                     // `prefix`
  uint64_t* prefix;  // [groups] the known digits of the smallest selected key
  Count* counts;     // [slots, 256] of the current digit
  double* sums;      // [ways, B, H, T]
  int64_t* ties;     // [B, H, T] keys equal to prefix
};

struct Job {
  CsrView mask, best;
  Found found;
  RowWidths widths;
  int64_t B, H, T, k;
  int64_t from;  // first row that counts
  bool across_heads, across_rows;

  // The first row of a sequence that counts: from `from` on, and it sees more than k keys. All
  // later valid rows do.
  __device__ int64_t first(int64_t b) const {
    const int64_t valid = widths.valid(b);
    if (!widths.causal && widths.length(b) <= k) return valid;
    const int64_t row = widths.causal && k > from ? k : from;
    return row < valid ? row : valid;
  }
  __device__ bool counts(int64_t t, int64_t w) const { return t >= from && w > k; }
  __host__ __device__ int64_t group_heads() const { return across_heads ? 1 : H; }
  __host__ __device__ int64_t group_rows() const { return across_rows ? 1 : T; }
  __host__ __device__ int64_t groups() const { return B * group_heads() * group_rows(); }
  __device__ int64_t group(int64_t b, int64_t h, int64_t t) const {
    return (b * group_heads() + (across_heads ? 0 : h)) * group_rows() + (across_rows ? 0 : t);
  }
  __device__ int64_t row(int64_t b, int64_t h, int64_t t) const { return (b * H + h) * T + t; }
  __device__ double& sum(Way way, int64_t r) const { return found.sums[way * B * H * T + r]; }
};

// The heads [head, head + heads) and rows [first, first + rows) that share a budget.
struct Group {
  int64_t b, head, heads, first, rows;

  __device__ Group(const Job& job, int64_t g) {
    const int64_t bh = g / job.group_rows(), t = g % job.group_rows();
    b = bh / job.group_heads();
    head = bh % job.group_heads();
    heads = job.across_heads ? job.H : 1;
    first = job.first(b);
    rows = job.widths.valid(b) - first;
    if (job.across_rows) return;
    rows = t >= first && t < first + rows ? 1 : 0;
    first = t;
  }
};

// Rows [t0, t0 + nt) of all heads of sequences [b0, b0 + nb): values + ((bh - from_bh) pitch + t -
// from_t) T starts a row, which may be in the teacher's map.
template <class T>
struct Chunk {
  T* made = nullptr;  // for rows that are computed from q and k
  const T* values = nullptr;
  int64_t b0 = 0, nb = 0, t0 = 0, nt = 0;
  int64_t from_bh = 0, from_t = 0, pitch = 0;

  __device__ int64_t place(int64_t bh, int64_t t, int64_t length) const {
    return ((bh - from_bh) * pitch + t - from_t) * length;
  }
  // The offset of a group's counts.
  __device__ int64_t slot(const Job& job, int64_t b, int64_t h, int64_t t) const {
    if (job.across_rows) return job.group(b, h, t);
    return ((b - b0) * job.group_heads() + (job.across_heads ? 0 : h)) * nt + t - t0;
  }
  int64_t slots(const Job& job) const {
    return job.across_rows ? job.groups() : nb * job.group_heads() * nt;
  }
};

// The chunk row of a block.
struct BlockRow {
  int64_t b, h, t, w;
  bool counts;

  template <class T>
  __device__ BlockRow(const Job& job, const Chunk<T>& chunk) {
    const int64_t i = blockIdx.x;
    t = chunk.t0 + i % chunk.nt;
    h = i / chunk.nt % job.H;
    b = chunk.b0 + i / (chunk.nt * job.H);
    w = job.widths(b, t);
    counts = job.counts(t, w);
  }
};

}  // namespace brine::cuda::recall
