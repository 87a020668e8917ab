// Stage attention from a dump, with and without the teacher; and dumps that are not the teacher's.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "data/hdf5/hdf5_file.h"
#include "data/safetensors/safetensors.h"
#include "distill/runs/distillation.h"
#include "distill/runs/dump_run.h"
#include "distill/runs/stages/attention_stage.h"
#include "distill/teachers/dump_batch.h"
#include "nn/io/shared_student.h"
#include "tests/distill/attention_keys.h"
#include "tests/distill/runs.h"
#include "tests/distill/task_setup.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

constexpr int64_t kWindow = 32;

// A small Llama, a text, and its dump.
struct DumpSite {
  Scratch scratch;
  std::string teacher = path("teacher"), text = path("text.txt"), dump = path("dump");
  nn::LoadedModel loaded;

  explicit DumpSite(bool values = true, data::DumpLogits logits = data::DumpLogits::top,
                    bool context = true, int64_t top_logits = 64) {
    save_teacher(small_llama(2, 64), teacher);
    write_sentences(text);
    loaded = nn::load_model(teacher);
    DumpRequest request;
    request.dtype = Dtype::f32;
    request.value = values;
    request.logits = logits;
    request.context = context;
    request.top_logits = top_logits;
    request.out = dump;
    request.data = {text};
    request.sequence_length = kWindow;
    request.windows = 6;
    request.batch_size = 2;  // with AVX2 the bits of a product's row depend on how many rows it has
    CHECK(dump_teacher(loaded, *nn::tokenizer_of(teacher), request, {}));
  }
  std::string path(const std::string& name) const { return (scratch / name).string(); }

  Distillation what(bool with_teacher = true) const {
    Distillation c{.teacher = with_teacher ? teacher : "", .dump = dump};
    c.stages = Stages::attention;
    c.training.steps = 4;
    c.training.batch_size = 2;
    c.training.rest.save_every = 2;
    c.training.rest.keep = 0;
    for (const auto& [key, value] : {std::pair{"method", "sea"},
                                     {"preset", "light"},
                                     {"prior", "none"},
                                     {"k", "4"},
                                     {"columns", "4"}}) {
      set_attention(c, key, value);
    }
    return c;
  }
  Distillation of_blocks(bool with_teacher = true) const {
    Distillation c = what(with_teacher);
    c.attention_keys.clear();
    c.training.steps.reset();
    for (const auto& [key, value] :
         {std::pair{"method", "blocks"}, {"k", "16"}, {"block", "4"}, {"tile", "2"}}) {
      set_attention(c, key, value);
    }
    return c;
  }
  RunResult distil_to(const std::string& name, Distillation c, bool resume = false,
                      const RunHost& host = {}) const {
    return distil(c, {.out = path(name), .resume = resume}, host);
  }
};

// Tensors of a file whose names end in `ending`, by what is before it.
std::map<std::string, Tensor> tensors_in(const std::string& file, const std::string& between) {
  std::map<std::string, Tensor> out;
  const data::Safetensors tensors{data::Path(file)};
  for (const data::WeightInfo& entry : tensors.entries()) {
    const std::string& name = entry.name;
    const size_t at = name.find(between);
    if (at == name.npos) continue;
    const size_t layers = name.find("layers.");
    const std::string layer = name.substr(layers, name.find('.', layers + 7) + 1 - layers);
    out[layer + name.substr(at + between.size())] = tensors.tensor(name).clone();
  }
  return out;
}

// The dump with its tensors changed, in another directory.
std::string changed_dump(const DumpSite& site, const std::string& name,
                         const std::function<void(data::DumpSpec&)>& spec_edit,
                         const std::function<void(data::DumpBatch&)>& edit) {
  const data::DumpReader reader(site.dump);
  data::DumpSpec spec = reader.spec();
  std::vector<int64_t> all(size_t(spec.samples));
  for (size_t i = 0; i < all.size(); ++i) all[i] = int64_t(i);
  data::DumpBatch batch = reader.read(all);
  if (edit) edit(batch);
  if (spec_edit) spec_edit(spec);
  if (!spec.has_windows()) batch.windows.clear();
  data::DumpWriter writer(site.path(name), spec);
  writer.put(std::move(batch));
  writer.finish();
  return site.path(name);
}

}  // namespace

