// Tasks by the program itself: fine-tune, distil, evaluate, predict, resume, and bad input.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

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
class TaskWorld : public Directory {
 public:
  TaskWorld() {
    encoder_tokenizer()->save(path("tok"));
    fs::create_directories(path("glue/CoLA"));
    write("glue/CoLA/train.tsv", rows(0, 160));
    std::string dev = rows(160, 60);
    dev.pop_back();  // the last newline is lost
    write("glue/CoLA/dev.tsv", dev);
    write("bert.json", encoder_json(300, 32, 0.1));
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
  const std::string nearest = "eval --task cola --data glue --model teacher --attention recent ";
  const Finished fixed = tasks().must(nearest + "--block 1 --k 2 --teacher teacher");
  CHECK(fixed.out.find("top keys") != std::string::npos);
  CHECK(fixed.error.find("degenerated") == std::string::npos);  // a rule that learned nothing
  std::string log = read_all(tasks().path("student/log.jsonl"));
  for (const char* term : {"approx", "prob", "context", "kd", "kd_task", "task", "task_loss",
                           "valid_matthews_correlation"}) {
    CHECK_MESSAGE(log.find("\"" + std::string(term) + "\"") != std::string::npos, term);
  }
  std::string text = tasks().must("eval --task cola --data glue --model teacher").out;
  CHECK(text.find("cola dev  matthews_correlation ") == 0);
}

TEST_CASE("tasks by the program: the default k follows from the texts' lengths") {
  const TaskWorld& w = tasks();
  const std::string plain = "distill --task cola --data glue --teacher teacher --steps 3 --out n";
  const Finished dry = w.must(plain + " --dry-run");
  const std::string& said = dry.error;
  // Nine of ten training texts have no more tokens; the frame of a text has two.
  const auto tokenizer = data::load_tokenizer(w.path("tok"));
  std::ifstream rows(w.path("glue/CoLA/train.tsv"));
  std::vector<int64_t> lengths;
  for (std::string row; std::getline(rows, row);)
    lengths.push_back(std::min<int64_t>(
        int64_t(tokenizer->encode(row.substr(row.rfind('\t') + 1)).size()) + 2, 32));
  std::sort(lengths.begin(), lengths.end());
  const int64_t length = lengths[lengths.size() * 9 / 10];
  CHECK_MESSAGE(
      said.find(join("attention.k is ", (length + 3) / 4, ", a quarter")) != std::string::npos,
      said);
  CHECK(said.find(join("at most ", length, ")")) != std::string::npos);
  // So short texts gain no time: the dry run says so, and it alone.
  CHECK(contains(dry.out,
                 join("\ntime of attention not shorter: nine of ten texts have at most ", length,
                      " tokens, light is faster than exact attention from about 700\n")));
  CHECK(contains(w.must(plain + " --recipe paper --dry-run").out, "from about 2300\n"));
  const Finished run = w.must(plain);
  CHECK_FALSE(contains(run.out + run.error, "time of attention"));
  CHECK_FALSE(
      contains(w.must(TaskWorld::finetune() + " --out n2 --dry-run").out, "time of attention"));
  for (const char* given : {" --k 5", " --recipe paper"})
    CHECK(w.must(plain + given + " --dry-run").error.find("attention.k is") == std::string::npos);
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
  check_refused(dump + "--windows 3 --out never",
                "--windows has no effect on a task; --samples is the number of its texts");
  // Texts evenly spaced in the split, of which a student learns.
  w.must(dump + "--samples 40 --out spaced");
  CHECK(Json::parse(read_all(w.path("spaced/manifest.json"))).at("samples") == 40);
  std::vector<int64_t> texts = Json::parse(read_all(w.path("spaced/manifest.json"))).at("windows");
  std::sort(texts.begin(), texts.end());
  for (int64_t i = 0; i < 40; ++i) CHECK(texts[size_t(i)] == 4 * i);
  CHECK(contains(w.must(TaskWorld::distill() + " --dump spaced --out of_spaced").error,
                 "40 of these texts"));
  check_refused(dump + "--samples 161 --out never", "161 texts requested, the split has 160");
  // Without --task a student learns from the texts of the dump, which have no labels.
  const std::string alone =
      "distill --teacher teacher --dump dump --steps 3 --columns 8 --k 3 --out ";
  CHECK(contains(w.must(alone + "by_dump").error, "160 texts of its own tokens"));
  const std::vector<Json> learned = losses("by_dump");
  REQUIRE(learned.size() == 3);
  CHECK_FALSE(learned[0].contains("task"));
  CHECK(double(learned[2].at("kd_task")) > 0);
  CHECK(contains(read_all(w.path("by_dump/config.toml")), "\ntask = 0.0\n"));
  CHECK(w.score("--model by_dump").contains("matthews_correlation"));
  check_refused(alone + "never --losses.task 1", "losses.task needs labels");
  // Of a task of single texts, a [SEP] in a text does not begin a second one.
  std::string marked;
  for (int i = 0; i < 8; ++i) marked += "s\t1\t\tthe king [SEP] the stone\n";
  w.write("glue/CoLA/marked.tsv", marked);
  w.must(dump + "--split marked.tsv --out marked");
  w.must("distill --teacher teacher --dump marked --steps 1 --columns 8 --k 3 --out of_marked");
  check_refused(alone + "never --labels 0=1,1=0", "labels is a setting of a run on a --task");
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
          map({"yes", "no", "maybe"}, task, "", "tsv:text,label");
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
  CHECK(w.must("dump --teacher named --task cola --data glue --out named_dump")
            .error.find("in the order of") != std::string::npos);
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

TEST_CASE("tasks by the program: files of the user from finetune to predict") {
  const TaskWorld& w = tasks();
  std::istringstream lines(sample_text(220));
  std::string line, train = "kind\tsentence\n", dev;
  for (int i = 0; std::getline(lines, line); ++i) {
    const bool stone = contains(line, "stone"), water = contains(line, "water");
    const char* kind = stone && water ? "both" : stone ? "stone" : water ? "water" : "none";
    if (i < 160)
      train += std::string(kind) + "\t" + line + "\n";
    else
      dev += Json({{"sentence", line}, {"kind", kind}}).dump() + "\n";
  }
  fs::create_directories(w.path("user"));
  w.write("user/train.tsv", train);
  w.write("user/valid.jsonl", dev);
  w.must(
      "finetune --task tsv --data user --fields sentence,kind --model bert.json --tokenizer tok "
      "--batch-size 16 --learning-rate 5e-3 --epochs 12 --out kinds");
  // The model knows fields and labels.
  const Finished said = w.must("eval --task tsv --data user --model kinds");
  CHECK(contains(said.out, "tsv dev  accuracy "));
  CHECK(contains(said.out, " (95 % 0."));
  CHECK(contains(said.out, "confusion  a row for each label, a column for each answer\n"));
  const Json score = Json::parse(w.must("eval --json --task tsv --data user --model kinds").out)
                         .at("splits")
                         .at("dev");
  CHECK(double(score.at("accuracy")) > 0.8);
  CHECK(double(score.at("f1")) > 0.6);
  CHECK(double(score.at("matthews_correlation")) > 0.6);
  CHECK(double(score.at("interval_95").at("accuracy")[0]) < double(score.at("accuracy")));
  CHECK(score.at("confusion").at("labels") == Json({"both", "none", "stone", "water"}));
  int64_t texts = 0, right = 0;
  for (size_t row = 0; row < 4; ++row) {
    for (const Json& count : score.at("confusion").at("rows")[row]) texts += int64_t(count);
    right += int64_t(score.at("confusion").at("rows")[row][row]);
  }
  CHECK(texts == 60);
  CHECK(right == std::lround(60 * double(score.at("accuracy"))));
  w.must("dump --task tsv --data user --model kinds --samples 50 --out user-dump");
  w.must(
      "distill --task tsv --data user --teacher kinds --dump user-dump --steps 3 --columns 8 --k 3 "
      "--out kinds-student");
  CHECK(contains(w.must("predict --model kinds-student user/valid.jsonl").out, "\t0."));
  const std::string answer = w.must("predict --json --model kinds -", "echo the king said |").out;
  CHECK(Json::parse(answer).at("label") == "none");
  CHECK(Json::parse(answer).at("probabilities").size() == 4);
  // The labels are those of the split that is trained on, here ids of the model's.
  fs::create_directories(w.path("numbered"));
  for (const char* name : {"numbered/part.tsv", "numbered/dev.tsv"})
    w.write(name, "kind\tsentence\n0\tking\n1\tpeople\n2\tstone\n3\twater\n");
  const std::string numbered =
      w.must(
           "finetune --task tsv --data numbered --train-split part.tsv --fields sentence,kind "
           "--model kinds --steps 1 --batch-size 4 --out numbers")
          .error;
  CHECK(contains(numbered, "in the order of its ids, 0=both,1=none,2=stone,3=water"));
  // Scores: the words before "stone".
  std::istringstream again(sample_text(200));
  std::string scored = "sentence\tscore\n";
  while (std::getline(again, line))
    scored += line + "\t" + std::to_string(double(line.find("stone") % 100) / 10) + "\n";
  fs::create_directories(w.path("scored"));
  w.write("scored/train.tsv", scored);
  w.write("scored/dev.tsv", scored);
  w.must(
      "finetune --task tsv --regression --data scored --fields sentence,score --model bert.json "
      "--tokenizer tok --batch-size 16 --learning-rate 5e-3 --epochs 6 --out scores");
  const Json found = Json::parse(w.must("eval --json --task tsv --data scored --model scores").out);
  CHECK(double(found.at("splits").at("dev").at("pearson")) > 0.3);
  CHECK_FALSE(found.at("splits").at("dev").contains("confusion"));
  // What does not fit is said with file and line.
  check_refused("eval --task tsv --data user --fields text,kind --model kinds",
                "user/valid.jsonl:1: has no key 'text' (--fields)");
  for (const char* labels : {"foo", "0=a", "0=a,0=b", "=a,1=b"})  // none becomes a regression
    check_refused(
        join("finetune --task tsv --data user --model kinds --out never --labels ", labels),
        join("--labels is '", labels, "'"));
  check_refused("finetune --task tsv --data user --model bert.json --tokenizer tok --out never",
                "user/train.tsv:1: no column 'text'");
  w.write("user/test.tsv", "kind\tsentence\nstone\ta\nfire\tb\n");
  check_refused("eval --task tsv --data user --split test --model kinds",
                "user/test.tsv:3: label 'fire' is not one of 'both', 'none', 'stone', 'water'");
  check_refused(
      "distill --task tsv --data scored --fields sentence,score --teacher kinds --dump "
      "user-dump --out never",
      "scored/train.tsv:2: label '");
  check_refused("eval --task cola --data glue --fields a,b --model teacher",
                "task cola: --fields is of --task tsv");
  check_refused("eval --task tsv --data user --fields sentence,more,kind --model kinds",
                " was made for single texts, the task has pairs");
  check_refused("eval --task tsv --data user --fields a --model kinds", "--fields is 'a', wanted");
  check_refused("predict --model kinds --fields sentence - </dev/null", "--fields is of files");
  w.write("two.txt", "a\nb\tc\n");
  check_refused("predict --model kinds two.txt", "two.txt:2: has a tab");
  w.write("empty.txt", "a\n\n");
  check_refused("predict --model kinds empty.txt", "empty.txt:2: the text is empty");
  for (const char* command :
       {"eval --model kinds --data text.txt", "dump --model kinds --data text.txt --out never",
        "distill --teacher kinds --data text.txt --out never"}) {
    w.write("text.txt", sample_text(60));
    check_refused(command, "classifies texts; --task names their task");
  }
}

TEST_CASE("tasks by the program: pairs in files of the user, and in their dump") {
  const TaskWorld& w = tasks();
  std::string rows = "the king\this people\tyes\nthe stone city\tthe water\tno\n";
  for (int i = 0; i < 4; ++i) rows += rows;
  fs::create_directories(w.path("pairs"));
  for (const char* name : {"pairs/train.tsv", "pairs/dev.tsv"}) w.write(name, rows);
  w.must(
      "finetune --task tsv --data pairs --fields 1,2,3 --model bert.json --tokenizer tok --steps 2 "
      "--out paired");
  w.must("dump --task tsv --data pairs --model paired --dtype f32 --samples 5 --out pair-dump");
  // The second segment is found again, or its sample would not be the teacher's.
  w.must(
      "distill --teacher paired --dump pair-dump --steps 1 --columns 8 --k 3 --out pair-student");
  w.write("pairs.txt", "the king\this people\n");
  CHECK(contains(w.must("predict --model pair-student pairs.txt").out, "\tno\t") !=
        contains(w.must("predict --model pair-student pairs.txt").out, "\tyes\t"));
  w.write("pairs.txt", "the king\this people\nthe king\n");
  check_refused("predict --model paired pairs.txt",
                "pairs.txt:2: the model needs a pair of texts separated by one tab");
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

TEST_CASE("tasks by the program: what is measured of a dump's batch has its longest text") {
  const TaskWorld& w = tasks();
  fs::create_directories(w.path("mixed/CoLA"));
  std::string rows, text;
  for (int i = 0; i < 24; ++i)
    rows += "s\t" + std::to_string(i % 2) + "\t\t" + (text += "king ") + "\n";
  for (const char* name : {"mixed/CoLA/train.tsv", "mixed/CoLA/dev.tsv"}) w.write(name, rows);
  w.must("dump --task cola --data mixed --model teacher --out mixed_dump");
  w.must(
      "distill --task cola --data mixed --teacher teacher --dump mixed_dump --steps 1 --columns 8 "
      "--k 3 --batch-size 16 --out never --dry-run");
}

TEST_CASE("tasks by the program: a resumed run reads the texts by its own recipe") {
  const TaskWorld& w = tasks();
  Json config = Json::parse(read_all(w.path("bert.json")));
  config["max_position_embeddings"] = 300;  // the paper's recipe cuts at 256
  w.write("long.json", config.dump());
  std::string text;
  for (int i = 0; i < 300; ++i) text += "king ";
  fs::create_directories(w.path("long/CoLA"));
  for (const char* name : {"long/CoLA/train.tsv", "long/CoLA/dev.tsv"})
    w.write(name, "s\t1\t\t" + text + "\ns\t0\t\tstone\n");
  w.must(
      "finetune --task cola --data long --model long.json --tokenizer tok --steps 1 "
      "--out long-teacher");
  const std::string run =
      "distill --task cola --data long --teacher long-teacher --steps 1 --batch-size 2 --out cut";
  w.must(run + " --recipe paper");
  CHECK(contains(w.must(run + " --resume").error, "nothing left to do"));
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
  check_refused("extend --model teacher --positions 1000000000 --out never",
                "a model of 1000000000 positions takes");
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
