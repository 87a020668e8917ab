// brine report: what a report is asked for, and its parts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "data/io/json.h"
#include "distill/evaluation/recall.h"
#include "distill/inputs/models.h"
#include "distill/log/log.h"
#include "distill/maps/head_maps.h"
#include "nn/io/model_io.h"

namespace brine::report {

// The line charts of a report, as the data that page/charts.js draws.
struct Line {
  std::string name;
  std::map<double, double> points = {};
};

struct Chart {
  std::string section;                // of the page: "curves", "health" or "trade"
  std::string title, x, y;            // x and y: what is on the axes
  bool log_x = false, log_y = false;  // if the numbers span a decade
  std::vector<Line> lines = {};
  std::string note = {};  // what was measured, in a sentence

  // A number that is not finite is left out.
  void add(const std::string& line, double x_value, double y_value);
};
using Charts = std::vector<Chart>;

// Long lines become means of neighbours.
data::Json to_json(const Chart& chart);

// The one text that goes through a model: given as text, as ids, or as a window of files.
struct TextInput {
  std::string text;               // with the tokens that the tokenizer adds
  std::string tokens;             // ids, "1,2,3"
  std::vector<std::string> data;  // a window of these text files
  int64_t window = 0;             // number of the window in the files
  int64_t sequence_length = 0;    // tokens of a window; 0 = the model's positions
  int64_t k = 0;                  // kept keys; 0: as trained

  void describe(data::Schema& s);
  int sources() const { return int(!text.empty()) + int(!tokens.empty()) + int(!data.empty()); }
  // Exactly one of text, tokens and data must be given.
  std::vector<int32_t> ids(const nn::LoadedModel& model) const;
};

// What a report is made from: paths on the command line, recognised by their content.

// A directory with the log of a training run.
struct RunInput {
  std::string path, name;
  std::vector<distill::LogRecord> log;  // empty: it has none
  std::string made;                     // human-readable: command, events, configuration
};
struct ModelInput {
  std::string path, name;
};

struct Inputs {
  std::vector<RunInput> runs;
  std::vector<ModelInput> models;  // that a text can go through, runs with a checkpoint too
  Charts sweeps;
};

struct Request {
  std::vector<std::string> inputs;  // runs, models, tables of brine sweep
  std::string out = "report.html";
  std::string title;    // empty: made from the inputs
  std::string teacher;  // whose attention masks should cover; empty: the model
  TextInput text;
  distill::OtherAttention attention;   // of the first model
  std::vector<int64_t> layers, heads;  // maps of these only; empty: of all
  int64_t cells = 0;                   // of a map's side; 0: as many as fit the page
  int64_t max_bytes = 5000000;         // of the page

  void describe(data::Schema& s);
};

// Of one model on the text of the report.
struct Attention {
  std::string name, about;          // about: the method and the teacher, in sentences
  std::string settings;             // of the attention method, as JSON
  std::vector<std::string> tokens;  // the text of each
  distill::TextAttention text;
};

struct Report {
  std::string title, command, program;  // the command line; version and commit
  std::optional<Attention> attention;   // of the first model, if there is a text
  Charts charts;
  Inputs inputs;
};

// Reads the inputs and runs the text through the first model. `command` is shown on the page.
Report gather(const Request& request, const std::string& command, const std::string& program);

// The page: one HTML file without references to others. Maps become coarser until it has at most
// request.max_bytes bytes; throws if it is larger without maps.
std::string page(const Report& report, const Request& request);

}  // namespace brine::report
