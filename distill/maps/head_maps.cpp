// Maps of the heads of a layer, row by row, from the tensors of one sequence, and the pass of a
// text that gives them.
#include "distill/maps/head_maps.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "tensor/base/parallel.h"

namespace brine::distill {

namespace {

Tensor on_cpu(const Tensor& x) {
  if (!x.defined()) return x;
  const Tensor here = x.detach().to(Device{});
  return is_float(here.dtype()) ? here.to(Dtype::f32).contiguous() : here.contiguous();
}

Tensor entry(const nn::Tap& tap, const std::string& name) {
  return tap.has(name) ? on_cpu(tap.get(name)) : Tensor();
}

}  // namespace

int64_t LayerView::heads() const {
  return teacher.map.defined() ? teacher.map.dim(1) : teacher.q.dim(1);
}

int64_t LayerView::tokens() const {
  return teacher.map.defined() ? teacher.map.dim(2) : teacher.q.dim(2);
}

LayerView view_of(const nn::Tap& tap, const TeacherAttention& teacher, bool causal) {
  LayerView view{
      .teacher = {.map = on_cpu(teacher.map), .q = on_cpu(teacher.q), .k = on_cpu(teacher.k)},
      .causal = causal,
      .estimate = entry(tap, "estimate"),
      .mask = {.row_pointers = entry(tap, "row_pointers"),
               .head_offsets = entry(tap, "head_offsets"),
               .columns = entry(tap, "columns")},
      .probabilities = entry(tap, "probabilities")};
  check(view.teacher.map.defined() || view.teacher.q.dim(0) == 1, "maps: ", view.teacher.q.dim(0),
        " sequences, wanted one");
  view.mask.batch = 1;
  view.mask.heads = view.heads();
  view.mask.length = view.mask.keys = view.tokens();
  return view;
}

Tensor teacher_tile(const LayerView& view, int64_t head, int64_t first, int64_t count) {
  NoGrad off;
  const TeacherAttention& teacher = view.teacher;
  const int64_t T = view.tokens();
  if (teacher.map.defined()) return teacher.map.select(0, 0).select(0, head).slice(0, first, count);
  const Tensor q = teacher.q.select(0, 0).select(0, head).slice(0, first, count);  // [count, d]
  const Tensor k = teacher.k.select(0, 0).select(0, head);                         // [T, d]
  // Each row as a separate sequence, whose length is the number of keys that the row sees.
  Tensor seen = Tensor::empty({count}, Dtype::i64);
  for (int64_t i = 0; i < count; ++i) seen.data<int64_t>()[i] = view.keys_of(first + i);
  const Tensor scores = matmul(q.contiguous(), k.contiguous(), false, true);
  return softmax(scores.view({count, 1, 1, T}), 1 / std::sqrt(double(q.dim(1))),
                 {.causal = false, .lengths = seen})
      .view({count, T});
}

void widen_row(const LayerView& view, int64_t head, int64_t t, std::vector<KeyMass>& out) {
  const int64_t T = view.tokens(), K = view.columns(), w = view.keys_of(t);
  const float* p = view.estimate.data<float>() + (head * T + t) * K;
  out.clear();
  double sum = 0;
  for (int64_t c = 0; c < K; ++c) {
    const int64_t first = math::column_begin(c, w, K), end = math::column_begin(c + 1, w, K);
    if (first == end) continue;
    out.push_back({first, end, p[c]});
    sum += double(p[c]) * double(end - first);
  }
  if (sum <= 0) return;
  for (KeyMass& column : out) column.mass = float(column.mass / sum);
}

namespace {

constexpr int64_t kTile = 64;          // rows of the teacher's attention at a time
constexpr int64_t kLargestSide = 384;  // of a picture
constexpr int64_t kSideStep = 16;      // of sides, so that they can be halved

}  // namespace

void MapCollector::add(int64_t layer, const LayerView& view) {
  maps_.tokens = view.tokens();
  maps_.cells = std::min(maps_.tokens, request_.cells);
  maps_.causal = view.causal;
  if (!request_.layers.empty() && !request_.layers.count(layer)) return;
  const size_t before = maps_.heads.size();
  for (int64_t h = 0; h < view.heads(); ++h) {
    if (request_.heads.empty() || request_.heads.count(h))
      maps_.heads.push_back({.layer = layer, .head = h});
  }
  parallel_for(int64_t(maps_.heads.size() - before), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) add_head(maps_.heads[before + size_t(i)], view);
  });
}

