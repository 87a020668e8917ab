// Tasks by the program itself: fine-tune, distil, evaluate, predict, resume, and bad input.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "data/tokenizer/bpe/bpe.h"
#include "distill/runs/task_run.h"
#include "nn/models/bert/bert.h"
#include "tests/apps/world.h"
#include "tests/paths.h"
#include "tests/skip.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Sentences whose label is whether they speak of a stone, in CoLA's files; a tokenizer; the sizes
// of a small encoder; a model fine-tuned on them and a student of it.
class TaskWorld {
 public:
  TaskWorld() {
    data::BpeTrainOptions options;
    options.vocab_size = 300;
    options.special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"};
    data::BpeTrainer trainer(options);
    trainer.add(sample_text(60));
    trainer.train()->save(scratch_ / "tok");
    fs::create_directories(scratch_ / "glue/CoLA");
    write("glue/CoLA/train.tsv", rows(0, 160));
    std::string dev = rows(160, 60);
    dev.pop_back();  // the last newline is lost
    write("glue/CoLA/dev.tsv", dev);
    write("bert.json",
          R"({"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 300,
              "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 48, "max_position_embeddings": 32, "type_vocab_size": 2,
              "hidden_dropout_prob": 0.1, "initializer_range": 0.1})");
    must(finetune() + " --epochs 12 --out teacher");
    must(distill() + " --out student");
  }
  static std::string finetune() {
    return "finetune --task cola --data glue --model bert.json --tokenizer tok --batch-size 16 "
           "--learning-rate 5e-3";
  }
  static std::string distill() {
    return "distill --task cola --data glue --teacher teacher --steps 3 --columns 8 --k 3";
  }

  Finished run(const std::string& arguments, const std::string& before = "") const {
    std::string out = path("out.log"), error = path("err.log");
    std::string command =
        "cd " + scratch_.path().string() + " && export OMP_WAIT_POLICY=passive; " + before + " " +
        brine::test::binary_dir() + "/brine " + arguments + " >" + out + " 2>" + error;
    int code = std::system(("(" + command + ")").c_str());
    return {WIFEXITED(code) ? WEXITSTATUS(code) : -1, read_all(out), read_all(error)};
  }
  Finished must(const std::string& arguments, const std::string& before = "") const {
    Finished f = run(arguments, before);
    REQUIRE_MESSAGE(f.status == 0, arguments << ": " << f.error);
    return f;
  }
  std::string path(const std::string& name) const { return (scratch_ / name).string(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
  }
  // The scores that `eval --task cola` prints for the dev split.
  Json score(const std::string& arguments) const {
    Json out = Json::parse(must("eval --task cola --data glue --json " + arguments).out);
    return out.at("splits").at("dev");
  }

 private:
  static std::string rows(int first, int count) {
    std::istringstream lines(sample_text(first + count));
    std::string out, line;
    for (int i = 0; std::getline(lines, line); ++i) {
      if (i < first) continue;
      bool stone = line.find("stone") != std::string::npos;
      out += std::string("s\t") + (stone ? "1" : "0") + "\t\t" + line + "\n";
    }
    return out;
  }

  test::Scratch scratch_;
};

const TaskWorld& tasks() {
  static const TaskWorld w;
  return w;
}

// One line on stderr that ends the program with status 1.
void check_refused(const std::string& command, const std::string& message) {
  Finished f = tasks().run(command + " --quiet");
  CHECK(f.out.empty());
  CHECK_MESSAGE(refusal_in(f).find(message) != std::string::npos, "no " << message);
  CHECK(f.error.rfind("brine " + command.substr(0, command.find(' ')) + ": ", 0) == 0);
}

}  // namespace

