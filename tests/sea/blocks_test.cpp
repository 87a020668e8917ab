// Attention method blocks: what its k means, what it refuses, its calibration and its state.
#include "sea/blocks/block_attention.h"

#include <limits>
#include <set>

#include "autograd/ops.h"
#include "sea/blocks/c_interface.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

std::unique_ptr<sea::BlockAttention> blocks(const sea::BlocksConfig& config,
                                            const nn::AttentionShape& shape,
                                            Dtype dtype = Dtype::f32) {
  nn::Init init{.random = {.seed = 1}, .dtype = dtype};
  return std::make_unique<sea::BlockAttention>(init, shape, config);
}

nn::AttentionInput input(int64_t H, int64_t G, int64_t T, int64_t d, uint64_t seed = 3) {
  return {.q = normal({1, H, T, d}, seed),
          .k = normal({1, G, T, d}, seed + 1),
          .v = normal({1, G, T, d}, seed + 2),
          .hidden = {},
          .visible = {.causal = true}};
}

double keys_read(const nn::Tap& tap) { return tap.get("kept_keys").data<double>()[0]; }

}  // namespace

TEST_CASE("blocks: k counts what a row keeps, in whole blocks; no more than fixed ones: a window") {
  CHECK_FALSE(nn::attention_method("blocks")->mask().columns.has_value());  // of no estimate
  const sea::BlocksConfig c{.block = 16, .sinks = 2, .local = 3};
  CHECK(c.blocks(16 * 6 + 1).chosen == 1);
  CHECK(c.blocks(16 * 9).chosen == 3);
  CHECK(c.blocks(16 * 6).chosen == 0);
  CHECK(c.blocks(1).chosen == 0);
  CHECK(sea::BlocksConfig{}.blocks().chosen == 15);
  CHECK(c.blocks(std::numeric_limits<int64_t>::max()).chosen > 0);  // refused elsewhere
}

TEST_CASE("blocks: what does not fit is refused, with what would") {
  const nn::AttentionShape shape{.heads = 2, .head_size = 8, .max_positions = 4096};
  auto refusal = [&](const sea::BlocksConfig& c, nn::AttentionShape of) {
    return message([&] { blocks(c, of); });
  };
  check_says(refusal({.candidates = 14}, shape),
             {"blocks", "candidates = 14", "15 blocks", "it must be at least 15"});
  check_says(refusal({.tile = 24}, shape), {"blocks", "tile = 24", "block = 32", "8 does"});
  check_says(refusal({.k = std::numeric_limits<int64_t>::max()}, shape),
             {"blocks", "k = 9223372036854775807", "4096 positions", "it must be at most 4096"});
  nn::AttentionShape encoder = shape;
  encoder.causal = false;
  check_says(refusal({}, encoder), {"blocks", "causal", "sea"});
  const auto made = blocks({}, shape);
  nn::AttentionInput in = input(2, 2, 64, 8);
  in.options.k = 5000;
  CHECK_REFUSES(made->forward(in), "blocks", "k = 5000", "at most 4096");
}

TEST_CASE("blocks: with every block kept the output has the bits of flash") {
  const nn::AttentionShape shape{.heads = 6, .head_size = 32, .max_positions = 700, .kv_heads = 2};
  const nn::AttentionInput in = input(6, 2, 300, 32);
  CHECK(blocks({}, shape)->forward(in).to_vector() ==
        flash_attention(in.q, in.k, in.v, in.visible).to_vector());
}

TEST_CASE("blocks: calibration sets the scale of channels, and unequal ones choose better by it") {
  const nn::AttentionShape shape{.heads = 1, .head_size = 16, .max_positions = 2048};
  nn::AttentionInput in = input(1, 1, 1500, 16);
  for (int64_t t = 0; t < 1500; ++t) {  // one channel of the keys is large, and never asked for
    in.k.data<float>()[t * 16 + 5] *= 40;
    in.q.data<float>()[t * 16 + 5] = 0;
    for (int64_t c = 0; c < 16; ++c) in.q.data<float>()[t * 16 + c] *= 2;
  }
  const auto attention = blocks({.k = 224, .block = 16, .tile = 1}, shape);
  // The share of exact attention's output that blocks keep.
  const std::vector<double> exact = flash_attention(in.q, in.k, in.v, in.visible).to_vector();
  auto error = [&] {
    const std::vector<double> y = attention->forward(in).to_vector();
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += (y[i] - exact[i]) * (y[i] - exact[i]);
    return sum;
  };
  const double before = error();
  attention->calibrate(in.k, in.visible);
  Tensor scale;
  for (const auto& b : attention->named_buffers()) {
    if (b.path == "key_scale") scale = b.buffer->value;
  }
  REQUIRE(scale.shape() == Shape{1, 16});
  CHECK(scale.data<float>()[5] / scale.data<float>()[4] ==
        doctest::Approx(std::sqrt(40)).epsilon(.05));
  CHECK(error() < 0.8 * before);
}