TEST_CASE("stage attention: from a dump in f32 the blocks have the bits of a teacher that runs") {
  const DumpSite site;
  Distillation from_dump = site.what();
  site.distil_to("dumped", from_dump);
  // The same windows in the same order: those of the dump's source.
  const data::DumpReader reader(site.dump);
  const data::DumpBatch stored = reader.read(std::vector<int64_t>{0, 3});
  Batch batch{
      .ids = stored.tensors["tokens"], .lengths = {}, .windows = {0, 3}, .tokens = 2 * kWindow};
  nn::ModelConfig config = nn::load_config(site.path("dumped"));
  auto gradients = [&](bool by_dump) {
    auto student = nn::make_shared_student(config, *site.loaded.model, 5);
    auto dump = std::make_shared<DumpTeacher>(
        site.dump,
        DumpTeacher::Expected{
            .source = {}, .window = kWindow, .shape = config.shape(), .uses_stored_tokens = true});
    LossConfig losses;
    for (const char* loss : {"prob", "kd", "kd_task", "task"}) losses[loss] = 0;
    AttentionStage stage(by_dump ? inputs_of(dump, *student) : inputs_of(site.loaded.model),
                         *student, losses);
    nn::ParameterStore store(*student,
                             [&](const nn::Module::NamedParameter& p) { return stage.trains(p); });
    LossTerms terms;
    read_terms({stage.accumulate(batch, {})}, {}, terms);
    CHECK(terms.at("approx") > 0);
    return store.gradients().to_vector();
  };
  const std::vector<double> by_dump = gradients(true);
  CHECK(by_dump == gradients(false));
  CHECK(*std::max_element(by_dump.begin(), by_dump.end()) > 0);
}

TEST_CASE("stage attention: q and k of a dump are turned back for a prior that reads them") {
  const DumpSite site;
  Distillation what = site.what();
  set_attention(what, "prior", "learned");
  what.training.steps = 1;
  site.distil_to("run", what);
  nn::ModelConfig config = nn::load_config(site.path("run"));
  const auto student = nn::make_shared_student(config, *site.loaded.model, 5);
  CHECK(student->attention_traits().reads_content);
  const data::DumpReader reader(site.dump);
  const Batch batch{.ids = reader.read(std::vector<int64_t>{1}).tensors["tokens"],
                    .lengths = {},
                    .windows = {1},
                    .tokens = kWindow};
  auto dump = std::make_shared<DumpTeacher>(
      site.dump,
      DumpTeacher::Expected{
          .source = {}, .window = kWindow, .shape = config.shape(), .uses_stored_tokens = true});
  std::vector<SeenLayer> of_dump, of_model;
  inputs_of(dump, *student)->show(batch, {0, 1}, [&](int64_t, const SeenLayer& seen) {
    of_dump.push_back(seen);
  });
  inputs_of(site.loaded.model)->show(batch, {0, 1}, [&](int64_t, const SeenLayer& seen) {
    of_model.push_back(seen);
  });
  REQUIRE(of_dump.size() == 2);
  for (size_t i = 0; i < 2; ++i) {
    CHECK(close_to_scale(of_dump[i].input->q_content, of_model[i].input->q_content, 1e-5, "q"));
    CHECK(close_to_scale(of_dump[i].input->k_content, of_model[i].input->k_content, 1e-5, "k"));
  }
}