void MapCollector::add_head(HeadMaps& maps, const LayerView& view) const {
  const int64_t T = view.tokens();
  const Blocks cells(T, maps_.cells);
  const CellMap none{cells};
  std::vector<int64_t> cell_of(static_cast<size_t>(T));
  for (int64_t t = 0; t < T; ++t) cell_of[size_t(t)] = cells.of(t);
  maps[Picture::teacher] = none;
  if (view.columns()) maps[Picture::estimate] = none;
  if (view.has_mask()) maps[Picture::mask] = maps[Picture::student] = none;
  std::vector<KeyMass> columns;
  const bool by_entry = view.has_mask() && view.probabilities.rank() == 1;
  for (int64_t first = 0; first < T; first += kTile) {
    const int64_t count = std::min(kTile, T - first);
    const Tensor tile = teacher_tile(view, maps.head, first, count);
    for (int64_t t = first; t < first + count; ++t) {
      const float* row = tile.data<float>() + (t - first) * T;
      maps[Picture::teacher].add_row(t, row, view.keys_of(t));
      if (view.columns()) {
        widen_row(view, maps.head, t, columns);
        for (const KeyMass& each : columns)
          maps[Picture::estimate].add(t, each.first, each.end, each.mass);
      }
      if (!view.has_mask()) continue;
      const RowEntries kept = MaskRows(view.mask)(0, maps.head, t);
      const float* mass =
          view.probabilities.data<float>() + (by_entry ? kept.first : (maps.head * T + t) * T);
      const int64_t* cell = cell_of.data();
      float* counts = &maps[Picture::mask].sum(cell[t], 0);
      float* masses = &maps[Picture::student].sum(cell[t], 0);
      for (int64_t i = 0; i < kept.count; ++i) {
        const int64_t key = kept.key(i);
        counts[cell[key]] += 1;
        masses[cell[key]] += mass[by_entry ? i : key];
      }
    }
  }
}

TextMaps TextMaps::coarser(int64_t wanted) const {
  TextMaps out{.tokens = tokens, .cells = wanted, .causal = causal};
  for (const HeadMaps& source : heads) {
    out.heads.push_back({.layer = source.layer, .head = source.head});
    for (size_t i = 0; i < kPictures; ++i) {
      if (!source.maps[i].empty())
        out.heads.back().maps[i] = source.maps[i].coarser(Blocks(tokens, wanted));
    }
  }
  return out;
}

int64_t max_cells(int64_t tokens, int64_t limit) {
  const int64_t side = std::clamp<int64_t>(limit, 1, kLargestSide);
  if (tokens <= side) return tokens;
  return side < kSideStep ? side : side - side % kSideStep;
}

int64_t coarser_cells(int64_t tokens, int64_t cells) {
  if (cells == 1) return 0;
  if (cells == tokens) return max_cells(tokens, tokens / 2);  // single tokens make any cells
  return cells % 2 == 0 ? cells / 2 : 0;
}

Blocks::Blocks(int64_t items, int64_t cells) : items_(items), cells_(cells) {
  check(cells > 0 && cells <= items, "maps: ", cells, " cells for ", items, " tokens");
}

