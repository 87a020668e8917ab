// The table of paths, and every path of oneDNN against a sum in f64.
#include "tensor/cpu/core/onednn_paths.h"

#include <cmath>
#include <tuple>

#include "tensor/cpu/core/onednn.h"
#include "tensor/cpu/core/onednn_choice.h"
#include "tensor/kernels/dense.h"
#include "tests/gradcheck.h"

using namespace brine;
using brine::test::normal;
using onednn::Cpu;
using onednn::Gemm;
using onednn::Input;
using onednn::Path;
using onednn::PathEntry;
using onednn::ProductClass;

namespace {

// Those that this CPU has.
std::vector<Path> own_paths(Input input) {
  if (input == Input::bf16 && !onednn::has_bf16_gemm()) return {};
  return onednn::paths_of(input);
}

// Another table while an object lives.
struct Table {
  explicit Table(const std::vector<PathEntry>& entries) : before(onednn::use_paths(entries)) {}
  ~Table() { onednn::use_paths(before); }
  std::span<const PathEntry> before;
};

// Rows of the three matrices are 3, 5 and 7 elements longer than they need to be.
struct Case {
  Gemm g;
  Tensor a, b, c;  // c: the earlier one

  Case(int64_t M, int64_t N, int64_t K, bool ta, bool tb, float alpha, float beta, Dtype type)
      : g{M, N, K, ta, tb, (ta ? M : K) + 3, (tb ? K : N) + 5, N + 7, alpha, beta},
        a(normal({ta ? K : M, g.lda}, 1, type)),
        b(normal({tb ? N : K, g.ldb}, 2, type)),
        c(normal({M, g.ldc}, 3)) {
    if (beta == 0) cpu::copy(c.slice(1, 0, N), Tensor::full({M, N}, std::nan("")));
  }

  Tensor by(Path path) const {
    Tensor y = c.clone();
    if (a.dtype() == Dtype::f32) {
      onednn::gemm(path, g, a.data<float>(), b.data<float>(), y.data<float>());
    } else {
      onednn::gemm(path, g, a.data<bf16>(), b.data<bf16>(), y.data<float>());
    }
    return y;
  }

  Tensor with_kept_b() const {
    Tensor y = c.clone();
    if (a.dtype() == Dtype::f32) {
      onednn::gemm_with_kept_b(g, a.data<float>(), b.data<float>(), y.data<float>())();
    } else {
      onednn::gemm_with_kept_b(g, a.data<bf16>(), b.data<bf16>(), y.data<float>())();
    }
    return y;
  }

  // The largest error relative to the sum of the terms' sizes; infinite for a NaN and for a changed
  // element beyond a row's end.
  double error(const Tensor& y) const {
    const std::vector<double> x = a.to_vector(), w = b.to_vector(), old = c.to_vector(),
                              got = y.to_vector();
    double worst = 0;
    for (int64_t i = 0; i < g.M; ++i) {
      for (int64_t j = 0; j < g.ldc; ++j) {
        const size_t at = size_t(i * g.ldc + j);
        if (j >= g.N) {
          if (got[at] != old[at]) return INFINITY;
          continue;
        }
        double sum = g.beta == 0 ? 0 : g.beta * old[at], size = std::abs(sum);
        for (int64_t k = 0; k < g.K; ++k) {
          const double p = g.alpha * x[size_t(g.ta ? k * g.lda + i : i * g.lda + k)] *
                           w[size_t(g.tb ? j * g.ldb + k : k * g.ldb + j)];
          sum += p;
          size += std::abs(p);
        }
        const double e = std::abs(got[at] - sum) / (size + 1e-300);
        worst = std::isnan(e) ? INFINITY : std::max(worst, e);
      }
    }
    return worst;
  }
};

Tensor product(const Tensor& a, const Tensor& b, bool ta, bool tb) {
  Tensor y = Tensor::empty({a.dim(ta ? 1 : 0), b.dim(tb ? 0 : 1)});
  cpu::matmul(y, a, b, ta, tb, 1, 0);
  return y;
}

}  // namespace