TEST_CASE("tasks by the program: the teacher learns, the student keeps fewer keys") {
  Json teacher = tasks().score("--model teacher"), student = tasks().score("--model student");
  MESSAGE("teacher ", teacher.dump());
  CHECK(double(teacher.at("matthews_correlation")) > 0.9);
  CHECK(teacher.at("texts") == 60);
  CHECK(double(teacher.at("mean_visible_length")) > 10);
  CHECK(double(teacher.at("keys_kept")) == 1);
  CHECK(student.at("mean_visible_length") == teacher.at("mean_visible_length"));
  CHECK(double(student.at("keys_kept")) < 0.5);
  CHECK(double(tasks().score("--model student --k 6").at("keys_kept")) >
        1.5 * double(student.at("keys_kept")));
  Json dense = tasks().score("--model student --path dense");
  CHECK(dense.at("matthews_correlation") == student.at("matthews_correlation"));
  Json recall = tasks().score("--model student --teacher teacher").at("mask_recall").back();
  CHECK(recall.at("layer") == "all");
  CHECK(double(recall.at("rows")) > 0);
  CHECK(double(recall.at("mask")) > 0);
  CHECK(double(recall.at("mask")) <= double(recall.at("top_keys")));
  std::string table =
      tasks().must("eval --task cola --data glue --model student --teacher teacher").out;
  CHECK(table.find("top keys") != std::string::npos);
  std::string log = read_all(tasks().path("student/log.jsonl"));
  for (const char* term : {"approx", "prob", "context", "kd", "kd_task", "task", "task_loss",
                           "valid_matthews_correlation"}) {
    CHECK_MESSAGE(log.find("\"" + std::string(term) + "\"") != std::string::npos, term);
  }
  std::string text = tasks().must("eval --task cola --data glue --model teacher").out;
  CHECK(text.find("cola dev  matthews_correlation ") == 0);
}

TEST_CASE("tasks by the program: a student learns from a dump as from an online teacher") {
  const TaskWorld& w = tasks();
  std::string dump = "dump --task cola --data glue --model teacher --batch-size 7 --dtype f32 ";
  w.must(dump + "--out dump");
  CHECK(w.must("inspect dump").out.find("by text of a task") != std::string::npos);
  CHECK(w.must(dump + "--content maps --deflate 1 --out maps").status == 0);
  // Losses by step of a run.
  auto losses = [&](const std::string& run) {
    std::vector<Json> all;
    std::istringstream lines(read_all(w.path(run + "/log.jsonl")));
    for (std::string line; std::getline(lines, line);) {
      Json entry = Json::parse(line);
      if (entry.contains("kd_task")) all.push_back(entry);
    }
    return all;
  };
  std::vector<Json> beside = losses("student");
  REQUIRE(beside.size() == 3);
  for (const char* from : {"dump", "maps"}) {
    std::string run = std::string("from_") + from;
    w.must(TaskWorld::distill() + " --dump " + from + " --out " + run);
    std::vector<Json> dumped = losses(run);
    REQUIRE(dumped.size() == beside.size());
    for (size_t step = 0; step < beside.size(); ++step) {
      for (const char* term : {"approx", "prob", "context", "kd", "kd_task", "task", "loss"}) {
        CAPTURE(term);
        double a = beside[step].at(term), b = dumped[step].at(term);
        CHECK(std::abs(a - b) <= 1e-5 * std::max(1.0, std::abs(a)));
      }
    }
  }
  // Texts of different lengths, seen from both sides, as masses of 8 columns.
  w.must(dump + "--content pooled --columns 8 --out pooled");
  CHECK(w.must("inspect pooled").out.find("pooled into 8 columns") != std::string::npos);
  std::string shape = " --losses.prob 0";
  w.must(TaskWorld::distill() + shape + " --out narrow");
  w.must(TaskWorld::distill() + shape + " --dump pooled --out from_pooled");
  std::vector<Json> narrow = losses("narrow"), pooled = losses("from_pooled");
  REQUIRE(narrow.size() == pooled.size());
  for (size_t step = 0; step < narrow.size(); ++step) {
    for (const char* term : {"approx", "context", "kd", "kd_task", "task", "loss"}) {
      CAPTURE(term);
      double a = narrow[step].at(term), b = pooled[step].at(term);
      CHECK(std::abs(a - b) <= 1e-5 * std::max(1.0, std::abs(a)));
    }
  }
  // Of the answers alone.
  w.must(dump + "--content none --no-context --no-output --out answers");
  w.must(TaskWorld::distill() +
         " --approx 0 --prob 0 --losses.context 0 --kd 0 --dump answers --out from_answers");
  const std::vector<Json> answers = losses("from_answers");
  REQUIRE(answers.size() == 3);
  CHECK(double(answers[0].at("kd_task")) == doctest::Approx(double(beside[0].at("kd_task"))));
  w.must(dump + "--split dev --out dev");
  check_refused(TaskWorld::distill() + " --dump dev --out never",
                "the dump was made with the corpus");
  check_refused(dump + "--windows 3 --out never", "--windows has no effect on a task");
}