bool Blocks::refines(const Blocks& coarse) const {
  if (coarse.items_ != items_ || coarse.cells_ > cells_) return false;
  for (int64_t c = 0; c < coarse.cells_; ++c) {
    const int64_t at = coarse.begin(c);
    if (begin(of(at)) != at) return false;
  }
  return true;
}

void CellMap::add(int64_t row, int64_t begin, int64_t end, float value) {
  float* sums = &sum_[size_t(tokens_.of(row) * tokens_.cells())];
  while (begin < end) {
    const int64_t c = tokens_.of(begin), stop = std::min(end, tokens_.begin(c + 1));
    sums[c] += value * float(stop - begin);
    begin = stop;
  }
}

void CellMap::add_row(int64_t row, const float* values, int64_t n) {
  float* sums = &sum_[size_t(tokens_.of(row) * tokens_.cells())];
  for (int64_t c = 0; c < tokens_.cells() && tokens_.begin(c) < n; ++c) {
    const int64_t end = std::min(tokens_.begin(c + 1), n);
    float total = 0;
    for (int64_t j = tokens_.begin(c); j < end; ++j) total += values[j];
    sums[c] += total;
  }
}

CellMap CellMap::coarser(const Blocks& tokens) const {
  check(tokens_.refines(tokens), "maps: ", tokens.cells(), " cells are not made of ",
        tokens_.cells());
  CellMap out(tokens);
  for (int64_t r = 0; r < tokens_.cells(); ++r) {
    for (int64_t c = 0; c < tokens_.cells(); ++c) {
      const int64_t row = tokens.of(tokens_.begin(r)), column = tokens.of(tokens_.begin(c));
      out.sum_[size_t(row * tokens.cells() + column)] += sum(r, c);
    }
  }
  return out;
}

namespace {

// Collects a model's layers; its mask recall is counted next to the teacher.
class Observer : public nn::LayerObserver {
 public:
  Observer(const nn::LoadedModel& model, const TextPass& pass)
      : causal_(model.config.shape().causal), maps_(pass.maps) {
    if (!model.model->attention_traits().sparse) return;
    recall_ = RecallObserver::make(pass.teacher.empty() ? kSelf : pass.teacher, model, pass.k);
    recall_->watch = [this](int64_t layer, const nn::Tap& tap, const TeacherLayer& teacher) {
      maps_.add(layer, view_of(tap, attention_of(teacher), causal_));
    };
  }

  void begin(const Batch& batch) {
    if (recall_) recall_->begin(batch);
  }
  void prepare(nn::Tap& tap) const override { tap.request(nn::kProbabilities); }
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override {
    if (recall_) return recall_->observe(layer, tap, output);
    maps_.add(layer, view_of(tap, {.map = {}, .q = tap.get("q"), .k = tap.get("k")}, causal_));
    return {};
  }
  TextAttention take() {
    return {maps_.take(), recall_ ? recall_->layers() : std::vector<Recall>()};
  }

 private:
  bool causal_;
  MapCollector maps_;
  std::unique_ptr<RecallObserver> recall_;
};

}  // namespace

TextAttention attend_to_text(nn::LoadedModel& model, const TextPass& pass) {
  const int64_t T = int64_t(pass.ids.size());
  const nn::ModelShape shape = model.config.shape();
  check(T > 0, "report: the text has no tokens");
  check(T <= shape.max_positions, "report: ", T, " tokens, but the model has ", shape.max_positions,
        " positions");
  for (const int32_t id : pass.ids) {
    check(id >= 0 && id < shape.vocab_size, "report: token ", id, " is outside the vocabulary of ",
          shape.vocab_size);
  }
  NoGrad off;
  Observer observer(model, pass);
  const Tensor ids = Tensor::from(pass.ids, {1, T});
  observer.begin({.ids = ids, .lengths = {}, .windows = {0}, .tokens = T});
  model.model->hidden({.ids = ids, .options = {.k = pass.k}, .observer = &observer});
  return observer.take();
}

}  // namespace brine::distill