TEST_CASE("stage attention: without the teacher a dump makes the same blocks, killed or not") {
  const DumpSite site;
  site.distil_to("model", site.what());
  site.distil_to("blocks", site.what(false));
  const auto whole = tensors_in(site.path("model") + "/step-00000004/model.safetensors", ".sea.");
  const auto alone = tensors_in(site.path("blocks") + "/model.safetensors", "layers.0.");
  REQUIRE(alone.size() > 2);
  for (const auto& [name, x] : alone) CHECK_MESSAGE(same_bits(x, whole.at(name)), name);
  const Json config = Json::parse(data::read_file(site.path("blocks") + "/config.json"));
  CHECK(config["model_type"] == "brine_blocks");
  CHECK(config["num_attention_heads"] == 4);
  CHECK(config["num_key_value_heads"] == 2);
  CHECK(config["head_dim"] == 8);
  CHECK(config["causal"] == true);
  CHECK(config["teacher_hash"] == site.loaded.hash());
  CHECK(config["brine"]["attention"]["k"] == 4);
  CHECK_FALSE(config.contains("layers"));
  RunHost host;
  host.stop = [asked = 0]() mutable { return ++asked > 2 ? "asked to" : ""; };
  CHECK(site.distil_to("killed", site.what(false), false, host).interrupted);
  site.distil_to("killed", site.what(false), true);
  CHECK(data::read_file(site.path("killed") + "/model.safetensors") ==
        data::read_file(site.path("blocks") + "/model.safetensors"));
  CHECK_REFUSES(nn::load_model(site.path("blocks")).model->embed({.ids = ids({1, 4}, 1, 9)}),
                "attention blocks of a model without the model", "brine_sea.attach()");
  for (const Tokens tokens : {Tokens::read, Tokens::copied}) {
    CHECK_REFUSES(tokenizer_of(nn::load_model(site.path("blocks")), {}, tokens),
                  site.path("blocks"), "attention blocks of a model without the model");
  }
  CHECK_REFUSES(tokenizer_to_export(nn::load_model(site.path("blocks")), {}), site.path("blocks"),
                "attention blocks of a model without the model");
}

// The square root of the root mean square of keys without their block's mean, by channel.
std::vector<double> scale_of(const Tensor& keys, int64_t block) {
  const int64_t B = keys.dim(0), G = keys.dim(1), N = keys.dim(2) / block, d = keys.dim(3);
  const std::vector<double> k = keys.to_vector();
  std::vector<double> out;
  for (int64_t gc = 0; gc < G * d; ++gc) {
    double squares = 0;
    for (int64_t bn = 0; bn < B * N; ++bn) {
      auto at = [&](int64_t j) {
        const int64_t t = bn % N * block + j;
        return k[size_t(((bn / N * G + gc / d) * keys.dim(2) + t) * d + gc % d)];
      };
      double mean = 0;
      for (int64_t j = 0; j < block; ++j) mean += at(j) / double(block);
      for (int64_t j = 0; j < block; ++j) squares += std::pow(at(j) - mean, 2);
    }
    out.push_back(std::sqrt(std::sqrt(squares / double(B * N * block))));
  }
  return out;
}

TEST_CASE(
    "stage attention: a dump calibrates blocks, with the teacher or without, and its values") {
  const DumpSite site(false);  // keys are enough
  CHECK(site.distil_to("model", site.of_blocks()).outcome.steps == 1);
  site.distil_to("blocks", site.of_blocks(false));
  const nn::LoadedModel model = nn::load_model(site.path("model"));
  const data::DumpReader reader(site.dump);
  const data::DumpBatch stored = reader.read(std::vector<int64_t>{0, 1, 2, 3, 4, 5});
  const data::Safetensors file{data::Path(site.path("blocks") + "/model.safetensors")};
  for (int64_t layer = 0; layer < 2; ++layer) {
    const Tensor scale = file.tensor(join("layers.", layer, ".key_scale"));
    REQUIRE(scale.shape() == Shape{2, 8});
    const std::vector<double> wanted = scale_of(stored.layers[size_t(layer)]["key"], 4);
    for (size_t i = 0; i < wanted.size(); ++i)
      CHECK(scale.to_vector()[i] == doctest::Approx(wanted[i]).epsilon(1e-5));
    CHECK(same_bits(scale, model.model->attention(layer).named_buffers()[0].buffer->value));
  }
  const Json config = Json::parse(data::read_file(site.path("blocks") + "/config.json"));
  CHECK(config["model_type"] == "brine_blocks");
  CHECK(config["brine"]["attention"]["method"] == "blocks");
  CHECK_REFUSES(nn::load_model(site.path("blocks")), site.path("blocks"), "brine_sea.attach()");
  Distillation joint = site.of_blocks();
  joint.stages = Stages::both;
  joint.joint.training.steps = 2;
  joint.joint.training.batch_size = 2;
  site.distil_to("joint", joint);
  CHECK(std::filesystem::exists(site.path("joint") + "/step-00000003"));
}

