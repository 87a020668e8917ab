// Single commands on the tiny world: the effect of their flags, and their messages.
#include <nlohmann/json.hpp>

#include "data/safetensors/safetensors.h"
#include "tests/apps/world.h"
#include "tests/small_models.h"

namespace brine::tests {
namespace {

using Json = nlohmann::json;

Json evaluated(const std::string& arguments) {
  return Json::parse(world().must("eval --data text.txt --json --max-windows 4 " + arguments).out);
}

void refused(const std::string& command, const std::string& why) {
  const Finished f = world().run(command);
  CHECK(f.status == 1);
  CHECK_MESSAGE(f.error.find(why) != std::string::npos, f.error);
}

std::string generated(const std::string& arguments) {
  return world()
      .must("generate --model student --prompt 'the king' --tokens 12 --quiet " + arguments)
      .out;
}

}  // namespace

TEST_CASE("eval: a teacher under a sliding window, which is dense attention when it is wide") {
  Json dense = evaluated("--model teacher"), wide = evaluated(
                                                 "--model teacher --attention recent "
                                                 "--k 32");
  CHECK(double(wide.at("perplexity")) ==
        doctest::Approx(double(dense.at("perplexity"))).epsilon(1e-6));
  CHECK(dense.at("k").is_null());
  CHECK(dense.at("path").is_null());
  CHECK(wide.at("attention") == "recent");
  CHECK(wide.at("k") == 32);
  CHECK(wide.at("path") == "sparse");
  Json narrow = evaluated("--model teacher --attention recent --block 2 --k 2");
  CHECK(narrow.at("perplexity") != dense.at("perplexity"));
  CHECK(narrow.at("keys_read") == 1.5);  // blocks of 2: the own block alone
  CHECK(dense.at("keys_read") == 16.5);
  CHECK(evaluated("--model teacher --attention recent --block 2 --k 2 --path dense")
            .at("perplexity") == doctest::Approx(double(narrow.at("perplexity"))).epsilon(1e-6));
  CHECK(evaluated("--model student").at("k") == 4);  // as trained
  CHECK(evaluated("--model student --attention recent").at("attention") == "recent");
}

TEST_CASE("a model with more tokens than its tokenizer is reported, with many more warned of") {
  const World& w = world();
  auto said = [&](int64_t tokens) {
    const std::string all = std::to_string(tokens);
    const std::string line = "the model has " + all + " tokens, the tokenizer 300; ";
    const Finished made = w.must(World::train() + " --steps 1 --model.vocab-size " + all +
                                 " --out vocabulary-" + all);
    const Finished used = w.must("generate --tokens 1 --prompt king --model vocabulary-" + all);
    const Finished quiet =
        w.must("eval --data text.txt --max-windows 1 --quiet --model vocabulary-" + all);
    CHECK(contains(made.error, line) == contains(used.error, line));
    CHECK(contains(made.error, "warning: " + line) == contains(used.error, "warning: " + line));
    CHECK(quiet.error ==
          (contains(used.error, "warning") ? "warning: " + line + "is it the model's own?\n" : ""));
    return used.error;
  };
  CHECK_FALSE(contains(said(300), "tokenizer"));
  for (int64_t few : {301, 428}) CHECK(contains(said(few), "; the others are padding\n"));
  check_says(said(429), {"warning", "429", "300"});
}

TEST_CASE(
    "a tokenizer with more tokens than the model has rows is refused, or warned of in a copy") {
  const World& w = world();
  for (const char* model : {"teacher", "student"}) {
    const std::string out = std::string("more-") + model;
    w.must("export --checkpoint " + std::string(model) + " --out " + out);
    Json files = Json::parse(read_all(w.path(out + "/tokenizer.json")));
    Json token = files["added_tokens"].back();
    token["id"] = 300;
    token["content"] = "<q>";
    files["added_tokens"].push_back(token);
    w.write(out + "/tokenizer.json", files.dump());
  }
  const char* counts = " has 300 tokens, the tokenizer 301; '<q>' has no row";
  for (const char* command :
       {"eval --data text.txt --model more-teacher", "generate --prompt king --model more-teacher",
        "dump --data text.txt --out never --model more-teacher",
        "logits --prompt king --out never.safetensors --model more-teacher",
        "sweep --data text.txt --model more-student",
        "train --train text.txt --steps 1 --out never --model more-teacher",
        "train --config model.toml --train text.txt --tokenizer more-teacher --out never",
        "distill --stages attention --teacher more-teacher --data text.txt --steps 1 --out never",
        "distill --teacher more-teacher --data text.txt --steps 1 --out never",
        "distill --teacher self --model more-student --data text.txt --steps 1 --out never",
        "bench trained --quick --model more-student --data text.txt"}) {
    CAPTURE(command);
    const Finished f = w.run(command);
    CHECK(f.status != 0);
    CHECK_MESSAGE(contains(f.error + f.out, std::string("the model") + counts), f.error);
    CHECK_FALSE(std::filesystem::exists(w.path("never")));
  }
  const std::string made =
      "train --config model.toml --train text.txt --tokenizer more-teacher "
      "--steps 1 --model.vocab-size 301 --out rows-301";
  w.must(made);
  const Finished eval = w.run("eval --teacher teacher --data text.txt --model rows-301");
  CHECK_MESSAGE(contains(eval.error, std::string("the teacher") + counts), eval.error);
  for (const char* command : {"export --checkpoint more-teacher --out more-copy",
                              "extend --model more-teacher --positions 40 --out more-longer"})
    CHECK(contains(w.must(command).error, std::string("warning: the model") + counts));
}

TEST_CASE("flops: a table of components next to full attention, from a config alone") {
  auto counted = [](const std::string& flags) {
    return Json::parse(world().must("flops --model student --tokens 4096 --json " + flags).out);
  };
  auto all = [](const Json& table) { return double(table.at("all").at("multiply_adds")); };
  const Json out = counted(""), few = counted("--k 2");
  CHECK(out.at("attention") == "sea");
  CHECK(out.at("tokens") == 4096);
  CHECK(all(out.at("flash")) > all(out.at("costs")));
  CHECK(all(few.at("costs")) < all(out.at("costs")));
  CHECK(all(counted("--k 2 --query-skip 4").at("costs")) < all(few.at("costs")));
}

TEST_CASE(
    "compute: bf16 and f16 change an evaluation a little, are kept with a run and other words are "
    "refused") {
  const World& w = world();
  const double plain = evaluated("--model student").at("perplexity");
  for (const std::string compute : {"bf16", "f16"}) {
    INFO(compute);
    const double rounded = evaluated("--model student --compute " + compute).at("perplexity");
    CHECK(rounded != plain);
    CHECK(rounded == doctest::Approx(plain).epsilon(compute == "bf16" ? 0.02 : 0.003));
  }
  const std::string run =
      "distill --teacher teacher --data text.txt --out bf16 --steps 2 --batch-size 2 --k 4 "
      "--columns 16 --quiet";
  w.must(run + " --compute bf16");
  CHECK(contains(read_all(w.path("bf16/config.toml")), "compute = \"bf16\""));
  // A run continues in its first type.
  check_refusal(w.run(run + " --resume"), {"the configuration changed since", "compute"});
  w.must(run + " --resume --compute bf16");
  check_refusal(
      w.run("distill --teacher teacher --data text.txt --out f16 --steps 2 --compute f16"),
      {"gradients do not fit the range of f16"});
  check_refusal(w.run("eval --model student --data text.txt --compute fp16"),
                {"compute must be one of"});
}

TEST_CASE("compute: tf32 on a CPU is f32, and a line reports it") {
  const std::string call = "eval --model student --data text.txt --json --device cpu";
  const Finished plain = world().must(call), tf32 = world().must(call + " --compute tf32");
  CHECK(tf32.out == plain.out);
  CHECK_FALSE(contains(plain.error, "tf32"));
  CHECK(contains(tf32.error, "--compute tf32: a CPU does not round factors to tf32"));
}

TEST_CASE("extend and self-distillation: a student grows and learns at its new length") {
  const World& w = world();
  CHECK(contains(w.must("extend --model student --positions 48 --out longer").error,
                 "brine distill --teacher self --model longer"));
  CHECK(contains(w.must("extend --model teacher --positions 48 --out longer-teacher").error,
                 "brine train --model longer-teacher"));
  Json longer = evaluated("--model longer");
  CHECK(std::string(longer.at("protocol")).find("windows of 48") != std::string::npos);
  w.must(
      "distill --teacher self --model longer --data text.txt --out self --steps 2 --batch-size 2");
  std::string log = read_all(w.path("self/log.jsonl"));
  CHECK(log.find("\"approx\"") != std::string::npos);
  CHECK(log.find("\"kd\"") == std::string::npos);
  CHECK(evaluated("--model self").at("attention") == "sea");
  refused("extend --model student --positions 20 --out x", "has 32 positions already");
  refused("distill --teacher self --data text.txt --out x", "needs --model");
  refused("distill --teacher self --model teacher --data text.txt --out x",
          "cannot learn from its own");
  refused("sweep --model student --data text.txt --k 2 --floors --teacher self",
          "--floors needs the base model");
  refused("eval --model teacher --data text.txt --attention top --k 4 --cache bf16",
          "--cache has no effect on attention 'top'");
  refused("distill --teacher self --model student --data text.txt --out x --kd 1",
          "set losses.kd to 0");
  refused("distill --teacher self --model student --data text.txt --out x --columns 8",
          "attention.columns cannot be set");
  refused("distill --teacher teacher --model longer --data text.txt --out x", "has other sizes");
}

TEST_CASE("sweep: a grid of k and query skipping as a table and a TSV file") {
  const World& w = world();
  std::string table = w.must(
                           "sweep --model student --data text.txt --k 2 4 --query-skip 1 3 "
                           "--max-windows 4 --teacher teacher --out sweep.tsv")
                          .out;
  std::string tsv = read_all(w.path("sweep.tsv"));
  CHECK(tsv.rfind("k\tquery_skip\tperplexity\tkeys_read\tms_per_window\tmegabytes\tmask_recall\n",
                  0) == 0);
  CHECK(std::count(tsv.begin(), tsv.end(), '\n') == 5);
  CHECK(std::count(table.begin(), table.end(), '\n') == 5);
  Json plain = evaluated("--model student --k 2");
  char wanted[64];
  std::snprintf(wanted, sizeof wanted, "\n2\t1\t%.6f\t", double(plain.at("perplexity")));
  CHECK_MESSAGE(tsv.find(wanted) != std::string::npos, tsv);
  // The teacher, loaded once, counts neither in the memory nor across cells in the recall.
  w.must(
      "sweep --model student --data text.txt --k 2 4 --query-skip 1 3 --max-windows 4 --out "
      "alone.tsv");
  std::istringstream with(tsv), without(read_all(w.path("alone.tsv")));
  for (std::string a, b; std::getline(with, a) && std::getline(without, b);) {
    std::istringstream as(a), bs(b);
    for (int column = 0; as >> a && bs >> b; ++column)
      if (column != 4) CHECK(a == b);  // the time
  }
  for (const char* k : {"2", "4"}) {
    const Json rows =
        evaluated("--model student --teacher teacher --k " + std::string(k)).at("mask_recall");
    std::snprintf(wanted, sizeof wanted, "\t%.4f", rows.back().at("mask").get<double>());
    const size_t row = tsv.find("\n" + std::string(k) + "\t1\t") + 1;
    CHECK_MESSAGE(tsv.substr(row, tsv.find('\n', row) - row).ends_with(wanted), tsv);
  }
  // --window is --sequence-length, as in eval.
  w.must("sweep --model student --data text.txt --k 2 --window 16 --max-windows 4 --out short.tsv");
  const std::string shorter = read_all(w.path("short.tsv"));
  const Json cut = Json::parse(w.must("eval --model student --data text.txt --k 2 --max-windows 4 "
                                      "--sequence-length 16 --json")
                                   .out);
  std::snprintf(wanted, sizeof wanted, "\n2\t1\t%.6f\t", double(cut.at("perplexity")));
  CHECK_MESSAGE(shorter.find(wanted) != std::string::npos, shorter);
  check_refusal(w.run("sweep --model student --data text.txt --out sweep.tsv"), {"exists already"});
  check_refusal(w.run("sweep --model teacher --data text.txt"), {"keeps every key"});
}

TEST_CASE("eval: loss_from changes what is predicted, and the protocol reports it") {
  Json plain = evaluated("--model teacher"), late = evaluated("--model teacher --loss-from 16");
  CHECK(contains(late.at("protocol"), "targets from position 16"));
  CHECK(plain.at("tokens") == 4 * 31);
  CHECK(late.at("tokens") == 4 * 16);
  CHECK(plain.at("perplexity") != late.at("perplexity"));
}

TEST_CASE("generate: a state has nowhere to go; eval: no row to recall; adapters on a run") {
  const World& w = world();
  check_refusal(
      w.run("generate --model student --prompt 'the king' --tokens 2 --save-state nowhere/a.state"),
      {"nowhere/a.state: there is no directory nowhere"});
  Finished f = w.must("eval --model student --teacher teacher --data text.txt --k 32");
  CHECK(contains(f.out, "all: no row sees more than k keys"));
  w.must(
      "distill --teacher teacher --data text.txt --out still --steps 2 --batch-size 2 --k 4 "
      "--columns 16 --learning-rate 0 --attention-learning-rate 1e-3 --quiet");
  w.must("export --checkpoint still --sea-only --base-model teacher --out adapter");
  const double whole = evaluated("--model still").at("perplexity");
  CHECK(evaluated("--model adapter").at("perplexity").get<double>() == whole);
}

TEST_CASE("generate: how to sample is refused where the likeliest token is taken") {
  check_refusal(
      world().run("generate --model student --prompt 'the king' --temperature 0 --top-k 5"),
      {"--top-k has no effect at temperature 0"});
}

TEST_CASE("generate: reports that the positions ended, and only then") {
  const World& w = world();
  Finished cut = w.must("generate --model student --prompt 'the king' --tokens 500 --top-k 1");
  INFO(cut.error);
  const bool positions = contains(cut.error, "the model has 32 positions"),
             ended = contains(cut.error, "at the end of the text");
  CHECK(positions != ended);
  CHECK(contains(cut.error, " of 500 tokens, "));
  CHECK(w.must("generate --model student --prompt 'the king' --tokens 2 --top-k 1").error == "");
}

TEST_CASE("generate: prompts of a file, a stop text, and a saved state with a cache of 16 bits") {
  const World& w = world();
  w.write("prompts.txt", "the king\nthe people went up\n");
  const std::string flags =
      "generate --model student --temperature 0 --ignore-eos --quiet --cache bf16 ";
  const std::string all = flags + "--tokens 12 --prompt-file prompts.txt ";
  const Json whole = Json::parse(w.must(all + "--json").out).at("sequences");
  REQUIRE(whole.size() == 2);
  const std::string text = whole.at(1).at("text"), plain = w.must(all).out;
  CHECK(contains(plain, "[1] the king"));
  CHECK(contains(plain, "[2] the people went up" + text));

  const Json first = Json::parse(
      w.must(flags + "--json --prompt 'the people went up' --tokens 5 --save-state half.state")
          .out);
  const Json second = Json::parse(w.must(flags + "--json --load-state half.state --tokens 7").out);
  std::vector<int> tokens = first.at("sequences").at(0).at("tokens");
  for (int id : second.at("sequences").at(0).at("tokens")) tokens.push_back(id);
  CHECK(tokens == whole.at(1).at("tokens").get<std::vector<int>>());
  check_refusal(w.run("generate --model student --load-state half.state --tokens 7"),
                {"its cache is in bf16", "--cache bf16 continues it"});

  const std::string stop = text.substr(text.size() / 2, 2);
  const Json cut = Json::parse(w.must(all + "--json --stop '" + stop + "'").out).at("sequences");
  CHECK(cut.at(1).at("text") == text.substr(0, text.find(stop)));
  CHECK(cut.at(1).at("finish") == "stop text");
}

TEST_CASE("generate: a cache in 8 bits, its state, and the memory that is said before") {
  const World& w = world();
  const std::string flags = "generate --model teacher --prompt 'the king said' --temperature 0 ";
  const std::string q8 = flags + "--tokens 4 --cache q8 --prefill 8 ";
  const Json first = Json::parse(w.must(q8 + "--json --save-state coded.state").out);
  CHECK(first.at("sequences").at(0).at("tokens").size() == 4);
  w.must("generate --model teacher --load-state coded.state --tokens 2 --cache q8");
  check_refusal(w.run("generate --model teacher --load-state coded.state --tokens 2 --cache bf16"),
                {"coded.state", "its cache is in q8", "--cache q8 continues it"});
  refused("generate --model student --prompt x --cache q8", "keeps no cache in 8 bits");
  refused(flags + "--prefill 0", "--prefill must be at least 1");
  Finished f = w.must(flags + "--tokens 20 --dry-run");
  check_says(f.out, {"the state", "a part of a prompt", "memory at peak"});
  f = w.must("generate --model teacher --load-state coded.state --cache q8 --dry-run --prompt x");
  check_says(f.out, {"the state", "memory at peak"});
  refused("generate --model teacher --json --dry-run --prompt x", "with --dry-run");

  const std::string read = "--model teacher --attention flash ";
  const double whole = evaluated(read).at("perplexity");
  CHECK(double(evaluated(read + "--cache f32 --prefill 8").at("perplexity")) ==
        doctest::Approx(whole).epsilon(1e-6));
  const Json coded = evaluated(read + "--cache q8 --prefill 8");
  CHECK(double(coded.at("perplexity")) == doctest::Approx(whole).epsilon(0.01));
  CHECK(coded.at("cache") == "q8");
  CHECK(coded.at("prefill") == 8);
  refused("eval --model teacher --data text.txt --prefill 8", "without --cache");
  refused("eval --model teacher --data text.txt --cache q8 --teacher self",
          "reads text through a cache");
}

TEST_CASE(
    "warnings of eval and generate are in the JSON object, on stderr without it or after an "
    "error") {
  const World& w = world();
  w.must("export --checkpoint teacher --out front");
  Json files = Json::parse(read_all(w.path("front/tokenizer.json")));
  test::put_end_in_front(files);
  w.write("front/tokenizer.json", files.dump());
  const std::string twice = "generate --model front --tokens 1 --prompt '</s>king' ";
  const std::string said = "generate: the prompt: the text begins with </s>";
  CHECK(contains(w.must(twice).error, "warning: " + said));
  Finished f = w.must(twice + "--json --quiet");
  CHECK(f.error.empty());
  const Json out = Json::parse(f.out);
  REQUIRE(out.at("warnings").size() == 1);
  CHECK(contains(out.at("warnings").at(0), said));
  CHECK(out.at("sequences").at(0).at("prompt") == "</s>king");
  CHECK_FALSE(Json::parse(w.must("generate --model front --tokens 1 --prompt king --json").out)
                  .contains("warnings"));
  f = w.run(twice + "--json --quiet --load-state nowhere");
  CHECK(f.status == 1);
  f = w.run(twice + "'" + std::string(400, 'a') + "' --json --quiet");  // longer than the positions
  CHECK(f.status == 1);
  CHECK(contains(f.error, "warning: generate: prompt 1: the text begins with </s>"));
  w.write("front.txt", "</s>" + read_all(w.path("text.txt")));
  const Json gptq = Json::parse(
      w.must("eval --model front --data front.txt --protocol gptq --window 16 --json").out);
  CHECK(contains(gptq.at("warnings").at(0), "eval: the text begins with </s>"));
}

TEST_CASE("tokenizer: a directory of a model or a run is refused, one of a tokenizer is replaced") {
  const World& w = world();
  const std::string train = "tokenizer --train text.txt --vocab-size 290 --out ";
  w.must("export --checkpoint teacher --out tok-model");
  const std::string before = read_all(w.path("tok-model/tokenizer.json"));
  check_refusal(w.run(train + "tok-model"), {"tok-model: already contains a model (config.json)"});
  CHECK(read_all(w.path("tok-model/tokenizer.json")) == before);
  check_refusal(w.run(train + "teacher"), {"teacher: already contains a run"});
  w.must(train + "tok-twice");
  w.must("tokenizer --train text.txt --vocab-size 280 --out tok-twice");
  CHECK(contains(w.must("inspect tok-twice").out, "vocabulary 280"));
}

TEST_CASE("eval, generate: query_skip changes what a model with an estimator sees") {
  const Json one = evaluated("--model student --k 1"),
             three = evaluated("--model student --k 1 --query-skip 3");
  CHECK(one.at("query_skip") == 1);
  CHECK(three.at("query_skip") == 3);
  CHECK(one.at("perplexity") != three.at("perplexity"));
  CHECK(evaluated("--model teacher").at("query_skip").is_null());
  CHECK(generated("--temperature 0 --query-skip 3").rfind("the king", 0) == 0);
}

TEST_CASE("tokenizer: reports when the text gave fewer tokens than requested") {
  const World& w = world();
  w.write("few.txt", "one two one two\n");
  Finished f = w.must("tokenizer --train few.txt --vocab-size 1000 --out tok-few");
  CHECK(contains(f.error, "1000 tokens were requested"));
  f = w.must("tokenizer --train text.txt --vocab-size 300 --out tok-whole");
  CHECK_FALSE(contains(f.error, "requested"));
  CHECK(contains(f.error, "tok-whole: 300 tokens"));
}

TEST_CASE("train: a new model has as many embeddings as its tokenizer tokens, or as it is told") {
  const World& w = world();
  const std::string sizes =
      "train --tokenizer tok --train text.txt --steps 1 --batch-size 2 --hidden-size 32 "
      "--num-hidden-layers 1 --num-attention-heads 4 --ffn-dim 48 --max-position-embeddings 32 ";
  auto rows = [&](const std::string& run) {
    return Json::parse(read_all(w.path(run + "/step-00000001/config.json"))).at("vocab_size");
  };
  w.must(sizes + "--out rows");
  CHECK(rows("rows") == 300);
  w.must(sizes + "--vocab-size 320 --out more-rows");
  CHECK(rows("more-rows") == 320);
}

TEST_CASE("--load: a file that is no library of attention methods is refused by its name") {
  refused("flops --load absent.so --model teacher", "--load: absent.so: ");
  refused("flops --load=text.txt --model teacher", "text.txt: ");
  world().write("load.toml", "load = \"absent.so\"\n");
  refused("flops --config load.toml --model teacher", "--load absent.so");
}

TEST_CASE("train: a SEA model is trained on under its own settings") {
  const World& w = world();
  w.must("train --model student --train text.txt --batch-size 2 --steps 2 --out trained-on");
  Json config = Json::parse(read_all(w.path("trained-on/step-00000002/config.json")));
  const Json& attention = config.at("brine").at("attention");
  CHECK(attention.at("method") == "sea");
  CHECK(attention.at("k") == 4);
  CHECK(attention.at("columns") == 12);
  // How many tensors with this part in their name the second run changed.
  auto moved = [&](const std::string& from, const std::string& to, const std::string& part) {
    data::Safetensors before(w.path(from + "/step-00000002/model.safetensors")),
        after(w.path(to + "/step-00000002/model.safetensors"));
    REQUIRE(before.entries().size() == after.entries().size());
    int64_t count = 0;
    for (const auto& e : after.entries()) {
      if (!contains(e.name, part)) continue;
      count += before.tensor(e.name).to_vector() != after.tensor(e.name).to_vector();
    }
    return count;
  };
  CHECK(moved("student", "trained-on", ".sea.gates") > 0);
  w.must(World::distill("--preset paper --steps 2 --columns 12 --k 4") + " --out paper");
  w.must("train --model paper --train text.txt --batch-size 2 --steps 2 --out paper-on");
  // The task's gradient reaches the estimator through the gates.
  CHECK(moved("paper", "paper-on", ".sea.mu.") > 0);
  check_refusal(w.run("train --model student --train text.txt --steps 2 --attention sea --k 5 "
                      "--out never --quiet"),
                {"attention.k cannot be set, student has its own"});
}

TEST_CASE("--anomaly: names the op that made the first NaN, changes nothing if there is none") {
  const World& w = world();
  w.must(World::train() + " --valid text.txt --anomaly --out watched");
  CHECK(read_all(w.path("watched/step-00000003/model.safetensors")) ==
        read_all(w.path("teacher/step-00000003/model.safetensors")));
  w.must(World::distill() + " --anomaly --out watched-student");
  std::string wild = World::train() + " --optimizer.learning-rate 1e30 --warmup-steps 0 --quiet";
  check_refusal(w.run(wild + " --anomaly --out wild"), {"(anomaly detection)"});
  Finished f = w.run(wild + " --out wild-too");
  CHECK(f.status == 1);
  CHECK_FALSE(contains(f.error, "anomaly"));
}

}  // namespace brine::tests
