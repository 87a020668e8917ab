// The block of a trained student at growing lengths: q, k, v and masks that come from a real text,
// beside masks of columns drawn at random and softmax over all keys.
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/bench/bench.h"
#include "apps/bench/block.h"
#include "apps/terminal.h"
#include "autograd/ops.h"
#include "data/file_io.h"
#include "distill/extend.h"
#include "tensor/allocator.h"
#include "tensor/kernels_sparse.h"

namespace brine::bench {
namespace {

// The lengths asked for, and two at which softmax over all keys would take minutes.
std::vector<int64_t> lengths() {
  return is_quick() ? std::vector<int64_t>{48, 96}
                    : std::vector<int64_t>{2048, 4096, 8192, 16384, 65536, 131072};
}
int64_t longest_full() { return sized(16384, 96); }
int64_t longest_backward() { return sized(65536, 96); }

std::vector<int32_t> tokens_of(const std::string& model, const std::string& text, int64_t count) {
  const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(model);
  const std::vector<int32_t> ids = tokenizer->encode(data::read_file(text));
  check(!ids.empty(), "bench: ", text, " has no tokens");
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = ids[i % ids.size()];  // a short text again
  return out;
}

// What goes into the last layer's attention while the model reads T tokens.
struct Layer {
  Layer(const std::string& path, const std::vector<int32_t>& ids) {
    const int64_t T = int64_t(ids.size());
    model = distill::load_model(path);
    if (model.config.shape().max_positions < T) model = distill::extend_positions(model, T);
    model.store->add_gradients();
    nn::Model& net = *model.model;
    NoGrad off;
    const nn::ModelCall call{.ids = Tensor::from(ids, {1, T})};
    Tensor x = net.embed(call);
    const int64_t last = net.shape().layers - 1;
    for (int64_t i = 0; i < last; ++i) x = net.layer(i, x, call, nullptr);
    nn::Tap tap(net.attention_name());
    net.layer(last, x, call, &tap);
    for (const char* name : {"q", "k", "v"}) {
      const Tensor t = tap.get(name).detach().contiguous();
      leaves.push_back(require_grad(t, Tensor::zeros_like(t)));
    }
    selected = tap.get("selected");
    dy = Tensor::full(tap.get("context").shape(), 1);
    method = &net.attention(last);
  }
  nn::AttentionInput input(nn::Tap* tap = nullptr) const {
    return {.q = leaves[0], .k = leaves[1], .v = leaves[2], .hidden = dy, .tap = tap};
  }

  distill::LoadedModel model;
  std::vector<Tensor> leaves;
  Tensor selected, dy;
  nn::Attention* method;
};

class Trained {
 public:
  Trained(const std::string& path, const std::vector<int32_t>& ids, std::vector<BenchRow>& rows)
      : rows_(rows), T_(int64_t(ids.size())), layer_(path, ids) {
    const Tensor& q = layer_.leaves[0];
    shape_ = q.shape();
    const nn::ModelShape& sizes = layer_.model.model->shape();
    flash_ = make_block("flash", {},
                        {.heads = sizes.heads,
                         .head_size = sizes.head_size(),
                         .max_positions = T_,
                         .causal = true});
    nn::Schema keys;
    layer_.model.config.method().describe(keys);
    k_ = keys.to_json().at("k");
  }

  void measure() {
    const Tensor random = random_columns();
    for (bool train : {false, true}) {
      if (train && T_ > longest_backward()) continue;
      double full = 0;
      if (T_ <= longest_full()) {
        full = block("flash, softmax over all keys", *flash_.attention, Tensor(), train, 0);
      }
      block("block, its own masks", *layer_.method, Tensor(), train, full);
      block("block, random columns", *layer_.method, random, train, full);
    }
    trim();
    sparse("its own masks", layer_.selected);
    sparse("random columns", random);
  }

