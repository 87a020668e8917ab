// The objective of distillation: an online teacher or a dump, micro-batches, absent and non-finite
// values.
#include "distill/losses/losses.h"
#include "nn/models/bert/bert.h"

#include "autograd/compute_type.h"
#include "distill/losses/loss_table.h"

#include "tests/distill/losses/evaluated.h"
#include "tests/distill/setup.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/sparse_oracle.h"

namespace brine::test {
namespace {

Evaluated evaluated(Pair& pair, Teacher* teacher, const std::vector<Batch>& batches,
                    const LossConfig& config = {}) {
  pair.store->zero_gradients();
  Objective objective(*pair.student, teacher, config);
  Evaluated out;
  for (const Batch& b : batches) {
    objective.run(b, {.share = 1 / double(batches.size())}, out.terms);
  }
  out.gradients = pair.store->gradients().clone();
  return out;
}

void check_close(const Evaluated& a, const Evaluated& b, double tolerance) {
  REQUIRE(a.terms.size() == b.terms.size());
  for (const auto& [name, value] : a.terms) {
    INFO(name);
    CHECK(value == doctest::Approx(b.terms.at(name)).epsilon(tolerance));
  }
  CHECK(close_to_scale(a.gradients, b.gradients, tolerance, "gradients"));
}

}  // namespace

TEST_CASE("losses: every term has its weight, works alone and adds to the sum") {
  Pair pair;
  OnlineTeacher teacher(pair.teacher);
  Batch batch = pair.source().in_order(0, 3);
  LossConfig all;
  for (const Loss& loss : losses()) all[loss.name] = std::max(all[loss.name], 0.5);
  Evaluated whole = evaluated(pair, &teacher, {batch}, all);
  double sum = 0;
  Tensor gradient = Tensor::zeros_like(whole.gradients);
  for (const Loss& loss : losses()) {
    const std::string& name = loss.name;
    INFO(name);
    LossConfig one = task_only();
    one["task"] = 0;
    one[name] = all[name];
    Evaluated alone = evaluated(pair, &teacher, {batch}, one);
    CHECK(alone.terms.at(name) > 0);
    CHECK(alone.terms.at(name) == doctest::Approx(whole.terms.at(name)).epsilon(1e-6));
    CHECK(alone.terms.at("loss") == doctest::Approx(alone.terms.at(name)).epsilon(1e-12));
    CHECK(largest(alone.gradients.to_vector()) > 0);
    gradient = add(gradient, alone.gradients);
    sum += alone.terms.at(name);
    one[name] *= 3;
    Evaluated triple = evaluated(pair, &teacher, {batch}, one);
    CHECK(triple.terms.at(name) == doctest::Approx(3 * alone.terms.at(name)).epsilon(1e-6));
  }
  CHECK(whole.terms.at("loss") == doctest::Approx(sum).epsilon(1e-6));
  CHECK(close_to_scale(whole.gradients, gradient, 1e-5, "gradients add up"));
}

TEST_CASE("losses: approx of widened probabilities is that of their T x T map") {
  struct Keep : nn::LayerObserver {
    explicit Keep(std::string name) : name(std::move(name)) {}
    Tensor observe(int64_t, const nn::Tap& tap, const Tensor&) override {
      kept.push_back(tap.get(name).detach());
      return {};
    }
    std::string name;
    std::vector<Tensor> kept;
  };
  LossConfig config = task_only();
  config["task"] = 0;
  config["approx"] = 1;
  Pair pair({.dtype = Dtype::f64, .widen = "probabilities"}, "sea", "dense"),
      scores({.dtype = Dtype::f64}, "sea", "dense");
  const Batch batch = pair.source().in_order(0, 3);
  OnlineTeacher teacher(pair.teacher);
  const Evaluated got = evaluated(pair, &teacher, {batch}, config);
  Keep estimated("scores"), maps("probabilities");
  {
    NoGrad off;
    pair.student->hidden({.ids = batch.ids, .observer = &estimated});
    pair.teacher->hidden({.ids = batch.ids, .observer = &maps});
  }
  const MaskCase m{.B = 3, .H = 3, .T = 16, .K = 12};
  double wanted = 0;
  for (size_t layer = 0; layer < 2; ++layer) {
    const std::vector<double> s = estimated.kept[layer].to_vector();
    std::vector<double> a(size_t(m.B * m.H * m.T * m.T), 0);
    for (int64_t r = 0; r < m.B * m.H * m.T; ++r) {
      const int64_t w = r % m.T + 1;
      const std::vector<int64_t> n = keys_per_column(w, m.K), column = columns_of_keys(w, m.K);
      double sum = 0;
      for (int64_t c = 0; c < m.K; ++c)
        sum += n[size_t(c)] > 0 ? std::exp(s[size_t(r * m.K + c)]) : 0;
      for (int64_t j = 0; j < w; ++j) {
        a[size_t(r * m.T + j)] = std::exp(s[size_t(r * m.K + column[size_t(j)])]) / sum;
      }
    }
    const std::vector<double> pair_of = naive_loss(maps.kept[layer].to_vector(), a, m);
    wanted += (0.1 * pair_of[0] + pair_of[1]) / 2;
  }
  CHECK(got.terms.at("approx") == doctest::Approx(wanted).epsilon(1e-10));
  OnlineTeacher same(scores.teacher);
  const Evaluated other = evaluated(scores, &same, {batch}, config);
  CHECK(std::abs(other.terms.at("approx") - wanted) > 1e-3 * std::abs(wanted));
  CHECK_FALSE(close_to_scale(other.gradients, got.gradients, 1e-3));
  // Recomputation goes the same way.
  pair.store->zero_gradients();
  Objective objective(*pair.student, &teacher, config);
  LossTerms terms;
  objective.run(batch, {.recompute = true}, terms);
  CHECK(same_bits(pair.store->gradients(), got.gradients));
}

TEST_CASE("losses: unknown losses and tensors of a teacher are refused") {
  LossConfig config;
  CHECK(message([&] { config["entropie"] = 1; }) == "losses: unknown loss 'entropie'");
  data::TensorSet set;
  CHECK(message([&] { set["qurey"] = Tensor(); }) == "teacher: unknown tensor 'qurey'");
}

TEST_CASE("losses: a student equal to its teacher has no loss but the task's") {
  Pair pair({}, "dense");
  OnlineTeacher teacher(pair.teacher);
  LossConfig config;
  config["approx"] = 0;  // dense attention estimates nothing
  Evaluated e = evaluated(pair, &teacher, {pair.source().in_order(0, 2)}, config);
  for (const char* name : {"prob", "context", "kd", "kd_task"}) {
    CHECK(std::abs(e.terms.at(name)) < 1e-6);
  }
  CHECK(e.terms.at("task") > 0.2);
}

TEST_CASE("losses: a teacher or a student with maps and one without are the same") {
  for (const char* student : {"sea", "flash"}) {
    CAPTURE(student);
    LossConfig config;
    if (student == std::string("flash")) config["approx"] = 0;
    Pair tiles({}, student, "flash"),
        maps({}, student == std::string("sea") ? "sea" : "dense", "dense");
    Batch batch = tiles.source().batch(0, 3);
    OnlineTeacher with(maps.teacher), without(tiles.teacher);
    Evaluated a = evaluated(maps, &with, {batch}, config);
    check_close(evaluated(tiles, &without, {batch}, config), a, 1e-5);
  }
}

TEST_CASE(
    "losses: a step with a tiled teacher has no T x T memory, with a teacher of maps it has") {
  auto peak = [](const std::string& method, int64_t tokens) {
    Pair pair({.tokens = tokens, .windows = 1}, "sea", method);
    OnlineTeacher teacher(pair.teacher);
    Batch batch = pair.source().batch(0, 1);
    reset_peak();
    const int64_t before = allocator_stats().live;
    evaluated(pair, &teacher, {batch});
    return double(allocator_stats().peak_live - before);
  };
  CHECK(peak("flash", 2048) < 2.2 * peak("flash", 1024));
  CHECK(peak("dense", 2048) > 3 * peak("dense", 1024));  // the measure distinguishes them
}

TEST_CASE("losses: a loss of layers does not list the keys of a mask of blocks") {
  auto peak = [](const char* loss) {
    Pair pair({.tokens = 1024, .windows = 1}, "blocks", "flash");
    OnlineTeacher teacher(pair.teacher);
    const Batch batch = pair.source().batch(0, 1);
    LossConfig config = task_only();
    config["task"] = 0;
    config[loss] = 1;
    reset_peak();
    const int64_t before = allocator_stats().live;
    evaluated(pair, &teacher, {batch}, config);
    return double(allocator_stats().peak_live - before);
  };
  const double without = peak("task"), with = peak("kd");
  CAPTURE(without);
  CAPTURE(with);
  CHECK(with < 1.5 * without);
}

TEST_CASE("losses: a dump in f32 is as good as an online teacher") {
  Pair pair;
  Scratch scratch;
  Batch batch = pair.source().batch(0, 3);
  for (auto content : {data::DumpContent::qk, data::DumpContent::maps}) {
    for (int64_t top_n : {0, 8}) {
      INFO(data::name_of(content) << ", top " << top_n);
      std::string dir = (scratch / join(data::name_of(content), top_n)).string();
      write_dump(pair, dir, content, top_n);
      OnlineTeacher online(pair.teacher, top_n);
      DumpTeacher dumped(dir, expected_of(pair));
      Evaluated a = evaluated(pair, &online, {batch}), b = evaluated(pair, &dumped, {batch});
      CHECK(a.terms.size() == 8);  // six terms, the sum and the plain NLL
      check_close(b, a, 1e-5);
    }
  }
}

TEST_CASE("losses: a pooled dump is as good for approx as the teacher and as its maps") {
  Pair pair;
  Scratch scratch;
  std::string pooled = (scratch / "pooled").string(), maps = (scratch / "maps").string();
  write_dump(pair, pooled, data::DumpContent::pooled, 8);
  write_dump(pair, maps, data::DumpContent::maps, 8);
  Batch batch = pair.source().batch(0, 3);
  OnlineTeacher online(pair.teacher, 8);
  DumpTeacher of_pooled(pooled, expected_of(pair)), of_maps(maps, expected_of(pair));
  CHECK(of_pooled.is_pooled());
  CHECK_FALSE(of_maps.is_pooled());
  LossConfig alone = task_only(), all;
  alone["task"] = 0;
  alone["approx"] = 1;
  all["prob"] = 0;
  for (const LossConfig& config : {alone, all}) {
    Evaluated a = evaluated(pair, &of_pooled, {batch}, config);
    CHECK(a.terms.at("approx") > 0);
    check_close(a, evaluated(pair, &online, {batch}, config), 1e-5);
    check_close(a, evaluated(pair, &of_maps, {batch}, config), 1e-5);
  }
  LossConfig without = all;  // context and layer outputs need no attention at all
  without["approx"] = 0;
  check_close(evaluated(pair, &of_pooled, {batch}, without),
              evaluated(pair, &online, {batch}, without), 1e-5);
  std::string half = (scratch / "half").string();
  write_dump(pair, half, data::DumpContent::pooled, 8, true, Dtype::f16);
  DumpTeacher rounded(half, expected_of(pair));
  check_close(evaluated(pair, &rounded, {batch}, alone), evaluated(pair, &online, {batch}, alone),
              2e-3);
}

TEST_CASE("losses: a sample that is shorter than its dump's tokens ends there in every loss") {
  Pair pair;
  Scratch scratch;
  const std::vector<int64_t> lengths = {16, 9, 16, 1, 16, 12, 15};
  // What is padding is as large as a number can be.
  auto pad = [&](data::DumpBatch& out) {
    out.lengths = Tensor::from(lengths, {7});
    auto spoil = [&](data::TensorSet& set) {
      for (auto& [name, x] : set) {
        if (!x.defined() || x.dtype() != Dtype::f32) continue;
        x = x.clone();
        const int64_t H = data::find_teacher_tensor(name)->by_head() ? x.dim(1) : 1;
        const int64_t T = 16, width = x.numel() / (7 * H * T);
        for (int64_t i = 0; i < 7 * H; ++i) {
          float* row = x.data<float>() + i * T * width;
          std::fill(row + lengths[size_t(i / H)] * width, row + T * width, 3e38f);
        }
      }
    };
    for (data::TensorSet& layer : out.layers) spoil(layer);
    spoil(out.tensors);
  };
  const auto corpus = std::make_shared<data::TokenList>(text(pair.sizes));
  for (auto content : {data::DumpContent::qk, data::DumpContent::maps, data::DumpContent::pooled}) {
    for (int64_t top_n : {0, 8}) {
      INFO(data::name_of(content) << ", top " << top_n);
      LossConfig config;
      if (content == data::DumpContent::pooled) config["prob"] = 0;
      const std::string dir = (scratch / join(data::name_of(content), top_n)).string();
      write_dump(pair, dir, content, top_n, true, Dtype::f32, {.batch = pad});
      DumpTeacher dumped(dir, expected_of(pair));
      OnlineTeacher online(pair.teacher, top_n);
      const Batch batch = dumped.samples(corpus, 4)->batch(0, 7);
      Batch whole = pair.source().batch(0, 7);
      REQUIRE(batch.windows == whole.windows);
      REQUIRE(batch.lengths.defined());
      CHECK(batch.tokens == 85);
      for (size_t i = 0; i < 7; ++i)
        CHECK(batch.lengths.data<int64_t>()[i] == lengths[size_t(batch.windows[i])]);
      const LossTerms all = evaluated(pair, &online, {whole}, config).terms;
      CHECK(message([&] {
              evaluated(pair, &dumped, {whole}, config);
            }).find(" tokens, the run's 16") != std::string::npos);
      whole.lengths = batch.lengths;
      whole.tokens = batch.tokens;
      const Evaluated wanted = evaluated(pair, &online, {whole}, config);
      check_close(evaluated(pair, &dumped, {batch}, config), wanted, 1e-5);
      for (const auto& [name, value] : all) CHECK_MESSAGE(value != wanted.terms.at(name), name);
    }
  }
}

TEST_CASE("losses: stored tokens are those of the text, or the text of the samples") {
  Pair pair;
  Scratch scratch;
  const std::vector<int32_t> tokens = text(pair.sizes);
  const auto corpus = std::make_shared<data::TokenList>(tokens);
  auto dump = [&](const char* name, int64_t wrong, bool windows) {
    const std::string dir = (scratch / name).string();
    write_dump(pair, dir, data::DumpContent::none, 8, true, Dtype::f32,
               {.spec =
                    [&](data::DumpSpec& s) {
                      s.stores_tokens = true;
                      if (windows) return;
                      s.windows.clear();
                      s.corpus_hash = "none";
                    },
                .batch =
                    [&](data::DumpBatch& b) {
                      Tensor& t = b.tensors["tokens"];
                      t = Tensor::from(tokens, {7, 16});
                      if (wrong >= 0) t.data<int32_t>()[wrong] = 36 - t.data<int32_t>()[wrong];
                      if (!windows) b.windows.clear();
                    }});
    return dir;
  };
  const Batch wanted = pair.source().batch(0, 7);
  DumpTeacher same(dump("same", -1, true), expected_of(pair));
  CHECK(same.samples(corpus, 4)->batch(0, 7).ids.to_vector() == wanted.ids.to_vector());
  DumpTeacher other(dump("other", 3 * 16 + 5, true), expected_of(pair));
  CHECK_REFUSES(other.samples(corpus, 4), "sample 3 is not window 3 of the text: its token 5 is ");
  const std::string alone = dump("alone", -1, false);
  CHECK(message([&] {
          DumpTeacher(alone, expected_of(pair));
        }).find("stores no numbers of windows") != std::string::npos);
  DumpTeacher::Expected expected = expected_of(pair);
  expected.uses_stored_tokens = true;
  DumpTeacher of_tokens(alone, expected);
  const Batch batch = of_tokens.samples(nullptr, 4)->batch(0, 7);
  CHECK(batch.ids.to_vector() == wanted.ids.to_vector());
  LossConfig config = task_only();
  config["kd"] = config["kd_task"] = 1;
  OnlineTeacher online(pair.teacher, 8);
  check_close(evaluated(pair, &of_tokens, {batch}, config),
              evaluated(pair, &online, {wanted}, config), 1e-5);
}

TEST_CASE("losses: a pooled dump is refused for prob and for another number of columns") {
  Pair pair;
  Scratch scratch;
  std::string dir = (scratch / "dump").string();
  write_dump(pair, dir, data::DumpContent::pooled, 8);
  DumpTeacher::Expected expected = expected_of(pair);
  DumpTeacher teacher(dir, expected);
  CHECK_REFUSES(Objective(*pair.student, &teacher, {}), dir, "12 columns", "prob", "losses.prob",
                "0");
  LossConfig config;
  config["prob"] = 0;
  expected.columns = 16;
  DumpTeacher wider(dir, expected);
  CHECK_REFUSES(Objective(*pair.student, &wider, config), dir, "12 columns", "16",
                "attention.columns");
  config["approx"] = 0;
  CHECK_NOTHROW(Objective(*pair.student, &wider, config));
  // If the number of columns was not given, the first layer's loss gives it.
  nn::ModelConfig other = config_of({}, "sea");
  data::Schema keys;
  other.method().describe(keys);
  keys.set_text("columns", {"16"});
  auto student = nn::make_model(other, 2);
  nn::ParameterStore store(*student);
  config["approx"] = 1;
  Objective objective(*student, &teacher, config);
  LossTerms terms;
  CHECK_REFUSES(objective.run(pair.source().batch(0, 1), {}, terms), "losses", "12 columns", "16");
}

TEST_CASE("losses: two micro-batches of one window are one of two") {
  Pair pair({.dtype = Dtype::f64});
  OnlineTeacher teacher(pair.teacher);
  WindowSource source = pair.source();
  Evaluated one = evaluated(pair, &teacher, {source.batch(0, 2)});
  Evaluated two = evaluated(pair, &teacher, {source.batch(0, 1), source.batch(1, 1)});
  check_close(two, one, 1e-10);
}

TEST_CASE("losses: recomputation changes no bit of terms and gradients") {
  LossConfig config;
  SUBCASE("all losses") {}
  // The teacher keeps no more of a layer than its output.
  SUBCASE("those of outputs") {
    config = task_only();
    config["kd"] = config["kd_task"] = 1;
  }
  Pair pair({.dropout = 0.2});
  OnlineTeacher teacher(pair.teacher);
  Batch batch = pair.source().batch(0, 2);
  std::vector<Evaluated> results;
  for (bool recompute : {false, true}) {
    pair.store->zero_gradients();
    RandomStream random{.seed = 3, .stream = 2};
    Objective objective(*pair.student, &teacher, config);
    Evaluated e;
    objective.run(batch, {.random = &random, .recompute = recompute}, e.terms);
    e.gradients = pair.store->gradients().clone();
    results.push_back(e);
  }
  CHECK(results[0].terms == results[1].terms);
  CHECK(same_bits(results[0].gradients, results[1].gradients));
}

TEST_CASE("losses: in 16 bits the teacher's attention is that of rounded q and k") {
  struct Rounded : OnlineTeacher {
    using OnlineTeacher::OnlineTeacher;
    TeacherLayer layer(int64_t i) override {
      TeacherLayer out = OnlineTeacher::layer(i);
      out["query"] = out["query"].to(Dtype::bf16);
      out["key"] = out["key"].to(Dtype::bf16);
      return out;
    }
  };
  Pair pair;
  OnlineTeacher teacher(pair.teacher);
  Rounded rounded(pair.teacher);
  const Batch batch = pair.source().batch(0, 2);
  const Evaluated plain = evaluated(pair, &teacher, {batch});
  const ComputeType compute(Dtype::bf16);
  const Evaluated a = evaluated(pair, &teacher, {batch}), b = evaluated(pair, &rounded, {batch});
  CHECK(a.terms == b.terms);
  CHECK(same_bits(a.gradients, b.gradients));
  CHECK(a.terms.at("prob") != plain.terms.at("prob"));
}

TEST_CASE("losses: recomputation makes the losses of a layer once") {
  // Records which layers are requested.
  struct Asked : OnlineTeacher {
    using OnlineTeacher::OnlineTeacher;
    std::vector<int64_t> layers;
    TeacherLayer layer(int64_t i) override {
      layers.push_back(i);
      return OnlineTeacher::layer(i);
    }
  };
  Pair pair;
  const Batch batch = pair.source().batch(0, 1);
  for (bool recompute : {false, true}) {
    Asked teacher(pair.teacher);
    Objective objective(*pair.student, &teacher, {});
    LossTerms terms;
    objective.run(batch, {.recompute = recompute}, terms);
    CHECK(teacher.layers == (recompute ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1}));
  }
}

