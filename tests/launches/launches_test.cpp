// The launches of long sequences, which no test could compute: 131,072 tokens of 12 heads or one,
// forward and backward. Kernels are recorded instead of run (tests/cuda/emulator/launches.h), so
// that every size, grid and shared memory is checked as a device checks it, without its memory or
// time.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/bench/parts/block.h"
#include "autograd/compute_type.h"
#include "autograd/ops.h"
#include "tensor/device/allocator.h"
#include "tests/cuda/emulator/last_blocks.h"
#include "tests/cuda/emulator/launches.h"
#include "tests/launches/recorded.h"
#include "tests/messages.h"

using namespace brine;
using namespace brine::test;

namespace {

constexpr int64_t kTokens = 131072, kHeads = 12, kSize = 64;
// The bytes of an operand for one thread, at most: where threads are few, and where they occupy a
// device.
constexpr double kMaxBytes = 4096, kMaxBytesOfMany = 16384, kMany = 65536;

struct Case {
  std::string method;
  data::Json settings;
  bool causal;
  Dtype compute = Dtype::f32;
  bool padded = false;
  int64_t heads = kHeads, head_size = kSize;

  std::string name() const {
    return join(method, " ", settings.dump(), causal ? ", causal" : ", bidirectional", ", ",
                name_of(compute), padded ? ", padded, " : ", ", heads, " x ", head_size);
  }
};

Tensor leaf(const Shape& shape) {
  const Tensor x = unread(shape);
  return require_grad(x, Tensor::zeros_like(x));
}

// The output with the loss of the estimated maps, without which no gradient reaches the estimator.
Tensor with_loss(const Tensor& y, const nn::Tap& tap, const Visibility& visible) {
  if (!tap.has("scores")) return y;
  const Tensor& scores = tap.get("scores");
  const Shape rows{scores.dim(0), scores.dim(1), scores.dim(2)};
  const TeacherSummary summary{unread(scores.shape()), unread(rows), unread(rows)};
  return attach_loss(y, sum(approx_loss(scores, summary, visible)));
}

// What the block's forward and backward pass launches, with the loss, and the forward pass alone.
Recorded block_launches(const Case& c) {
  data::Json settings = c.settings;
  settings["k"] = c.method == "blocks" ? 576 : 64;
  const bench::Block block = bench::make_block(
      c.method, settings,
      {.heads = c.heads, .head_size = c.head_size, .max_positions = kTokens, .causal = c.causal});
  REQUIRE(block.attention);
  const ComputeType compute(c.compute);
  const Shape heads{1, c.heads, kTokens, c.head_size};
  const Tensor q = leaf(heads), k = leaf(heads), v = leaf(heads);
  const Tensor hidden = unread({1, kTokens, c.heads * c.head_size}), dy = Tensor::like(hidden);
  const Tensor lengths = c.padded ? Tensor::from(std::vector<int64_t>{kTokens - 5}, {1}) : Tensor();
  nn::AttentionInput in{.q = q,
                        .k = k,
                        .v = v,
                        .hidden = hidden,
                        .visible = {.causal = c.causal, .lengths = lengths}};
  Recorded out;
  if (block.store) out.parameters(*block.store);
  emulator::take_launches();
  {
    NoGrad off;
    block.attention->forward(in);
  }
  out.inference = emulator::take_launches();
  nn::Tap tap(c.method);
  // A mask of blocks is shown by single keys, which the CPU reads.
  if (c.method != "blocks") in.tap = &tap;
  const Tensor y = with_loss(block.attention->forward(in), tap, in.visible);
  out.forward = emulator::take_launches();
  backward(y, dy);
  out.backward = emulator::take_launches();
  trim(kCuda);
  return out;
}

std::vector<Case> sea_cases() {
  std::vector<Case> out;
  for (bool causal : {true, false}) {
    for (const char* preset : {"paper", "light"}) {
      for (Dtype compute : {Dtype::f32, Dtype::bf16}) {
        out.push_back({"sea", {{"preset", preset}, {"columns", 128}}, causal, compute});
      }
      out.push_back({"sea", {{"preset", preset}, {"columns", 64}}, causal, Dtype::bf16, true});
    }
    // One head, whose convolutions have few channels.
    out.push_back(
        {"sea", {{"preset", "paper"}, {"columns", 128}}, causal, Dtype::f32, false, 1, 128});
  }
  for (const char* mode : {"per-query", "per-head", "per-batch"}) {
    out.push_back({"sea", {{"preset", "paper"}, {"mode", mode}}, false});
  }
  out.push_back({"sea", {{"preset", "light"}, {"columns", 256}}, true});
  out.push_back({"sea", {{"prior", "learned"}}, true});
  out.push_back({"sea", {{"mu_scope", "token"}, {"features", "softmax"}}, false});
  return out;
}

std::vector<Case> block_cases() {
  std::vector<Case> out;
  for (Dtype compute : {Dtype::f32, Dtype::bf16}) {
    out.push_back({"blocks", {}, true, compute});
  }
  out.push_back({"blocks", {}, true, Dtype::bf16, true, 2, 128});
  return out;
}

std::vector<Case> full_cases() {
  std::vector<Case> out;
  for (const char* method : {"dense", "flash", "performer"}) {
    for (bool causal : {true, false}) {
      for (Dtype compute : {Dtype::f32, Dtype::bf16}) {
        out.push_back({method, data::Json::object(), causal, compute});
      }
    }
  }
  return out;
}

// Cases, and how many launches each of their passes has at least.
struct Group {
  std::vector<Case> cases;
  size_t inference = 0, forward = 0, backward = 0;
  // Whether check_shares() sees the forward pass, and the others.
  bool forward_shares = false, shares = false;
};

// The losses of attention maps, forward and backward.
void of_attention(const TeacherAttention& teacher, const Visibility& visible, const Shape& heads,
                  const Shape& maps) {
  const Tensor q = leaf(heads), k = leaf(heads), scores = leaf(maps);
  backward(prob_loss(q, k, teacher, visible), unread({2}));
  const TeacherSummary summary = summarize_teacher(teacher, maps[3], visible);
  backward(approx_loss(scores, summary, visible), unread({2}));
}

// Those of the logits, of outputs and of the next token; the optimizer's sums.
void of_logits() {
  constexpr int64_t kVocabulary = 50272, kWidth = kHeads * kSize;
  const Tensor logits = leaf({kTokens, kVocabulary}), ids = unread({kTokens}, Dtype::i32);
  backward(cross_entropy(logits, ids), unread({kTokens}));
  backward(kl_logits(logits,
                     {unread({kTokens, 64}), unread({kTokens, 64}, Dtype::i32), unread({kTokens})}),
           unread({kTokens}));
  const Tensor a = leaf({kTokens, kWidth}), b = leaf({kTokens, kWidth});
  backward(squared_distance(a, b, unread({kTokens})), unread({1}));
  const Tensor table = leaf({kVocabulary, kWidth});
  backward(embedding(table, ids), unread({kTokens, kWidth}));
  square_sum(a);
}

// The largest bytes of an operand for each thread of a launch. Blocks of many parameters, of which
// a kernel reads one, do not count.
double bytes_per_thread(const emulator::Launch& launch, const std::vector<const void*>& shared) {
  size_t largest = 0;
  for (const emulator::Operand& o : launch.operands) {
    if (std::find(shared.begin(), shared.end(), o.block) == shared.end())
      largest = std::max(largest, o.bytes);
  }
  return double(largest) / launch.threads();
}

// Kernels whose threads read a small part of an operand, or whose work is a product.
bool is_product(const std::string& name) {
  static const std::set<std::string> all = {"cublasLt"};
  return all.count(name) > 0;
}

void check_shares(const std::string& what, const std::vector<emulator::Launch>& launches,
                  const Recorded& of) {
  for (const emulator::Launch& launch : launches) {
    if (is_product(launch.name)) continue;
    const double bytes = bytes_per_thread(launch, of.shared);
    CHECK_MESSAGE(bytes <= (launch.threads() < kMany ? kMaxBytes : kMaxBytesOfMany),
                  what << ": a thread of " << launch.name << ", " << launch.threads()
                       << " of them, has " << bytes << " bytes of an operand");
  }
}

}  // namespace