TEST_CASE("stage attention: some layers of a model keep their numbers") {
  const DumpSite site;
  Distillation what = site.what(false);
  what.dump = changed_dump(site, "some", [](data::DumpSpec& s) { s.model_layers = {3, 7}; }, {});
  site.distil_to("blocks", what);
  const Json config = Json::parse(data::read_file(site.path("blocks") + "/config.json"));
  CHECK(config["layers"] == Json({3, 7}));
  CHECK(nn::load_config(site.path("blocks")).shape().layers == 2);
}

TEST_CASE("stage joint: follows on a dump") {
  const DumpSite site;
  Distillation what = site.what();
  what.stages = Stages::both;
  what.joint.training.steps = 3;
  what.joint.training.batch_size = 2;
  site.distil_to("run", what);
  const Json state = Json::parse(data::read_file(site.path("run") + "/step-00000007/trainer.json"));
  CHECK(state["stage"] == "joint");
  CHECK(state["configuration"]["inputs"].contains("dump"));
}

TEST_CASE("stage attention: what a dump lacks is named") {
  const DumpSite site(false);
  auto refused = [&](auto change) {
    Distillation what = site.what();
    change(what);
    return message([&] { site.distil_to("x", what); });
  };
  check_says(refused([](Distillation&) {}), {site.dump, "no values", "--value", "value=True"});
  check_says(refused([](Distillation& c) { c.text.lengths = "16,32"; }), {"lengths", "dump"});
  {
    const DumpSite plain(true, data::DumpLogits::none, false);
    Distillation joint = plain.what();
    joint.stages = Stages::both;
    joint.joint.training.steps = 2;
    CHECK_REFUSES(plain.distil_to("x", joint), plain.dump, "no logits", "kd_task");
    CHECK_FALSE(std::filesystem::exists(plain.path("x")));
    CHECK_REFUSES(plain.distil_to("y", plain.what()), "attention outputs");
    Distillation without = plain.what();
    without.losses["context"] = 0;
    CHECK(message([&] { plain.distil_to("z", without); }) == "no error");
  }
  check_says(refused([&](Distillation& c) {
               c.teacher.clear();
               c.valid = {site.text};
             }),
             {"without --teacher", "--valid"});
  const DumpSite valued;
  Distillation learned = valued.what();
  set_attention(learned, "prior", "learned");
  CHECK(message([&] { valued.distil_to("z", learned); }) == "no error");
  learned.teacher.clear();  // its blocks have a prior of rotated q and k alone
  CHECK(message([&] { valued.distil_to("x", learned); }) == "no error");
  Distillation sizes = valued.what();
  sizes.dump =
      changed_dump(valued, "half", [](data::DumpSpec& s) { s.vocab = 259, s.top_n = 64; }, {});
  CHECK_REFUSES(valued.distil_to("y", sizes), "half", "259 tokens of the vocabulary",
                "the model 260");
}

