// The attention block, from q, k, v to its output, of every method: the growth of its cost
// with T; and for softmax over all keys the rate of its products relative to a matrix product.
#include <algorithm>
#include <tuple>

#include "apps/bench/suites.h"
#include "apps/terminal/terminal.h"
#include "data/io/human.h"
#include "distill/evaluation/evaluate.h"
#include "tensor/device/allocator.h"
#include "tensor/kernels/dense.h"

namespace brine::bench {
namespace {

// A product of matrices of the fastest kind: the best rate of the machine at this moment.
class FastProduct {
 public:
  FastProduct()
      : y_(Tensor::empty({rows_, 3072}, Dtype::f32, default_device())),
        x_(full({rows_, 768}, 0.5)),
        w_(full({3072, 768}, 0.25)) {}
  void operator()() { BRINE_CALL(y_, matmul, y_, x_, w_, false, true, 1, 0); }
  double rate(double ms) const { return 2e-6 * double(rows_) * 3072 * 768 / ms; }

 private:
  static Tensor full(const Shape& shape, double value) {
    return Tensor::full(shape, value, Dtype::f32, default_device());
  }
  int64_t rows_ = sized(2048, 32);
  Tensor y_, x_, w_;
};

// Softmax over all keys: the rate of its products, and their share of that of a matrix product,
// measured alternately. Forward 2 products of what is visible of T x T with d, backward 5.
void add_rate(BenchRow& row, const std::function<void()>& run, BlockKind kind, int64_t T,
              bool train) {
  const double visible = kind.causal ? double(T * (T + 1)) : 2.0 * double(T) * double(T);
  const double flops = double(kind.heads * kind.head_size) * visible * (train ? 7 : 2);
  static FastProduct product;
  auto [ms, product_ms] = median_times(
      run, [] { product(); }, is_quick() ? 0.01 : 1.5);
  row.ms = ms;
  row.rate = flops / ms * 1e-6;
  row.unit = "GFLOP/s";
  row.share = row.rate / product.rate(product_ms);
}

std::string block_row_name(const Block& block, bool train) {
  return block.name + (train ? ", forward + backward" : ", forward");
}

// Of full attention and of masks. A mask of blocks is not needed by keys, which would take more
// memory than the method.
void add_keys_read(BenchRow& row, const Block& block, const Inputs& in, bool causal) {
  const int64_t T = in.leaves[0].dim(2);
  if (nn::is_full_attention(block.name)) {
    row.notes.emplace_back("keys_read", causal ? 0.5 * double(T + 1) : double(T));
    return;
  }
  if (!block.attention->traits().sparse) return;
  NoGrad off;
  nn::Tap tap("bench");
  tap.request("kept_keys");
  nn::AttentionInput input = in.input();
  input.tap = &tap;
  tap.put("q", input.q);
  const Tensor y = block.attention->forward(input);
  distill::KeysRead read;
  read.observe(0, tap, y);
  if (read.mean() > 0) row.notes.emplace_back("keys_read", read.mean());
}

BenchRow measure(const Block& block, const Inputs& in, BlockKind kind, bool train,
                 const Block& against) {
  const int64_t T = in.leaves[0].dim(2);
  auto run = [&] { pass(*block.attention, in.input(), in.dy, train); };
  run();
  const int64_t before = allocator_stats().live;
  reset_peak();
  double ms = 0, other_ms = 0;
  if (against.attention) {
    run();  // alone: the other's memory is not this block's
  } else {
    ms = median_time(run, 0.5);
  }
  const int64_t peak = allocator_stats().peak_live;
  if (against.attention) {
    std::tie(ms, other_ms) = median_times(
        run, [&] { pass(*against.attention, in.input(), in.dy, train); }, is_quick() ? 0.01 : 1.5);
  }
  BenchRow row = {.name = block_row_name(block, train),
                  .shape = block_shape(kind, T),
                  .ms = ms,
                  .rate = double(T) / ms * 1e3,
                  .unit = "tokens/s",
                  .peak = peak,
                  .notes = {{"tokens", double(T)},
                            {"heads", double(kind.heads)},
                            {"us_per_token", ms * 1e3 / double(T)},
                            {"block_bytes_per_token", double(peak - before) / double(T)}}};
  add_keys_read(row, block, in, kind.causal);
  if (nn::is_full_attention(block.name)) add_rate(row, run, kind, T, train);
  if (against.attention) row.notes.emplace_back(join("times_", against.name), other_ms / ms);
  return row;
}

void bench_block(const Block& block, BlockKind kind, const std::vector<int64_t>& counts,
                 const Block& against, RowSink& rows) {
  double first[2] = {0, 0};
  MapMemory memory(*block.attention, kind.heads);
  for (int64_t T : counts) {
    if (!memory.fits(T)) {
      log_info(block.name, ": left out at T = ", T, ", its maps would take ",
               human_bytes(memory.bytes_at(T)));
      continue;
    }
    rows.attempt(block.name, block_shape(kind, T), [&] {
      const Inputs in(T, kind.heads, kind.head_size, kind.causal, kind.kv_heads);
      for (bool train : {false, true}) {
        if (train && kind.forward) break;
        rows.attempt(block_row_name(block, train), block_shape(kind, T), [&] {
          BenchRow row = measure(block, in, kind, train, against);
          const double each = row.ms / double(T);
          if (T == counts[0]) first[train] = each;
          if (first[train] > 0) row.ratio = each / first[train];
          rows.add(row);
          memory.took(T, row.peak);
        });
      }
    });
    trim();
  }
}

}  // namespace

void bench_attention(const BenchRequest& r, RowSink& rows) {
  const BlockKind kind{.heads = r.heads,
                       .head_size = r.head_size,
                       .causal = !r.bidirectional,
                       .kv_heads = r.kv_heads,
                       .k = r.k,
                       .columns = r.columns,
                       .forward = r.forward};
  std::vector<int64_t> counts = r.tokens.empty() ? token_counts() : r.tokens;
  std::sort(counts.begin(), counts.end());  // ratios are to the shortest
  Block other;
  if (!r.against.empty()) {
    int named = 0;
    each_block(rows, counts.back(), {r.against}, kind, [&](Block& block) {
      other = std::move(block);
      ++named;
    });
    check(named == 1, "bench: --against ", r.against, " names ", named, " blocks; see --methods");
  }
  each_block(rows, counts.back(), r.methods, kind, [&](const Block& block) {
    std::vector<int64_t> lengths = counts;
    if (r.tokens.empty() && nn::is_full_attention(block.name))
      lengths.insert(lengths.begin(), lengths[0] / 2);
    bench_block(block, kind, lengths, other, rows);
  });
}

}  // namespace brine::bench
