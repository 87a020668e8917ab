// A pass over one text with an observer of its layers.
#include "distill/maps/text_pass.h"

#include <algorithm>
#include <cstring>

#include "tensor/comm/bytes.h"
#include "tensor/comm/shared_work.h"

namespace brine::distill {
namespace {

// Collects a model's layers; its mask recall is counted next to the teacher.
class Observer : public nn::LayerObserver {
 public:
  Observer(const nn::LoadedModel& model, const TextPass& pass)
      : causal_(model.config.shape().causal), collector_(pass) {
    if (!model.model->attention_traits().sparse) return;
    recall_ =
        RecallObserver::make(pass.teacher.empty() ? kSelf : pass.teacher, model, {.k = pass.k});
    recall_->counts = [this](int64_t layer) { return collector_.has(layer); };
    recall_->watch = [this](int64_t layer, const nn::Tap& tap, const TeacherLayer& teacher) {
      collector_.add(layer, view_of(tap, attention_of(teacher), causal_));
    };
  }

  void begin(const Batch& batch) {
    if (recall_) recall_->begin(batch);
  }
  void prepare(nn::Tap& tap) const override { tap.request(kImages); }
  Tensor observe(int64_t layer, const nn::Tap& tap, const Tensor& output) override {
    if (recall_) return recall_->observe(layer, tap, output);
    if (!collector_.has(layer)) return {};
    collector_.add(layer, view_of(tap, {.map = {}, .q = tap.get("q"), .k = tap.get("k")}, causal_));
    return {};
  }
  TextAttention take() {
    return collector_.take(recall_ ? recall_->layers() : std::vector<Recall>());
  }

 private:
  bool causal_;
  LayerCollector collector_;
  std::unique_ptr<RecallObserver> recall_;
};

// ---- What travels to the first rank.

void write_tensor(ByteWriter& out, const Tensor& x) {
  const int64_t n = x.numel();
  out.number(x.dtype());
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < x.rank(); ++i) sizes.push_back(x.dim(i));
  out.list(sizes);
  out.text({reinterpret_cast<const char*>(x.raw()), size_t(n) * item_size(x.dtype())});
}

Tensor read_tensor(ByteReader& in) {
  const auto dtype = in.number<Dtype>();
  const Tensor x = Tensor::empty(Shape(in.list<int64_t>()), dtype);
  const std::string bytes = in.text();
  check(bytes.size() == size_t(x.numel()) * item_size(dtype), "report: a tensor ", x.shape(),
        " of another rank has ", bytes.size(), " bytes");
  std::memcpy(x.raw(), bytes.data(), bytes.size());
  return x;
}

constexpr CellMap HeadMaps::*kMaps[] = {&HeadMaps::teacher,  &HeadMaps::estimate,
                                        &HeadMaps::selected, &HeadMaps::widened,
                                        &HeadMaps::mask,     &HeadMaps::student};

void write_heads(ByteWriter& out, const std::vector<HeadMaps>& heads) {
  out.number(uint64_t(heads.size()));
  for (const HeadMaps& head : heads) {
    out.number(head.layer);
    out.number(head.head);
    for (const auto map : kMaps) (head.*map).write(out);
    out.number(uint64_t(head.images.size()));
    for (const CellMap& image : head.images) image.write(out);
  }
}

std::vector<HeadMaps> read_heads(ByteReader& in) {
  std::vector<HeadMaps> heads(in.number<uint64_t>());
  for (HeadMaps& head : heads) {
    head.layer = in.number<int64_t>();
    head.head = in.number<int64_t>();
    for (const auto map : kMaps) head.*map = CellMap::read(in);
    head.images.resize(in.number<uint64_t>());
    for (CellMap& image : head.images) image = CellMap::read(in);
  }
  return heads;
}

void write_mask(ByteWriter& out, const FlatCsr& mask) {
  for (const Tensor& x : {mask.row_pointers, mask.head_offsets, mask.columns}) write_tensor(out, x);
  for (const int64_t n : {mask.batch, mask.heads, mask.length, mask.keys}) out.number(n);
}

FlatCsr read_mask(ByteReader& in) {
  FlatCsr mask;
  for (Tensor* x : {&mask.row_pointers, &mask.head_offsets, &mask.columns}) *x = read_tensor(in);
  for (int64_t* n : {&mask.batch, &mask.heads, &mask.length, &mask.keys}) *n = in.number<int64_t>();
  return mask;
}

// Layer i of all is layer i / R of rank i mod R.
template <class T>
std::vector<T> in_order(std::vector<std::vector<T>>& of_ranks) {
  std::vector<T> all;
  for (size_t i = 0;; ++i) {
    for (std::vector<T>& own : of_ranks) {
      if (i >= own.size()) return all;
      all.push_back(std::move(own[i]));
    }
  }
}

}  // namespace