TEST_CASE("paths: the table ascends, and every entry is found and differs from the default") {
  const std::span<const PathEntry> table = onednn::path_table();
  for (size_t i = 0; i < table.size(); ++i) {
    const auto& [cpu, p, path] = table[i];
    INFO(onednn::name_of(cpu), " entry ", i);
    if (i > 0) CHECK(std::tie(table[i - 1].cpu, table[i - 1].product) < std::tie(cpu, p));
    CHECK(onednn::path_of(table, cpu, p) == path);
    CHECK(path != onednn::default_path(p.input));
    CHECK_FALSE((p.input == Input::bf16 && path == Path::sgemm));
    // Some product has this class: both ends of each range of sizes.
    auto largest = [](int e) { return int64_t(1) << e; };
    auto smallest = [](int e) { return e == 0 ? 1 : (int64_t(1) << (e - 1)) + 1; };
    CHECK(onednn::product_class(p.input, p.ta, p.tb, largest(p.m), largest(p.n), largest(p.k)) ==
          p);
    CHECK(onednn::product_class(p.input, p.ta, p.tb, smallest(p.m), smallest(p.n), smallest(p.k)) ==
          p);
  }
}

TEST_CASE("paths: a class has sizes of one power of two; others take the default") {
  const ProductClass c = onednn::product_class(Input::f32, true, false, 1, 768, 1025);
  CHECK(c == ProductClass{Input::f32, true, false, 0, 10, 11});
  CHECK(onednn::product_class(Input::f32, true, false, 1, 1024, 2048) == c);
  CHECK(onednn::product_class(Input::f32, true, false, 1, 512, 2048) != c);
  const std::vector<PathEntry> table = {{Cpu::generic, c, Path::packed},
                                        {Cpu::amd_zen5, c, Path::matmul}};
  CHECK(onednn::path_of(table, Cpu::generic, c) == Path::packed);
  CHECK(onednn::path_of(table, Cpu::amd_zen5, c) == Path::matmul);
  CHECK(onednn::path_of(table, Cpu::amd_zen4, c) == Path::sgemm);
  CHECK(onednn::path_of(table, Cpu::intel_amx, c) == Path::sgemm);
  ProductClass other = c;
  other.input = Input::bf16;
  CHECK(onednn::path_of(table, Cpu::generic, other) == Path::matmul);
  other = c;
  other.tb = true;
  CHECK(onednn::path_of(table, Cpu::generic, other) == Path::sgemm);
  CHECK(onednn::path_of({}, Cpu::generic, c) == Path::sgemm);
}

TEST_CASE("paths: the class of a CPU by vendor, family and instructions") {
  auto amd = [](int family, bool avx512) {
    return onednn::class_of({.amd = true, .family = family, .model = 17, .avx512 = avx512});
  };
  CHECK(amd(25, true) == Cpu::amd_zen4);
  CHECK(amd(25, false) == Cpu::generic);  // Zen 3
  CHECK(amd(26, true) == Cpu::amd_zen5);
  CHECK(amd(27, true) == Cpu::generic);
  auto intel = [](bool avx512, bool amx) {
    return onednn::class_of(
        {.intel = true, .family = 6, .model = 143, .avx512 = avx512, .amx_bf16 = amx});
  };
  CHECK(intel(true, true) == Cpu::intel_amx);
  CHECK(intel(true, false) == Cpu::intel_avx512);
  CHECK(intel(false, false) == Cpu::generic);
  CHECK(onednn::class_of({}) == Cpu::generic);
  CHECK(onednn::this_cpu() == onednn::class_of(this_cpu_identity()));
}

TEST_CASE("paths: each gives the product at odd sizes, and the same bits again") {
  const struct {
    int64_t M, N, K;
  } sizes[] = {{1, 1, 1}, {1, 33, 100}, {63, 1, 31}, {33, 65, 257}, {100, 63, 3}, {129, 97, 191}};
  int turn = 0;
  for (Input input : {Input::f32, Input::bf16}) {
    for (const auto& [M, N, K] : sizes) {
      for (int way = 0; way < 4; ++way, ++turn) {
        const float alpha = turn % 3 ? 1.0F : 0.25F, beta = turn % 2 ? 0.0F : 1.0F;
        const Case one(M, N, K, way & 1, way & 2, alpha, beta,
                       input == Input::f32 ? Dtype::f32 : Dtype::bf16);
        for (Path path : own_paths(input)) {
          INFO(join(M, " ", N, " ", K, way & 1 ? " T" : " N", way & 2 ? "T " : "N ",
                    onednn::name_of(path), input == Input::f32 ? " f32" : " bf16"));
          const Tensor y = one.by(path);
          CHECK(one.error(y) < 2e-6);
          CHECK(test::same_bits(one.by(path), y));
          if (path == Path::packed) CHECK(test::same_bits(one.with_kept_b(), y));
        }
      }
    }
  }
  if (!onednn::has_bf16_gemm()) MESSAGE("skipped: the CPU has no products in bf16");
}