TEST_CASE("tasks by the program: the config of a model names task and labels") {
  std::string dir;
  for (const auto& e : fs::directory_iterator(tasks().path("teacher"))) {
    if (e.is_directory()) dir = e.path();
  }
  Json config = Json::parse(read_all(dir + "/config.json"));
  CHECK(config.at("architectures") == Json({"BertForSequenceClassification"}));
  CHECK(config.at("finetuning_task") == "cola");
  CHECK(config.at("id2label") == Json({{"0", "0"}, {"1", "1"}}));
  CHECK(config.at("problem_type") == "single_label_classification");
}

TEST_CASE("tasks by the program: classes go by their names") {
  using Names = std::vector<std::string>;
  std::string warned;
  const distill::Messages messages([&](auto, const std::string& text) { warned = text; });
  auto map = [&](const Names& model, const Names& task, const std::string& given = "",
                 const std::string& made_for = "") {
    warned.clear();
    return distill::class_map({.labels = int64_t(model.size()), .names = model, .task = made_for},
                              {data::task_named("mnli"), task, given}, messages);
  };
  Names task = {"entailment", "neutral", "contradiction"};
  CHECK(map({}, task).empty());
  CHECK(map(task, task).empty());
  CHECK(map({"contradiction", "entailment", "neutral"}, task) == std::vector<int64_t>{2, 0, 1});
  CHECK(map({"CONTRADICTION", "Entailment", "neutral"}, task) == std::vector<int64_t>{2, 0, 1});
  CHECK(warned.empty());
  CHECK(map({"yes", "maybe", "no"}, task).empty());  // names of its own: by their ids
  CHECK(warned.find("entailment=yes,neutral=maybe,contradiction=no") != std::string::npos);
  const std::string given = "entailment=yes,neutral=maybe,contradiction=no";
  CHECK(map({"no", "yes", "maybe"}, task, given) == std::vector<int64_t>{2, 0, 1});
  CHECK(warned.empty());
  for (const char* bad : {"entailment=yes", "entailment", "yes=entailment,neutral=maybe",
                          "entailment=yes,neutral=maybe,contradiction=never"}) {
    CHECK(message([&] {
            map({"no", "yes", "maybe"}, task, bad);
          }).find("--labels") != std::string::npos);
  }
  for (const Names& other :
       {Names{"entailment", "no", "maybe"}, Names{"neutral", "neutral", "no"}}) {
    CHECK(message([&] { map(other, task); }).find("other labels") != std::string::npos);
  }
  CHECK(message([&] {
          map({"yes", "no", "maybe"}, task, "", "rte");
        }).find("other labels") != std::string::npos);
  CHECK(message([&] {
          map({"entailment", "neutral"}, task);
        }).find("other labels") != std::string::npos);
}

