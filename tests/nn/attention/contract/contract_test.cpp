// What every registered attention method promises: shapes, causality, padding, independence of the
// batch, the same bits again, state by name.
#include "tests/nn/attention/contract/contract.h"
#include "tensor/kernels/dense.h"

namespace brine::test {
namespace {

bool finite(const Tensor& x) {
  for (double value : x.to_vector()) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// x with new values in rows t0 + 1 and later of axis `axis`.
Tensor other_future(const Tensor& x, int axis, int64_t t0, uint64_t seed) {
  Tensor out = normal(x.shape(), seed, x.dtype());
  assign(out.slice(axis, 0, t0 + 1), x.slice(axis, 0, t0 + 1));
  return out;
}

// Tensors of T rows followed by `more` rows of noise.
Tensor padded(const Tensor& x, int axis, int64_t more, uint64_t seed) {
  Shape shape = x.shape();
  shape[axis] += more;
  Tensor out = normal(shape, seed, x.dtype(), 0, 3);
  assign(out.slice(axis, 0, x.dim(axis)), x);
  return out;
}

}  // namespace

TEST_CASE("contract: shapes and finite values for short and long, full and padded sequences") {
  each_block(Dtype::f32, [](Block& block) {
    for (int64_t T : {1, 3, 17, 64, 257}) {
      for (bool full : {true, false}) {
        INFO("T = " << T);
        Tensor lengths = full ? Tensor() : lengths_of({T, (T + 1) / 2});
        Passed p = pass(block, inputs(2, T, Dtype::f32), lengths);
        REQUIRE(p.y.shape() == Shape{2, T, kHeads * kSize});
        CHECK((finite(p.y) && finite(p.q) && finite(p.k) && finite(p.v)));
        if (p.parameters.defined()) CHECK(finite(p.parameters));
        if (!full) {
          int64_t L = (T + 1) / 2;
          Tensor tail = p.y.slice(0, 1, 1).slice(1, L, T - L);
          CHECK(largest(tail.to_vector()) == 0);  // padded queries
        }
        CHECK(largest(p.y.to_vector()) > 0);
      }
    }
  });
}

TEST_CASE("contract: a causal block does not depend on later tokens, bit for bit") {
  each_block(Dtype::f32, [](Block& block) {
    if (!block.causal) return;
    int64_t T = 41;
    Inputs in = inputs(2, T, Dtype::f32);
    Tensor dy = cotangent(in.hidden);
    Tensor y = pass(block, in, {}, dy).y;
    for (int64_t t : {0, 1, 6, 23, 39}) {
      INFO("t = " << t);
      Inputs changed{other_future(in.q, 2, t, 90), other_future(in.k, 2, t, 91),
                     other_future(in.v, 2, t, 92), other_future(in.hidden, 1, t, 93)};
      Tensor z = pass(block, changed, {}, dy).y;
      CHECK(same_bits(rows(y, 1, 0, t + 1), rows(z, 1, 0, t + 1)));
      CHECK_FALSE(same_bits(y, z));
      // No gradient of the rows up to t reaches later rows.
      Tensor past = Tensor::zeros_like(dy);
      assign(past.slice(1, 0, t + 1), dy.slice(1, 0, t + 1));
      Passed p = pass(block, in, {}, past);
      for (const Tensor& g : {p.q, p.k, p.v}) {
        CHECK(largest(rows(g, 2, t + 1, T - t - 1).to_vector()) == 0);
      }
    }
  });
}

TEST_CASE("contract: a sparse block obeys k and the path, another one has no use for them") {
  each_block(Dtype::f64, [](Block& block) {
    Inputs in = inputs(1, 33, Dtype::f64);
    Tensor dy = cotangent(in.hidden), all = pass(block, in, {}, dy, {.k = 33}).y;
    const bool sparse = block.module->traits().sparse;
    CHECK(same_bits(pass(block, in, {}, dy, {.k = 2}).y, all) == !sparse);
    Tensor dense = pass(block, in, {}, dy, {.k = 33, .dense_path = true}).y;
    CHECK(close_to_scale(dense, all, 1e-10));
    if (!sparse) CHECK(same_bits(dense, all));
  });
}

TEST_CASE("contract: padding on the right changes neither outputs nor gradients") {
  each_block(Dtype::f64, [](Block& block) {
    for (int64_t T : {1, 5, 18}) {
      INFO("T = " << T);
      int64_t more = 7;
      Inputs in = inputs(2, T, Dtype::f64);
      Tensor dy = cotangent(in.hidden), full = lengths_of({T, T});
      Passed a = pass(block, in, {}, dy);
      Inputs wide{padded(in.q, 2, more, 70), padded(in.k, 2, more, 71), padded(in.v, 2, more, 72),
                  padded(in.hidden, 1, more, 73)};
      Passed b = pass(block, wide, full, padded(dy, 1, more, 74));
      CHECK(close_to_scale(rows(b.y, 1, 0, T), a.y, 1e-6, "output"));
      // With one token the gradients of q and k are 0, up to the rounding of products in f64.
      auto close_gradient = [&](const Tensor& wide_gradient, const Tensor& gradient,
                                const std::string& what) {
        const double tolerance =
            std::max(1e-6 * largest(gradient.to_vector()), T == 1 ? 1e-15 : 0.0);
        CHECK(close(rows(wide_gradient, 2, 0, T), gradient, tolerance, 0, what));
      };
      close_gradient(b.q, a.q, "gradient of q");
      close_gradient(b.k, a.k, "gradient of k");
      close_gradient(b.v, a.v, "gradient of v");
      for (const Tensor& g : {b.q, b.k, b.v}) CHECK(largest(rows(g, 2, T, more).to_vector()) == 0);
      if (!block.store) continue;
      for (const auto& e : block.store->entries()) {
        CHECK(close_to_scale(b.parameters.slice(0, e.offset, e.size),
                             a.parameters.slice(0, e.offset, e.size), 1e-6, e.path));
      }
    }
  });
}

TEST_CASE("contract: a sequence does not depend on the others of its batch") {
  each_block(Dtype::f32, [](Block& block) {
    int64_t T = 19;
    Inputs a = inputs(3, T, Dtype::f32), b = inputs(3, T, Dtype::f32, 60);
    auto mixed = [](const Tensor& x, const Tensor& other) {  // sequence 1 of x, others of `other`
      Tensor out = other.clone();
      assign(out.slice(0, 1, 1), x.slice(0, 1, 1));
      return out;
    };
    Tensor dy = cotangent(a.hidden);
    Passed p = pass(block, a, lengths_of({T, 13, T}), dy);
    Inputs m{mixed(a.q, b.q), mixed(a.k, b.k), mixed(a.v, b.v), mixed(a.hidden, b.hidden)};
    Passed q = pass(block, m, lengths_of({4, 13, 1}), dy);
    CHECK(same_bits(rows(p.y, 0, 1, 1), rows(q.y, 0, 1, 1)));
    CHECK(same_bits(rows(p.q, 0, 1, 1), rows(q.q, 0, 1, 1)));
    CHECK(same_bits(rows(p.k, 0, 1, 1), rows(q.k, 0, 1, 1)));
    CHECK(same_bits(rows(p.v, 0, 1, 1), rows(q.v, 0, 1, 1)));
  });
}

TEST_CASE("contract: the same bits again, and with 1, 2 and 3 threads") {
  each_block(Dtype::f32, [](Block& block) {
    Inputs in = inputs(2, 65, Dtype::f32);
    Passed first = pass(block, in, lengths_of({65, 40}));
    check_same_bits(first, pass(block, in, lengths_of({65, 40})), "again");
    for (int n : {1, 2, 3}) {
      Threads set(n);
      check_same_bits(first, pass(block, in, lengths_of({65, 40})), std::to_string(n) + " threads");
    }
  });
}

TEST_CASE("contract: what a method does not read may be absent") {
  int absent = 0;
  each_block(Dtype::f32, [&](Block& block) {
    const nn::AttentionTraits traits = block.module->traits();
    if (traits.reads_hidden) return;
    ++absent;
    const Inputs in = inputs(1, 65, Dtype::f32);
    nn::AttentionInput all{.q = in.q, .k = in.k, .v = in.v, .hidden = in.hidden};
    all.visible = {.causal = block.causal};
    all.q_content = normal(in.q.shape(), 8);
    all.k_content = normal(in.k.shape(), 9);
    nn::AttentionInput without = all;
    without.hidden = {};
    if (!traits.reads_content) without.q_content = without.k_content = {};
    CHECK(same_bits(block.module->forward(all), block.module->forward(without)));
    nn::AttentionInput few = all, rounded = all;
    few.options.k = traits.k_step * 2 - traits.k_step / 2;
    rounded.options.k = traits.k_step * 2;
    CHECK(same_bits(block.module->forward(few), block.module->forward(rounded)));
  });
  CHECK(enough(absent, 2));
}

TEST_CASE("contract: state by name makes an equal block") {
  each_block(Dtype::f32, [](Block& block) {
    Block other = make_block(block.name, block.causal, Dtype::f32, 6, 300, block.settings);
    Inputs in = inputs(2, 21, Dtype::f32);
    Passed a = pass(block, in);
    if (block.store) CHECK_FALSE(same_bits(a.y, pass(other, in).y));
    std::vector<NamedTensor> state = nn::state_of(*block.module);
    std::reverse(state.begin(), state.end());  // names count, not the order
    nn::load_state(*other.module, state, "test");
    check_same_bits(a, pass(other, in), "loaded");
  });
}

}  // namespace brine::test
