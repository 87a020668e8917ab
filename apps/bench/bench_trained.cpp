// The block of a trained student at growing lengths: q, k, v and masks from a real text, compared
// with softmax over all keys.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/bench/parts/trained_layer.h"
#include "apps/bench/suites.h"
#include "tensor/device/allocator.h"

namespace brine::bench {
namespace {

std::vector<int64_t> usual_lengths() {
  return is_quick() ? std::vector<int64_t>{48, 96}
                    : std::vector<int64_t>{2048, 4096, 8192, 16384, 65536, 131072};
}
// Beyond this, softmax over all keys would take minutes, and a backward pass more than 8 GB.
int64_t longest_full() { return sized(32768, 96); }
int64_t longest_backward() { return sized(65536, 96); }

class Trained {
 public:
  Trained(const std::string& path, const std::vector<int32_t>& ids,
          const distill::OtherAttention& attention, RowSink& rows)
      : rows_(rows),
        T_(int64_t(ids.size())),
        layer_(path, ids, attention, /*gradients=*/int64_t(ids.size()) <= longest_backward()) {
    const Tensor& q = layer_.leaves[0];
    shape_ = q.shape();
    const nn::ModelShape& sizes = layer_.model.model->shape();
    flash_ = make_block("flash", {},
                        {.heads = sizes.heads,
                         .head_size = sizes.head_size(),
                         .max_positions = T_,
                         .causal = true,
                         .kv_heads = sizes.kv_heads});
  }

  void measure() {
    for (bool train : {false, true}) {
      if (train && T_ > longest_backward()) continue;
      if (T_ <= longest_full()) block("flash, softmax over all keys", *flash_.attention, train);
      block("block, its own masks", *layer_.method, train);
    }
  }

 private:
  std::function<void()> pass_of(nn::Attention& method, bool train) const {
    return [this, &method, train] { pass(method, layer_.input(), layer_.dy, train); };
  }

  // ratio: time of softmax over all keys over that of the row, measured alternately.
  void block(const char* name, nn::Attention& method, bool train) {
    const std::function<void()> run = pass_of(method, train);
    run();
    const int64_t before = allocator_stats().live;
    reset_peak();
    run();
    const int64_t peak = allocator_stats().peak_live;
    double ms, ratio = 0;
    if (&method != flash_.attention.get() && T_ <= longest_full()) {
      const auto [row_ms, full_ms] = median_times(run, pass_of(*flash_.attention, train), 2);
      ms = row_ms;
      ratio = full_ms / row_ms;
    } else {
      ms = median_time(run, 0.5);
    }
    BenchRow row{.name = join(name, train ? ", fwd + bwd" : ", fwd"),
                 .shape = join(shape_),
                 .ms = ms,
                 .rate = double(T_) / ms * 1e3,
                 .unit = "tokens/s",
                 .ratio = ratio,
                 .peak = peak,
                 .notes = {{"us_per_token", ms * 1e3 / double(T_)},
                           {"block_bytes_per_token", double(peak - before) / double(T_)}}};
    const bool full = &method == flash_.attention.get();
    row.notes.emplace_back("keys_read", full ? 0.5 * double(T_ + 1) : layer_.keys_read);
    rows_.add(row);
  }

  RowSink& rows_;
  int64_t T_;
  TrainedLayer layer_;
  Shape shape_;
  Block flash_;
};

}  // namespace

void bench_trained(const BenchRequest& r, RowSink& rows) {
  const std::vector<int64_t> lengths = r.tokens.empty() ? usual_lengths() : r.tokens;
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const std::vector<int32_t> ids = text_tokens(r.model, r.data, longest);
  for (int64_t T : lengths) {
    rows.attempt("block", join(T, " tokens"), [&] {
      Trained(r.model, {ids.begin(), ids.begin() + T}, r.attention, rows).measure();
    });
    trim();
  }
}

}  // namespace brine::bench