TEST_CASE("tasks by the program: a model's own names of classes are kept") {
  const TaskWorld& w = tasks();
  std::string from;
  for (const auto& e : fs::directory_iterator(w.path("teacher"))) {
    if (e.is_directory()) from = e.path();
  }
  fs::create_directories(w.path("named"));
  for (const char* name : {"model.safetensors", "tokenizer.json"})
    fs::copy(fs::path(name[0] == 'm' ? from : w.path("teacher")) / name, w.path("named"));
  Json config = Json::parse(read_all(from + "/config.json"));
  config.erase("finetuning_task");
  config["id2label"] = {{"0", "wood"}, {"1", "stone"}};
  w.write("named/config.json", config.dump());
  const Json plain = w.score("--model teacher"), by_id = w.score("--model named");
  CHECK(by_id.at("matthews_correlation") == plain.at("matthews_correlation"));
  const Json turned = w.score("--model named --labels 0=stone,1=wood");
  CHECK(double(turned.at("matthews_correlation")) ==
        doctest::Approx(-double(plain.at("matthews_correlation"))));
  check_refused("eval --task cola --data glue --model named --labels 0=stone", "--labels 0=wood");
  w.must("finetune --task cola --data glue --model named --steps 1 --batch-size 16 --out kept");
  const Json kept = Json::parse(read_all(w.path("kept/step-00000001/config.json")));
  CHECK(kept.at("id2label") == config["id2label"]);
  CHECK(double(w.score("--model kept").at("matthews_correlation")) > 0.9);
  // The targets of training count in the model's classes, too.
  w.must(
      "finetune --task cola --data glue --model named --steps 1 --batch-size 16 --out turned "
      "--labels 0=stone,1=wood");
  auto loss = [&](const std::string& run) {
    std::istringstream log(read_all(w.path(run + "/log.jsonl")));
    for (std::string line; std::getline(log, line);) {
      const Json json = Json::parse(line);
      if (json.contains("task_loss")) return double(json["task_loss"]);
    }
    return 0.0;
  };
  CHECK(loss("turned") > 2 * loss("kept"));
  w.write("lines.txt", "up from the stone city went the king.\n");
  CHECK(w.must("predict --model kept lines.txt").out.find("stone\t") != std::string::npos);
  config["finetuning_task"] = "rte";
  w.write("named/config.json", config.dump());
  const std::string replaced =
      w.must("finetune --task cola --data glue --model named --steps 1 --out replaced").error;
  CHECK(replaced.find("head of 2 classes from 'wood' on is replaced") != std::string::npos);
}

TEST_CASE("tasks by the program: labels of lines") {
  const TaskWorld& w = tasks();
  w.write("lines.txt", "the king said unto his people.\r\nup from the stone city went the king.");
  std::string file = w.must("predict --model teacher lines.txt").out;
  CHECK(file.substr(0, 2) == "0\t");
  CHECK(file.find("\n1\t") != std::string::npos);
  CHECK(std::count(file.begin(), file.end(), '\n') == 2);
  CHECK(w.must("predict --model teacher <lines.txt").out == file);
  CHECK(w.must("predict --model teacher --batch-size 1 lines.txt").out == file);
}

TEST_CASE("tasks by the program: a run resumes to the bit") {
  const TaskWorld& w = tasks();
  std::string command = TaskWorld::finetune() + " --steps 6 --save-every 3";
  w.must(command + " --out whole");
  fs::copy(w.path("whole"), w.path("again"), fs::copy_options::recursive);
  fs::remove_all(w.path("again/step-00000006"));
  Finished resumed = w.must(command + " --out again --resume");
  CHECK(resumed.error.find("resuming at step 3") != std::string::npos);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) {
    CHECK(read_all(w.path(std::string("whole/step-00000006/") + name)) ==
          read_all(w.path(std::string("again/step-00000006/") + name)));
  }
}

TEST_CASE("tasks by the program: a run does not continue with other data") {
  const TaskWorld& w = tasks();
  fs::copy(w.path("glue"), w.path("other"), fs::copy_options::recursive);
  std::string command =
      "finetune --task cola --data other --model bert.json --tokenizer tok "
      "--batch-size 16 --steps 2";
  w.must(command + " --out changed");
  Finished again = w.must(command + " --out changed --resume");
  CHECK(again.error.find("nothing left to do") != std::string::npos);
  std::string train = read_all(w.path("other/CoLA/train.tsv"));
  train[2] = train[2] == '0' ? '1' : '0';  // the first label
  w.write("other/CoLA/train.tsv", train);
  check_refused(command + " --out changed --resume", "inputs.train");
}

TEST_CASE("tasks by the program: steps follow from the epochs") {
  std::string dry = tasks().must(TaskWorld::finetune() + " --out never --epochs 3 --dry-run").out;
  CHECK(dry.find("parameters") != std::string::npos);
  CHECK_FALSE(fs::exists(tasks().path("never")));
  std::string log = read_all(tasks().path("teacher/log.jsonl"));
  CHECK(log.find("\"total\":120") != std::string::npos);  // 12 epochs of 160 / 16
  std::string kept = read_all(tasks().path("teacher/config.toml"));
  CHECK(kept.find("\nsteps = 120\n") != std::string::npos);
  CHECK(kept.find("\nwarmup_steps = 12\n") != std::string::npos);
  CHECK(kept.find("\neval_every = 10\n") != std::string::npos);
  tasks().must(TaskWorld::finetune() + " --out few --steps 2 --warmup-steps 0 --epochs 9");
  kept = read_all(tasks().path("few/config.toml"));
  CHECK(kept.find("\nsteps = 2\n") != std::string::npos);
  CHECK(kept.find("\nwarmup_steps = 0\n") != std::string::npos);
  // What was decided is accepted again.
  tasks().must("finetune --config few/config.toml --out few-again");
  CHECK(read_all(tasks().path("few-again/step-00000002/model.safetensors")) ==
        read_all(tasks().path("few/step-00000002/model.safetensors")));
}