TEST_CASE("dumps that are not what the teacher gives are named with the likely reason") {
  const DumpSite site;
  auto refused = [&](const char* name, const std::function<void(data::DumpBatch&)>& edit) {
    Distillation what = site.what();
    what.dump = changed_dump(site, name, {}, edit);
    const std::string error = message([&] { site.distil_to(std::string("run_") + name, what); });
    CHECK(error.find('\n') == error.npos);
    what.trust_dump = true;
    CHECK(message([&] { site.distil_to(std::string("trusted_") + name, what); }) == "no error");
    return error;
  };
  auto layer_of = [](const char* tensor, int64_t layer, double factor) {
    return [=](data::DumpBatch& b) {
      Tensor& x = b.layers[size_t(layer)][tensor];
      x = scale(x, factor);
    };
  };
  auto every = [](const char* tensor, double factor) {
    return [=](data::DumpBatch& b) {
      for (data::TensorSet& layer : b.layers) layer[tensor] = scale(layer[tensor], factor);
    };
  };
  // Without the teacher the context shows it.
  auto alone = [&](const char* name, const std::function<void(data::DumpBatch&)>& edit) {
    Distillation what = site.what(false);
    what.dump = changed_dump(site, name, {}, edit);
    return message([&] { site.distil_to(std::string("alone_") + name, what); });
  };
  check_says(
      alone("scaled_alone", every("query", 1 / std::sqrt(8.0))),
      {"sample 0", "layers/00/context", "multiplied by 1 / sqrt(d) already", "--trust-dump"});
  check_says(alone("value_alone", layer_of("value", 1, -1)),
             {"layers/01/context", "another point"});
  check_says(alone("zero", every("attention_output", 0)), {"context", "differs by 100 %"});
  check_says(alone("loud", every("attention_output", 1.05)), {"context", "differs by 5 %"});
  check_says(refused("scaled", every("query", 1 / std::sqrt(8.0))),
             {"sample 0", "layers/00/query", "divided by 2.8284", "store q before the scale"});
  check_says(refused("value", layer_of("value", 1, 2)),
             {"layers/01/value", "the teacher's divided by 0.5"});
  check_says(refused("output", layer_of("output", 0, 0.5)),
             {"layers/00/output", "differs by 50 %", "the teacher's divided by 2", "--trust-dump"});
  check_says(refused("norm",
                     [&](data::DumpBatch& b) {
                       NoGrad off;
                       Tensor& last = b.layers[1]["output"];
                       last = site.loaded.model->finish(last);
                     }),
             {"layers/01/output", "after the final norm", "last hidden_states"});
  check_says(refused("logits",
                     [](data::DumpBatch& b) {
                       Tensor &x = b.tensors["logits"], &lse = b.tensors["lse"];
                       x = scale(x, 3);
                       lse = scale(lse, 3);
                     }),
             {"logits/values"});
  check_says(refused("tokens",
                     [](data::DumpBatch& b) {
                       Tensor& t = b.tensors["tokens"];
                       const Tensor first = t.clone();
                       for (int64_t i = 0; i < t.numel(); ++i)
                         t.data<int32_t>()[i] = first.data<int32_t>()[t.numel() - 1 - i];
                     }),
             {"layers/00/query", "other tokens or of other weights"});
  CHECK(contains(
      refused("nan", [](data::DumpBatch& b) { b.layers[1]["output"].data<float>()[5] = 1e30f; }),
      "layers/01/output"));
}

TEST_CASE("dumps: logits of the whole vocabulary, sorted, are those of the teacher") {
  const DumpSite site(true, data::DumpLogits::top, true, 1000);
  CHECK(data::DumpReader(site.dump).spec().top_n == 260);
  CHECK(message([&] { site.distil_to("run", site.what()); }) == "no error");
}

TEST_CASE("dumps: q and k from before the rotation are named without values, too") {
  const DumpSite site(false);
  const data::DumpReader reader(site.dump);
  const Tensor ids = reader.read(std::vector<int64_t>{0}).tensors["tokens"];
  CHECK_NOTHROW(compare_with_teacher(reader, 0, site.loaded.model, ids));
  const Batch batch{.ids = ids, .lengths = {}, .windows = {0}, .tokens = kWindow};
  const std::string still = changed_dump(site, "still", {}, [&](data::DumpBatch& b) {
    inputs_of(site.loaded.model)->show(batch, {0}, [&](int64_t, const SeenLayer& seen) {
      assign(b.layers[0]["query"].slice(0, 0, 1), seen.input->q_content.contiguous());
    });
  });
  const std::string error =
      message([&] { compare_with_teacher(data::DumpReader(still), 0, site.loaded.model, ids); });
  check_says(error, {"layers/00/query", "before the rotation by positions"});
}

}  // namespace brine::test