TEST_CASE("launches: attention to 131,072 tokens fits a device and is not left to a few threads") {
  const OnEmulator device;
  for (const Group& g :
       {Group{.cases = sea_cases(),
       .inference = 11,
       .forward = 11,
       .backward = 31,
       .forward_shares = true,
       .shares = true},
        Group{.cases = block_cases(), .inference = 4, .backward = 9, .shares = true},
        Group{.cases = full_cases(), .forward = 1, .backward = 1}}) {
    for (const Case& c : g.cases) {
      INFO(c.name());
      for (const std::string shared : {"64", "227"}) {
        const SharedMemory memory(shared.c_str());
        Recorded got;
        REQUIRE_NOTHROW(got = block_launches(c));
        CHECK(got.inference.size() >= g.inference);
        CHECK(got.forward.size() >= g.forward);
        CHECK(got.backward.size() >= g.backward);
        if (!g.shares || shared != "227") continue;
        check_shares(c.name() + ", inference", got.inference, got);
        if (g.forward_shares) check_shares(c.name() + ", forward", got.forward, got);
        check_shares(c.name() + ", backward", got.backward, got);
      }
    }
  }
}

TEST_CASE("launches: the losses of 131,072 tokens fit a device") {
  const OnEmulator device;
  const Shape heads{1, kHeads, kTokens, kSize}, maps{1, kHeads, kTokens, 128};
  for (const char* shared : {"64", "227"}) {
    const SharedMemory memory(shared);
    for (bool causal : {true, false}) {
      for (Dtype type : {Dtype::f32, Dtype::bf16}) {
        const ComputeType compute(type);
        const Visibility visible{.causal = causal};
        const TeacherAttention teacher{{}, unread(heads, type), unread(heads, type)};
        REQUIRE_NOTHROW(of_attention(teacher, visible, heads, maps));
      }
    }
    REQUIRE_NOTHROW(of_logits());
    CHECK(emulator::take_launches().size() > 30);
    trim(kCuda);
  }
  of_attention({{}, unread(heads), unread(heads)}, {.causal = true}, heads, maps);
  of_logits();
  check_shares("losses", emulator::take_launches(), {});
  trim(kCuda);
}

TEST_CASE("launches: the last block of a grid reaches the operands of its launch alone") {
  const OnEmulator device;
  // The excepted pass over all keys, or follow offsets that other kernels have written.
  emulator::run_last_blocks({"flash_attention", "flash_attention_backward", "prob_loss",
                             "prob_loss_backward", "summarize_teacher", "fill_csr",
                             "sparse_attention", "sparse_attention_backward"});
  for (const Case& c : sea_cases()) {
    if (c.compute == Dtype::f32) block_launches(c);
  }
  for (bool causal : {true, false}) {
    block_launches({"dense", data::Json::object(), causal});
    block_launches({"flash", data::Json::object(), causal, Dtype::bf16});
  }
  of_logits();
  emulator::run_no_blocks();
  CHECK(emulator::take_launches().size() > 10);
  trim(kCuda);
}