TEST_CASE("tasks by the program: errors are one line") {
  const TaskWorld& w = tasks();
  auto bad = [&](const std::string& content) {
    fs::create_directories(w.path("bad/CoLA"));
    w.write("bad/CoLA/train.tsv", content);
    return std::string(
        "finetune --task cola --data bad --model bert.json --tokenizer tok "
        "--out never");
  };
  check_refused(bad("s\t1\t\tfine.\ns\t1\tfine.\n"),
                "bad/CoLA/train.tsv:2: 3 fields, the file has 4 columns");
  check_refused(bad("s\t1\t\tfine.\ns\tyes\t\tfine.\n"),
                "bad/CoLA/train.tsv:2: label 'yes' is not one of '0', '1'");
  check_refused(bad(""), "bad/CoLA/train.tsv: the file contains no text");
  check_refused("finetune --task coal --model bert.json --tokenizer tok --out never",
                "unknown task 'coal'");
  check_refused("finetune --task cola --model bert.json --tokenizer tok --out never",
                "task cola: its data directory must be given");
  check_refused(TaskWorld::finetune() + " --out never --sequence-length 64",
                "longer than the model's 32 positions");
  check_refused(TaskWorld::finetune() + " --out never --loss-from 3",
                "--loss-from has no effect on a task");
  check_refused("distill --task cola --data glue --teacher student --out never",
                "its losses are defined for a dense one");
  check_refused("eval --task sst2 --data glue --model teacher",
                "glue: contains neither SST-2/dev.tsv nor dev.tsv");
  fs::create_directories(w.path("glue/MNLI"));
  w.write("glue/MNLI/dev_matched.tsv", "sentence1\tsentence2\tgold_label\na\tb\tneutral\n");
  check_refused("eval --task mnli --data glue --model teacher --split dev_matched",
                "the model was made for other labels");
  w.write("latin.txt", "caf\xe9\n");
  check_refused("predict --model teacher latin.txt", "not UTF-8 at byte offset 3");
  CHECK_FALSE(fs::exists(w.path("never")));
}

TEST_CASE("tasks by the program: stage attention learns from the task's texts, or from a dump") {
  const TaskWorld& w = tasks();
  const std::string how = TaskWorld::distill() + " --stages attention";
  w.must("dump --task cola --data glue --model teacher --value --dtype f32 --out valued");
  w.must(how + " --out by-layer");
  CHECK(contains(w.must(how + " --dump valued --out by-layer-2").error, "stage attention"));
  CHECK(contains(read_all(w.path("by-layer/log.jsonl")), "worst_layer"));
  CHECK(w.score("--model by-layer").contains("matthews_correlation"));
}

TEST_CASE("tasks by the program: WordNet's glosses (needs WordNet)") {
  if (!fs::exists("/usr/share/wordnet/data.noun")) {
    return test::skip("the package wordnet-base is not installed");
  }
  const TaskWorld& w = tasks();
  w.must(
      "finetune --model bert.json --tokenizer tok --out wordnet --steps 40 --batch-size 16 "
      "--learning-rate 5e-3 --eval-windows 300");
  Json out =
      Json::parse(w.must("eval --task wordnet --model wordnet --json --max-windows 400").out);
  CHECK(out.at("splits").at("dev").at("texts") == 400);
  // 45 classes; the largest has an eighth of the glosses.
  CHECK(double(out.at("splits").at("dev").at("accuracy")) > 0.05);
  std::string line = w.must("predict --model wordnet --quiet", "echo 'a small bird' |").out;
  CHECK(line.find('.') != std::string::npos);
}

}  // namespace brine::tests
