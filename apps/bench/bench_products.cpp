// Pieces of products by each of oneDNN's paths, from which the table of paths is made.
#include <algorithm>
#include <map>
#include <tuple>

#include "apps/bench/bench.h"
#include "apps/bench/parts/peaks.h"
#include "data/io/file_io.h"
#include "tensor/cpu/core/onednn_choice.h"
#include "tensor/device/device.h"
#include "tensor/kernels/dense.h"

namespace brine::bench {
namespace {

using onednn::Gemm;
using onednn::Input;
using onednn::Path;
using onednn::Piece;

// Of every piece; more where a table comes of it.
constexpr size_t kTurns = 3, kTurnsToWrite = 9;

// A layer on `rows` tokens.
struct Layer {
  int64_t rows, in, out;
  bool trained = true;  // otherwise the forward product only
};

// BERT-base and OPT-125M; MiniLM; SmolLM2-135M; mu and nu of a block.
constexpr Layer kLayers[] = {
    {2048, 768, 768},  {2048, 768, 2304}, {2048, 768, 3072},         {2048, 3072, 768},
    {2048, 384, 384},  {2048, 384, 1152}, {2048, 384, 1536},         {2048, 1536, 384},
    {2048, 576, 576},  {2048, 576, 960},  {2048, 576, 1536},         {2048, 1536, 576},
    {16384, 192, 128}, {16384, 128, 64},  {2048, 576, 49152, false}, {2048, 768, 50272, false},
};

// Scores and values of tiles of attention, and chunks of linear attention: called with these sizes.
constexpr struct {
  int64_t M, N, K;
  bool ta, tb;
} kTiles[] = {{64, 96, 64, false, true},   {96, 64, 64, false, true},   {64, 64, 96, false, false},
              {64, 1024, 64, false, true}, {32, 2048, 64, false, true}, {48, 48, 64, false, true},
              {48, 128, 64, false, false}, {64, 128, 48, true, false}};

// One product of a layer: y = x w^T, dx = dy w, or dw += dy^T x.
struct LayerProduct {
  const char* letters;
  int64_t M, N, K;
  bool ta, tb;
  double beta;
};

std::vector<LayerProduct> products_of(const Layer& full) {
  const int64_t rows = sized(full.rows, 32), in = sized(full.in, 24), out = sized(full.out, 40);
  std::vector<LayerProduct> all = {{"NT", rows, out, in, false, true, 0}};
  if (!full.trained) return all;
  all.push_back({"NN", rows, in, out, false, false, 0});
  all.push_back({"TN added", out, in, rows, true, false, 1});
  return all;
}

// Its call, with memory of its own.
std::function<void()> call_of(const LayerProduct& p, Dtype type) {
  const Tensor a = ramp(p.ta ? Shape{p.K, p.M} : Shape{p.M, p.K}).to(type);
  const Tensor b = ramp(p.tb ? Shape{p.N, p.K} : Shape{p.K, p.N}).to(type);
  const Tensor y = Tensor::zeros({p.M, p.N});
  return [=] { BRINE_CALL(y, matmul, y, a, b, p.ta, p.tb, 1, p.beta); };
}

std::vector<Piece> pieces_of(const std::function<void()>& call) {
  const int before = threads();
  set_threads(1);
  onednn::PieceLog log;
  call();
  set_threads(before);
  return log.pieces;
}

std::vector<Dtype> types() {
  if (onednn::has_bf16_gemm()) return {Dtype::f32, Dtype::bf16};
  return {Dtype::f32};
}

auto key_of(const Piece& p) {
  const Gemm& g = p.gemm;
  return std::tuple(p.input, g.ta, g.tb, g.M, g.N, g.K, g.lda, g.ldb, g.ldc, g.alpha, g.beta);
}

// The pieces into which the models' products are cut, each once.
std::vector<Piece> model_pieces() {
  std::vector<Piece> pieces;
  for (const Layer& layer : kLayers) {
    for (const LayerProduct& p : products_of(layer)) {
      for (Dtype type : types()) {
        const std::vector<Piece> of_product = pieces_of(call_of(p, type));
        pieces.insert(pieces.end(), of_product.begin(), of_product.end());
      }
    }
  }
  for (const auto& [M, N, K, ta, tb] : kTiles) {
    const Gemm g{
        .M = M, .N = N, .K = K, .ta = ta, .tb = tb, .lda = ta ? M : K, .ldb = tb ? K : N, .ldc = N};
    pieces.push_back({g, Input::f32});
  }
  auto before = [](const Piece& a, const Piece& b) { return key_of(a) < key_of(b); };
  std::ranges::sort(pieces, before);
  auto same = [](const Piece& a, const Piece& b) { return key_of(a) == key_of(b); };
  pieces.erase(std::unique(pieces.begin(), pieces.end(), same), pieces.end());
  return pieces;
}

double work_of(const Gemm& g) { return 2 * double(g.M) * double(g.N) * double(g.K); }

// One turn of a piece: medians by path, then of a product with b kept, and GFLOP/s of the peak.
struct Turn {
  std::vector<double> ms;
  double kept_ms = 0, peak = 0;
};

template <class T>
Turn measure(const Gemm& g, const std::vector<Path>& paths) {
  auto factor = [](int64_t rows, int64_t ld) { return ramp({rows, ld}).to(DtypeOf<T>::value); };
  const Tensor a = factor(g.ta ? g.K : g.M, g.lda), b = factor(g.tb ? g.N : g.K, g.ldb);
  Tensor c = Tensor::zeros({g.M, g.ldc});
  // As many calls as take longer than reading the clock.
  const int calls = int(std::max(1.0, (is_quick() ? 1e5 : 5e7) / work_of(g)));
  std::vector<std::function<void()>> turns;
  for (Path path : paths) {
    turns.emplace_back([&, path] {
      for (int i = 0; i < calls; ++i)
        onednn::gemm(path, g, a.data<T>(), b.data<T>(), c.data<float>());
    });
  }
  const auto kept = onednn::gemm_with_kept_b(g, a.data<T>(), b.data<T>(), c.data<float>());
  turns.emplace_back([&] {
    for (int i = 0; i < calls; ++i) kept();
  });
  const Peak peak = std::is_same_v<T, float> ? Peak::f32 : best_bf16_peak();
  double operations = 0;
  turns.emplace_back([&] { operations = burst(peak); });
  const auto times = turn_times(turns, 0.25, thread_ms);
  Turn turn;
  for (size_t i = 0; i < paths.size(); ++i) turn.ms.push_back(median(times[i]) / calls);
  turn.kept_ms = median(times[paths.size()]) / calls;
  turn.peak = operations / std::ranges::min(times.back()) / 1e6;
  return turn;
}

// `turns`: of one piece.
BenchRow piece_row(const Piece& p, const std::vector<Path>& paths, Path chosen,
                   const std::vector<Turn>& turns) {
  const Gemm& g = p.gemm;
  const double work = work_of(g) / 1e6;
  auto over_turns = [&](auto&& of_turn) {
    std::vector<double> values;
    for (const Turn& t : turns) values.push_back(of_turn(t));
    return median(values);
  };
  BenchRow row;
  double usual = 0;
  for (size_t i = 0; i < paths.size(); ++i) {
    const double ms = over_turns([&](const Turn& t) { return t.ms[i]; });
    if (paths[i] == chosen) row.ms = ms;
    if (paths[i] == onednn::default_path(p.input)) usual = ms;
    row.notes.emplace_back(onednn::name_of(paths[i]), work / ms);
  }
  row.notes.emplace_back("b_kept", work / over_turns([](const Turn& t) { return t.kept_ms; }));
  row.name = join(p.input == Input::f32 ? "f32 " : "bf16 ", g.ta ? 'T' : 'N', g.tb ? 'T' : 'N',
                  g.beta != 0 ? " added, " : ", ", onednn::name_of(chosen));
  row.shape = join(g.M, " ", g.N, " ", g.K);
  row.rate = work / row.ms;
  row.unit = "GFLOP/s";
  row.share = row.rate / over_turns([](const Turn& t) { return t.peak; });
  row.ratio = usual / row.ms;
  return row;
}

// Products of layers that the compiled table changes, by it and by the default paths, in turns.
void changed_products(RowSink& rows) {
  for (const Layer& layer : kLayers) {
    for (const LayerProduct& p : products_of(layer)) {
      for (Dtype type : types()) {
        const auto call = call_of(p, type);
        const auto usual = [](const Piece& piece) {
          return piece.path == onednn::default_path(piece.input);
        };
        if (std::ranges::all_of(pieces_of(call), usual)) continue;
        const auto [table_ms, default_ms] = median_times(call, [&] {
          const auto table = onednn::use_paths({});
          call();
          onednn::use_paths(table);
        });
        const double rate = 2 * double(p.M) * double(p.N) * double(p.K) / table_ms / 1e6;
        rows.add({join("layer, ", type, " ", p.letters), join(p.M, " ", p.N, " ", p.K), table_ms,
                  rate, "GFLOP/s", 0, default_ms / table_ms});
      }
    }
  }
}

}  // namespace

void bench_products(RowSink& rows, const std::string& write) {
  check(write.empty() || !is_quick(), "bench: --quick measures nothing that --write could keep");
  const int before = threads();
  set_threads(1);
  const std::vector<Piece> pieces = model_pieces();
  std::vector<onednn::MeasuredPiece> measured;
  for (const Piece& p : pieces) measured.push_back({p, onednn::paths_of(p.input), {}});
  std::vector<std::vector<Turn>> turns(pieces.size());
  const size_t count = write.empty() ? kTurns : kTurnsToWrite;
  for (size_t turn = 0; turn < count; ++turn) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto measure_piece = pieces[i].input == Input::f32 ? measure<float> : measure<bf16>;
      turns[i].push_back(measure_piece(pieces[i].gemm, measured[i].paths));
      measured[i].turns.push_back(turns[i].back().ms);
    }
  }
  set_threads(before);
  const onednn::Cpu cpu = onednn::this_cpu();
  const std::vector<onednn::PathEntry> chosen = onednn::choose_paths(cpu, measured);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Path path = onednn::path_of(chosen, cpu, product_class(pieces[i]));
    rows.add(piece_row(pieces[i], measured[i].paths, path, turns[i]));
  }
  changed_products(rows);
  if (!write.empty())
    data::write_file_atomic(write, onednn::path_file(cpu, chosen, onednn::path_table()));
}

}  // namespace brine::bench
