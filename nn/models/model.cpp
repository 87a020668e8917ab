// Code shared by the families: packing, the loop over the layers, attention from its parts.
#include "nn/models/model.h"

#include "tensor/meter/cost_meter.h"

namespace brine::nn {

ModelCall pack_rows(const ModelCall& call) {
  if (!call.attention_mask.defined()) return call;
  check(!call.lengths.defined(), "model: a call has lengths or an attention_mask, not both");
  check(call.attention_mask.dtype() == Dtype::u8 && call.attention_mask.shape() == call.ids.shape(),
        "model: attention_mask is ", call.attention_mask.dtype(), " ", call.attention_mask.shape(),
        ", wanted u8 ", call.ids.shape());
  check(!call.type_ids.defined() || call.type_ids.shape() == call.ids.shape(), "model: type_ids ",
        call.type_ids.defined() ? call.type_ids.shape() : Shape{}, " do not have the shape of ids ",
        call.ids.shape());
  int64_t B = call.ids.dim(0), T = call.ids.dim(1);
  ModelCall out = call;
  out.attention_mask = {};
  out.ids = Tensor::zeros({B, T}, Dtype::i32);
  out.positions = Tensor::zeros({B, T}, Dtype::i32);
  out.lengths = Tensor::zeros({B}, Dtype::i64);
  if (call.type_ids.defined()) out.type_ids = Tensor::zeros({B, T}, Dtype::i32);
  Tensor mask = call.attention_mask.contiguous(), ids = call.ids.contiguous();
  Tensor types = call.type_ids.defined() ? call.type_ids.contiguous() : Tensor();
  for (int64_t b = 0; b < B; ++b) {
    int64_t n = b * T;
    for (int64_t t = 0; t < T; ++t) {
      uint8_t token = mask.data<uint8_t>()[b * T + t];
      check(token <= 1, "model: attention_mask contains ", int(token), ", wanted 0 or 1");
      if (!token) continue;
      out.ids.data<int32_t>()[n] = ids.data<int32_t>()[b * T + t];
      if (types.defined()) out.type_ids.data<int32_t>()[n] = types.data<int32_t>()[b * T + t];
      out.positions.data<int32_t>()[n++] = int32_t(t);
    }
    out.lengths.data<int64_t>()[b] = n - b * T;
  }
  return out;
}

Tensor unpack_rows(const Tensor& x, const ModelCall& call) {
  check(call.positions.defined(), "model: unpack_rows() needs a call made by pack_rows()");
  int64_t B = x.dim(0), T = x.dim(1), C = x.dim(2);
  // The packed row of each position, and 1 at tokens, 0 at padding.
  Tensor rows = Tensor::zeros({B, T}, Dtype::i32), valid = Tensor::zeros({B, T}, x.dtype());
  const int32_t* position = call.positions.data<int32_t>();
  dispatch_float(x.dtype(), [&]<class S>() {
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t t = 0; t < call.lengths.data<int64_t>()[b]; ++t) {
        int64_t at = b * T + position[b * T + t];
        rows.data<int32_t>()[at] = int32_t(b * T + t);
        valid.data<S>()[at] = 1;
      }
    }
  });
  return scale_rows(embedding(reshape(x, {B * T, C}), rows), valid.to(x.device()));
}

Tensor Model::hidden(const ModelCall& given) {
  ModelCall call = pack_rows(given);
  Tensor x = embed(call);
  for (int64_t i = 0; i < shape_.layers; ++i) {
    auto run = [this, i, call](const std::vector<Tensor>& in) {
      if (!call.observer) return layer(i, in[0], call, nullptr);
      Tap tap(attention_name_);
      call.observer->prepare(tap);
      Tensor y = layer(i, in[0], call, &tap);
      Tensor loss = call.observer->observe(i, tap, y);
      return loss.defined() ? attach_loss(y, loss) : y;
    };
    x = call.recompute ? checkpoint(run, {x}, call.random) : run({x});
  }
  x = finish(x);
  return given.attention_mask.defined() ? unpack_rows(x, call) : x;
}

Tensor Model::class_logits(const Tensor&, RandomStream*) const {
  throw Error("model: has no classification head");
}

bool Model::is_attention_tensor(const std::string& name) const {
  for (int64_t i = 0; i < shape_.layers; ++i) {
    if (name.rfind(attention_prefix(i), 0) == 0) return true;
  }
  return false;
}

void Model::check_ids(const ModelCall& call, const char* family) const {
  check(call.ids.rank() == 2, family, ": ids must be [B, T], got ", call.ids.shape());
  check(!call.attention_mask.defined(), family, ": embed() needs a packed call");
  check(call.ids.dim(1) <= shape_.max_positions, family, ": ", call.ids.dim(1),
        " tokens, but the model has ", shape_.max_positions, " positions");
  if (!call.token_positions.defined()) return;
  check((call.prompt || call.ids.dim(1) == 1) &&
            call.token_positions.shape() == Shape{call.ids.dim(0)},
        family, ": a step takes one token of every sequence, got ", call.ids.shape());
  for (int64_t b = 0; b < call.ids.dim(0); ++b) {
    const int64_t position = call.token_positions.data<int64_t>()[b] + call.ids.dim(1) - 1;
    check(position < shape_.max_positions, family, ": token ", position + 1,
          " of a sequence, but the model has ", shape_.max_positions, " positions");
  }
}

Tensor attend(const AttentionParts& parts, const Tensor& x, const ModelCall& call, Tap* tap) {
  CostScope scope("projections");
  auto [q, k, v] = parts.projections(x, parts.shape.heads, parts.shape.groups());
  if (parts.query_norm) q = (*parts.query_norm)(q);
  if (parts.key_norm) k = (*parts.key_norm)(k);
  Tensor q_content, k_content;
  if (parts.positions && parts.positions->rotary()) {
    q_content = q;
    k_content = k;
    q = parts.positions->rotated(q, call.token_positions);
    k = parts.positions->rotated(k, call.token_positions);
  }
  if (tap) {
    tap->put("q", q);
    tap->put("k", repeat_heads(k, parts.shape.heads_per_group()));
    tap->put("v", repeat_heads(v, parts.shape.heads_per_group()));
  }
  const AttentionInput in{.q = q,
                          .k = k,
                          .v = v,
                          .q_content = q_content,
                          .k_content = k_content,
                          .hidden = x,
                          .visible = {.causal = parts.shape.causal, .lengths = call.lengths},
                          .options = call.options,
                          .tap = tap,
                          .random = call.random,
                          .aux_loss_weight = call.aux_loss_weight,
                          .state = call.state,
                          .slot = call.slot,
                          .more = call.more};
  Tensor c = call.is_step() ? parts.method.step(in, *call.state) : parts.method.forward(in);
  if (tap) tap->put("attention_output", c);
  if (call.attention_observer) call.attention_observer->observe(in, c);
  return c;
}

Tensor next_tokens(const Tensor& ids, const Tensor& lengths, int64_t loss_from) {
  int64_t B = ids.dim(0), T = ids.dim(1);
  Tensor out = Tensor::empty({B, T}, Dtype::i32);
  for (int64_t b = 0; b < B; ++b) {
    int64_t L = lengths.defined() ? lengths.data<int64_t>()[b] : T;
    for (int64_t t = 0; t < T; ++t) {
      bool wanted = t + 1 < L && t + 1 >= loss_from;
      out.data<int32_t>()[b * T + t] = wanted ? ids.data<int32_t>()[b * T + t + 1] : -1;
    }
  }
  return out;
}

}  // namespace brine::nn