void LayerCollector::add(int64_t layer, const LayerView& view) {
  maps_.add(layer, view);
  if (pass_.importance) {
    std::string lines = importance_lines(*pass_.importance, layer, view);
    if (is_divided()) {
      lines_.push_back(std::move(lines));
    } else {
      pass_.file->add(lines);
    }
  }
  if (pass_.keeps_masks && view.has_mask()) masks_.push_back(view.mask);
}

TextAttention LayerCollector::take(std::vector<Recall> recall) {
  TextAttention own{maps_.take(), std::move(recall), std::move(masks_)};
  if (!is_divided()) return own;
  const std::vector<std::string> parts = collect_work(*pass_.ranks, "layers of the report", [&] {
    ByteWriter out;
    write_heads(out, own.maps.heads);
    out.number(uint64_t(own.masks.size()));
    for (const FlatCsr& mask : own.masks) write_mask(out, mask);
    out.number(uint64_t(lines_.size()));
    for (const std::string& lines : lines_) out.text(lines);
    out.number(uint64_t(own.maps.heat.size()));
    for (const TokenHeat& heat : own.maps.heat) {
      out.list(heat.teacher);
      out.list(heat.student);
    }
    out.text(bytes_of(own.recall));
    return out.bytes();
  });
  if (!pass_.ranks->is_first()) return {};
  const size_t ranks = parts.size();
  std::vector<std::vector<FlatCsr>> masks(ranks);
  std::vector<std::vector<std::string>> lines(ranks);
  std::vector<std::vector<TokenHeat>> heat(ranks);
  own.maps.heads.clear();
  for (size_t r = 0; r < ranks; ++r) {
    ByteReader in(parts[r]);
    for (HeadMaps& head : read_heads(in)) own.maps.heads.push_back(std::move(head));
    for (auto left = in.number<uint64_t>(); left > 0; --left) masks[r].push_back(read_mask(in));
    for (auto left = in.number<uint64_t>(); left > 0; --left) lines[r].push_back(in.text());
    for (auto left = in.number<uint64_t>(); left > 0; --left) {
      heat[r].emplace_back();
      heat[r].back().teacher = in.list<float>();
      heat[r].back().student = in.list<float>();
    }
    const std::string theirs = in.text();
    if (r > 0) add_bytes(own.recall, theirs);
  }
  std::stable_sort(own.maps.heads.begin(), own.maps.heads.end(),
                   [](const HeadMaps& a, const HeadMaps& b) { return a.layer < b.layer; });
  own.masks = in_order(masks);
  own.maps.heat = in_order(heat);
  for (const std::string& layer : in_order(lines)) pass_.file->add(layer);
  return own;
}

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

std::vector<std::vector<double>> mask_overlap(const std::vector<FlatCsr>& a,
                                              const std::vector<FlatCsr>& b) {
  check(a.size() == b.size(), "report: masks of ", a.size(), " and of ", b.size(), " layers");
  std::vector<std::vector<double>> out;
  for (size_t layer = 0; layer < a.size(); ++layer) {
    const MaskRows first(a[layer]), second(b[layer]);
    check(first.H == second.H && first.T == second.T, "report: masks of ", first.H, " heads and ",
          first.T, " tokens cannot be compared with those of ", second.H, " and ", second.T);
    std::vector<double> heads;
    for (int64_t h = 0; h < first.H; ++h) {
      int64_t both = 0, all = 0;
      for (int64_t t = 0; t < first.T; ++t) {
        const RowEntries x = first(0, h, t), y = second(0, h, t);
        int64_t i = 0, j = 0, common = 0;  // both are ascending
        while (i < x.count && j < y.count) {
          const int32_t p = x.columns[i], q = y.columns[j];
          common += p == q;
          i += p <= q;
          j += q <= p;
        }
        both += common;
        all += x.count + y.count - common;
      }
      heads.push_back(all ? double(both) / double(all) : 1);
    }
    out.push_back(std::move(heads));
  }
  return out;
}

}  // namespace brine::distill
