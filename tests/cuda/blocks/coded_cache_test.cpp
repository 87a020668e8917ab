// Keys and values in 8 bits on a device: code_cache, decode_cache and coded_attention_step.
#include "autograd/ops_attention.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: keys and values in 8 bits, and a step over them") {
  const std::vector<int64_t> width = {75, 64};
  for (Dtype type : {Dtype::f32, Dtype::bf16}) {
    compare_both(join("coded cache ", type), [&](const On& on, Dtype dtype) {
      const Dtype kept = dtype == Dtype::f32 ? type : dtype;
      const Tensor k = on(normal({2, 2, 75, 7}, 2, dtype)), v = on(normal({2, 2, 75, 7}, 3, dtype)),
                   q = on(normal({2, 6, 1, 7}, 1, dtype));
      CodedCache cache = code_cache(k, v, on(Tensor::full({2, 7}, 0.5, dtype)), 8, kept);
      auto last = [&](const Tensor& x) {
        const Tensor to = Tensor::zeros({2, 2, 8, 7}, dtype, x.device());
        copy_into(to.slice(2, 0, 3), x.slice(2, 72, 3));
        return to;
      };
      cache.last_keys = last(k);
      cache.last_values = last(v);
      const Tensor widths = Tensor::from(width, {2});
      // Two blocks of each sequence and the one that fills.
      const std::vector<int32_t> blocks = {block_entry(0, 0), block_entry(4, 0), block_entry(9, 0),
                                           block_entry(1, 0), block_entry(4, 0), block_entry(7, 0)};
      std::vector<int32_t> entries;  // of each of the two groups
      for (auto of = blocks.begin(); of != blocks.end(); of += 3)
        for (int g = 0; g < 2; ++g) entries.insert(entries.end(), of, of + 3);
      const BlockMask mask{.counts = on(Tensor::full({2, 2, 1}, 3, Dtype::i32)),
                           .entries = on(Tensor::from(entries, {2, 2, 1, 3})),
                           .tiles = {},
                           .block = 8,
                           .tile = 1};
      const auto [keys, values] = decode_cache(cache, widths);
      return std::vector{keys.slice(2, 0, 64).contiguous(), values.slice(2, 0, 64).contiguous(),
                         coded_attention_step(q, cache, nullptr, widths),
                         coded_attention_step(q, cache, &mask, widths)};
    });
  }
}