TEST_CASE("paths: an entry decides how matmul computes its pieces, with any number of threads") {
  for (Input input : {Input::f32, Input::bf16}) {
    const Dtype type = input == Input::f32 ? Dtype::f32 : Dtype::bf16;
    for (bool tb : {false, true}) {
      const Tensor a = normal({301, 513}, 4, type);
      const Tensor b = normal(tb ? Shape{601, 513} : Shape{513, 601}, 5, type);
      std::vector<double> first;
      for (Path path : own_paths(input)) {
        INFO(onednn::name_of(path));
        std::vector<onednn::Piece> pieces;
        {
          test::Threads one(1);
          onednn::PieceLog log;
          product(a, b, false, tb);
          pieces = log.pieces;
        }
        REQUIRE(pieces.size() > 1);
        std::vector<PathEntry> entries;
        for (const auto& [g, in, taken] : pieces) {
          const ProductClass c = onednn::product_class(in, g.ta, g.tb, g.M, g.N, g.K);
          CHECK(taken == onednn::path_of(c));
          if (entries.empty() || entries[0].product != c)
            entries.push_back({onednn::this_cpu(), c, path});
        }
        REQUIRE(entries.size() == 1);
        const Table forced(entries);
        Tensor y;
        {
          test::Threads one(1);
          onednn::PieceLog log;
          y = product(a, b, false, tb);
          REQUIRE(log.pieces.size() == pieces.size());
          for (const onednn::Piece& p : log.pieces) CHECK(p.path == path);
          // Another class is not affected.
          product(a.slice(0, 0, 40), b, false, tb);
          CHECK(log.pieces.back().path == onednn::default_path(input));
        }
        for (int t : {2, 3}) {
          test::Threads set(t);
          CHECK_MESSAGE(test::same_bits(product(a, b, false, tb), y), t << " threads");
        }
        if (first.empty()) first = y.to_vector();
        CHECK(test::close(y.to_vector(), first, 1e-4, 1e-5));
      }
    }
  }
}

TEST_CASE("paths: sgemm refuses bf16") {
  const Case one(3, 4, 5, false, false, 1, 0, Dtype::bf16);
  CHECK_THROWS_AS(one.by(Path::sgemm), Error);
}

TEST_CASE("paths: a path replaces the default only if it is 5 % faster for its class, every turn") {
  auto piece = [](int64_t M, std::vector<std::vector<double>> turns) {
    const onednn::Gemm g{.M = M, .N = 100, .K = 100, .lda = 100, .ldb = 100, .ldc = 100};
    return onednn::MeasuredPiece{{g, Input::f32}, onednn::paths_of(Input::f32), std::move(turns)};
  };
  const auto chosen = onednn::choose_paths(
      Cpu::amd_zen5, {piece(1000, {{1, .9, .8}, {1, .9, .9}, {1, .9, .96}}),  // matmul
                      piece(600, {{2, 1.9, 1.5}}),                            // the same class
                      piece(500, {{1, .96, .96}, {1, .9, .9}}),               // too little gain
                      piece(200, {{1, .9, .8}}),                              // packed
                      piece(130, {{1, .9, .9}, {1, 1, .9}}),                  // the same class
                      piece(10, {{1, .5, .5}}), piece(12, {{1, 1.01, 1.2}})});
  REQUIRE(chosen.size() == 2);
  CHECK(chosen[0].product == onednn::product_class(Input::f32, false, false, 200, 100, 100));
  CHECK(chosen[0].path == Path::packed);
  CHECK(chosen[1].product == onednn::product_class(Input::f32, false, false, 1000, 100, 100));
  CHECK(chosen[1].path == Path::matmul);
  const std::vector<onednn::PathEntry> before = {
      {Cpu::amd_zen4, {Input::bf16, false, true, 9, 10, 11}, Path::packed},
      {Cpu::amd_zen5, {Input::f32, true, false, 1, 2, 3}, Path::packed}};
  const std::string text = onednn::path_file(Cpu::amd_zen5, chosen, before);
  CHECK(text.starts_with("// "));
  auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
  CHECK(
      has("\n{Cpu::amd_zen4, {Input::bf16, false, true, 9, 10, 11}, Path::packed},\n"
          "{Cpu::amd_zen5, {Input::f32, false, false, 8, 7, 7}, Path::packed},\n"
          "{Cpu::amd_zen5, {Input::f32, false, false, 10, 7, 7}, Path::matmul},\n"));
  CHECK_FALSE(has("true, false, 1, 2, 3"));
}