TEST_CASE("losses: the tensors that a dump or a method lacks are named") {
  Pair pair;
  Scratch scratch;
  std::string dir = (scratch / "dump").string();
  write_dump(pair, dir, data::DumpContent::none, 8, false);
  DumpTeacher teacher(dir, expected_of(pair));
  auto missing = [&](const char* weight) {
    LossConfig c = task_only();
    c[weight] = 1;
    return message([&] { Objective(*pair.student, &teacher, c); });
  };
  check_says(missing("approx"), {dir, "pooled attention", "attention", "approx"});
  CHECK(missing("prob") == dir + ": has no attention, which the loss prob needs");
  CHECK(missing("context") == dir + ": has no attention outputs, which the loss context needs");
  CHECK(missing("kd") == "no error");
  Pair plain({}, "dense");
  OnlineTeacher online(plain.teacher);
  CHECK_REFUSES(evaluated(plain, &online, {plain.source().batch(0, 1)}), "losses", "scores",
                "approx", "losses.approx", "0");
  CHECK(message([&] { Objective(*pair.student, nullptr, {}); }) ==
        "losses: a loss with a weight needs a teacher");
}

TEST_CASE("losses: a dump of another teacher, text or window is refused") {
  Pair pair;
  Scratch scratch;
  std::string dir = (scratch / "dump").string();
  write_dump(pair, dir, data::DumpContent::qk, 8);
  auto with = [&](auto change) {
    DumpTeacher::Expected e = expected_of(pair);
    change(e);
    return message([&] { DumpTeacher(dir, e); });
  };
  CHECK(with([](auto&) {}) == "no error");
  std::string other = hash_of("other");
  std::string line = with([&](auto& e) { e.source.teacher_hash = other; });
  CHECK(line.find(dir) == 0);
  CHECK(line.find("teacher") != std::string::npos);
  CHECK(line.find(pair.hash().substr(0, 8)) != std::string::npos);
  CHECK(line.find(other.substr(0, 8)) != std::string::npos);
  CHECK(with([&](auto& e) { e.source.tokenizer_hash = other; }).find("tokenizer") !=
        std::string::npos);
  CHECK(with([&](auto& e) { e.source.corpus_hash = other; }) != "no error");
  check_says(with([](auto& e) { e.window = 12; }), {dir, "16", "12", "sequence_length"});
}