TEST_CASE("blocks: a window reads its sinks and local blocks, and has no copies in its state") {
  const nn::AttentionShape shape{.heads = 2, .head_size = 8, .max_positions = 512};
  const auto window = blocks({.k = 8, .block = 8, .tile = 8, .local = 2}, shape);
  nn::AttentionInput in = input(2, 2, 256, 8);
  nn::Tap tap("blocks");
  tap.request("kept_keys");
  in.tap = &tap;
  window->forward(in);
  // A row reads 8 keys of the sink, 16 of two blocks and 1 to 8 of its own; the first blocks less.
  CHECK(keys_read(tap) == doctest::Approx(28.5 - (24 + 16 + 8) * 8 / 256.0));
  const nn::StateRequest request{.batch = 1, .capacity = 256};
  nn::KeyValueState exact(request, {.heads = 2, .head_size = 8});
  CHECK(window->make_state(request)->bytes() < exact.bytes() + 256);
}

TEST_CASE("blocks: a state whose keys another scale coded is refused") {
  const nn::AttentionShape shape{.heads = 2, .head_size = 8, .max_positions = 512};
  const sea::BlocksConfig config{.k = 32, .block = 8, .tile = 8};
  const auto first = blocks(config, shape), other = blocks(config, shape);
  nn::AttentionInput in = input(2, 2, 100, 8);
  NoGrad off;
  for (const bool coded : {false, true}) {
    const nn::StateRequest request{.capacity = 128, .cache = Dtype::bf16, .coded = coded};
    const auto state = first->make_state(request), same = first->make_state(request);
    in.state = state.get();
    first->forward(in);
    same->restore(0, state->saved(0), "a.state");
    other->calibrate(in.k, {});
    const auto calibrated = other->make_state(request);
    CHECK_REFUSES(calibrated->restore(0, state->saved(0), "a.state"), "a.state",
                  "another key_scale");
  }
}

TEST_CASE(
    "blocks: a state is a tenth larger than keys and values, a sixth with 16 bits, coded .28") {
  const nn::AttentionShape shape{.heads = 9, .head_size = 64, .max_positions = 8192, .kv_heads = 3};
  const auto attention = blocks({}, shape);
  for (const auto& [cache, limit] : {std::pair{Dtype::f32, 1.105}, {Dtype::bf16, 1.17}}) {
    const nn::StateRequest request{.batch = 1, .capacity = 8192, .cache = cache};
    nn::KeyValueState exact(request, shape);
    const auto state = attention->make_state(request);
    CHECK(double(state->bytes()) / double(exact.bytes()) < limit);
  }
  nn::KeyValueState f32({.capacity = 8192}, shape);
  const nn::StateRequest coded{.capacity = 8192, .cache = Dtype::bf16, .coded = true};
  CHECK(double(attention->make_state(coded)->bytes()) / double(f32.bytes()) < 0.28);
}

TEST_CASE("blocks: the interface for other languages computes what forward() does") {
  const nn::AttentionShape shape{.heads = 4, .head_size = 8, .max_positions = 512, .kv_heads = 2};
  const int64_t T = 333;
  const sea::BlocksConfig config{.k = 16 * 5, .block = 16, .tile = 8, .candidates = 6};
  const auto made = blocks(config, shape);
  nn::AttentionInput in = input(4, 2, T, 8);
  made->calibrate(in.k, {});
  const Tensor scale = made->named_buffers().at(0).buffer->value;
  nn::Tap tap("blocks");
  tap.request("kept_keys");
  in.tap = &tap;
  NoGrad off;
  const Tensor want = made->forward(in);
  const BlockConfig c = config.blocks();
  const brine_blocks form{c.chosen, c.block, c.tile, c.sinks, c.local, c.candidates, c.columns};
  const int64_t sizes[] = {1, 4, 2, T, 8};
  Tensor y = Tensor::like(in.q), choices = Tensor::empty({1, 2, T, c.chosen}, Dtype::i32);
  auto call = [&](const Tensor& k) {
    return brine_block_attention(in.q.data<float>(), k.data<float>(), in.v.data<float>(),
                                 scale.data<float>(), sizes, &form, 2, y.data<float>(),
                                 choices.data<int32_t>());
  };
  const Threads one(1);
  REQUIRE(call(in.k) == nullptr);
  CHECK(threads() == 1);  // the call's 2 are not the caller's
  CHECK(same_bits(merge_heads(y), want));
  // A row keeps its fixed blocks and what the rows of its tile up to itself chose.
  double kept = 0;
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t t = 0; t < T; ++t) {
      const int64_t own = t / 16;
      std::set<int64_t> keeps{0, std::max<int64_t>(own - 1, 0), own};
      for (int64_t row = t / 8 * 8; row <= t; ++row)
        for (int64_t i = 0; i < c.chosen; ++i)
          if (const int32_t b = choices.data<int32_t>()[(g * T + row) * c.chosen + i]; b >= 0)
            keeps.insert(b);
      for (const int64_t b : keeps)
        kept += double(std::min(T, std::min((b + 1) * 16, t + 1)) - b * 16);
    }
  }
  CHECK(kept / double(2 * T) == doctest::Approx(keys_read(tap)));
  Tensor wrong = in.k.clone();
  wrong.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  REQUIRE(call(wrong) != nullptr);
  CHECK(std::string(call(wrong)).find("NaN") != std::string::npos);
}

}  // namespace brine::test