 private:
  // Every row as many columns as its budget allows, whichever.
  Tensor random_columns() const {
    Tensor x = Tensor::empty(layer_.selected.shape());
    const RandomSlice slice{7, 0, 0};
    for (int64_t i = 0; i < x.numel(); ++i) x.data<float>()[i] = float(slice.uniform(uint64_t(i)));
    return select_columns(x, {}, {.k = k_}).selected;
  }

  // ratio: time of softmax over all keys over this one's.
  double block(const char* name, nn::Attention& method, const Tensor& selected, bool train,
               double full) {
    auto run = [&] {
      nn::Tap tap(name);
      if (selected.defined()) tap.force("selected", selected);
      if (train) {
        backward(method.forward(layer_.input(selected.defined() ? &tap : nullptr)), layer_.dy);
      } else {
        NoGrad off;
        method.forward(layer_.input(selected.defined() ? &tap : nullptr));
      }
    };
    run();
    const int64_t before = allocator_stats().live;
    reset_peak();
    const double ms = median_time(run, 0.5);
    const int64_t peak = allocator_stats().peak_live;
    rows_.push_back({.name = join(name, train ? ", fwd + bwd" : ", fwd"),
                     .shape = join(shape_),
                     .ms = ms,
                     .rate = double(T_) / ms * 1e3,
                     .unit = "tokens/s",
                     .ratio = full / ms,
                     .peak = peak,
                     .notes = {{"us_per_token", ms * 1e3 / double(T_)},
                               {"block_bytes_per_token", double(peak - before) / double(T_)}}});
    return ms;
  }

  // The sparse kernels. share: gathered bytes over what the same threads read out of a cache that
  // holds one head's K and V.
  void sparse(const char* name, const Tensor& selected) {
    const Tensor &q = layer_.leaves[0], &k = layer_.leaves[1], &v = layer_.leaves[2];
    const FlatCsr csr = build_csr(selected, {}, k_);
    const double d = double(q.dim(3)), scale = 1 / std::sqrt(d);
    Tensor p = Tensor::empty({csr.entries()}), y = Tensor::like(q);
    Tensor dq = Tensor::like(q), dk = Tensor::like(k), dv = Tensor::like(v);
    const double bytes = double(csr.entries()) * d * 4;  // one row of K or of V for every entry
    const int64_t head = 2 * T_ * q.dim(3) * 4;
    const double limit = read_bandwidth(head);
    auto add = [&](const char* what, double gathered, const std::function<void()>& f) {
      const double ms = median_time(f), rate = gathered / ms * 1e-6;
      rows_.push_back({.name = join(what, ", ", name),
                       .shape = join(shape_),
                       .ms = ms,
                       .rate = rate,
                       .unit = "GB/s",
                       .share = rate / limit,
                       .notes = {{"us_per_token", ms * 1e3 / double(T_)},
                                 {"keys_per_row", double(csr.entries()) / double(T_ * q.dim(1))}}});
    };
    add("sparse forward", 2 * bytes,
        [&] { BRINE_CALL(q, sparse_attention, y, p, q, k, v, csr, scale); });
    if (T_ > longest_backward()) return;
    add("sparse backward", 6 * bytes, [&] {
      BRINE_CALL(q, sparse_attention_backward, dq, dk, dv, layer_.dy.view(q.shape()), q, k, v, p,
                 csr, scale);
    });
  }

  std::vector<BenchRow>& rows_;
  int64_t T_, k_ = 0;
  Layer layer_;
  Shape shape_;
  Block flash_;
};

}  // namespace

std::vector<BenchRow> bench_trained(const std::string& model, const std::string& data) {
  const nn::ModelConfig config = distill::load_config(model);
  check(config.attention == "sea" && config.shape().causal,
        "bench: trained wants a causal student ", "with attention 'sea', ", model, " has '",
        config.attention, "'");
  const std::vector<int32_t> ids = tokens_of(distill::resolve_model(model), data, lengths().back());
  std::vector<BenchRow> rows;
  for (int64_t T : lengths()) {
    Trained(model, {ids.begin(), ids.begin() + T}, rows).measure();
    trim();
  }
  return rows;
}

}  // namespace brine::bench