TEST_CASE("losses: the term that is not finite is named") {
  Pair pair;
  Spy teacher(std::make_unique<OnlineTeacher>(pair.teacher), 0);
  CHECK(message([&] { evaluated(pair, &teacher, {pair.source().batch(0, 1)}); }) ==
        "loss term 'context' is nan");
}

TEST_CASE("losses: the row of the teacher's logits that is not finite is named") {
  Pair pair;
  LossConfig logits_alone = task_only();
  logits_alone["kd_task"] = 1;
  const Batch batch = pair.source().in_order(2, 3);  // windows 2, 3 and 4 of 16 tokens
  for (int64_t top_n : {0, 5}) {
    for (double value : {double(NAN), double(INFINITY)}) {
      CAPTURE(top_n);
      CAPTURE(value);
      for (const LossConfig& config : {LossConfig(), logits_alone}) {
        Unsound teacher(pair.teacher, top_n, 21, value);
        CHECK(contains(message([&] { evaluated(pair, &teacher, {batch}, config); }),
                       ": the teacher's logits at token 5 of window 3 are not finite"));
      }
    }
    Unsound sound(pair.teacher, top_n, 21, -INFINITY);  // a token that cannot occur
    CHECK_FALSE(contains(message([&] { evaluated(pair, &sound, {batch}); }), "teacher's logits"));
  }
  // Whichever term fails first, the logits are named.
  class Both : public Unsound {
   public:
    using Unsound::Unsound;
    TeacherLayer layer(int64_t i) override {
      TeacherLayer l = Unsound::layer(i);
      l["attention_output"] = scale(l["attention_output"], NAN);
      return l;
    }
  };
  Both teacher(pair.teacher, 5, 0, NAN);
  CHECK_REFUSES(evaluated(pair, &teacher, {batch}), "context", "nan", "logits", "token 0",
                "window 2");
}

TEST_CASE("losses: an encoder does not predict next tokens") {
  nn::ModelConfig config = small_bert(37, 16, 0.02);
  config.as<nn::BertConfig>().masked_lm = true;
  auto model = nn::make_model(config, 1);
  nn::ParameterStore store(*model);
  Objective objective(*model, nullptr, task_only());
  Batch batch;
  batch.ids = ids({1, 8}, 3, 37);
  batch.tokens = 8;
  LossTerms terms;
  CHECK_REFUSES(objective.run(batch, {}, terms), "losses", "task", "encoder", "losses.task", "0");
}

}  // namespace brine::test
