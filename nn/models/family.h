// A family of models (OPT, BERT, Llama): one folder nn/models/<name>/ with a config struct and a
// model that ends in a registration (register_family.h). Its name is then valid as "model_type" in
// config.json and for `brine train --model-type`.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/config/schema.h"
#include "nn/models/model.h"

namespace brine::nn {

// What the logits of a classification head are: of classes of which one is right, of classes of
// which each may be, or scores. The names are those of "problem_type" in config.json.
enum class Problem : uint8_t { single_label, multi_label, regression };
inline constexpr data::Named<Problem> kProblems[] = {
    {Problem::single_label, "single_label_classification"},
    {Problem::multi_label, "multi_label_classification"},
    {Problem::regression, "regression"}};

// A classification head.
struct ClassHead {
  int64_t labels = 0;  // 0: no head
  // Empty: one label is a regression, several are classes of which one is right.
  std::optional<Problem> problem = {};
  std::vector<std::string> names = {};  // by class; empty: LABEL_0, LABEL_1, ...
  std::string task = {};                // that it was trained for; may be empty
};

// The prefixes of its tensor names.
struct ClassHeadTensors {
  std::string head;   // tensors whose shape depends on the labels
  std::string below;  // layers between the trunk and these, which a model without a head may lack
};

// What a command says that needs a model (FamilyConfig::is_whole()).
inline constexpr const char* kBlocksAlone =
    "these are the attention blocks of a model without the model; brine_sea.attach() puts them "
    "into it in PyTorch";

// The config of a family, independent of its struct.
class FamilyConfig {
 public:
  virtual ~FamilyConfig() = default;
  virtual std::string name() const = 0;  // as registered
  // False: of attention blocks alone (nn/models/blocks), which no command trains or runs as a
  // model.
  virtual bool is_whole() const { return true; }
  virtual std::unique_ptr<FamilyConfig> clone() const = 0;
  // Copies the values of another config of this family. In place: schemas point to the fields.
  virtual void assign(const FamilyConfig& other) = 0;

  virtual void describe(data::Schema& schema) = 0;
  virtual ModelShape shape() const = 0;
  virtual std::unique_ptr<Model> make(Init& init, const AttentionMethod& method) const = 0;
  // config.json; read() refuses unsupported settings by name, `source` starts the messages.
  virtual data::Json to_json() const = 0;
  virtual void read(const data::Json& json, const std::string& source) = 0;
  virtual void set_positions(int64_t positions) = 0;

  // Adjusts settings that only the names of a file's tensors reveal (Brine's names, not the
  // file's).
  virtual void infer_from_tensors(const std::vector<std::string>& /*names*/) {}
  // Brine's name of a file's tensor; "" for an unused one.
  virtual std::string tensor_name(const std::string& name) const { return name; }
  // Names under which a file may repeat a tied tensor, each with the model's name of that tensor.
  virtual std::map<std::string, std::string> ties() const { return {}; }

  // The classification head, labels 0 when there is none.
  virtual ClassHead class_head() const { return {}; }
  // Gives the model this head and no other; throws when the family has none.
  virtual void set_class_head(const ClassHead& head);
  virtual ClassHeadTensors class_head_tensors() const { return {}; }
};

using FamilyFactory = std::function<std::unique_ptr<FamilyConfig>()>;
std::map<std::string, FamilyFactory>& families();

// A FamilyConfig that has a `Config`.
template <class Config>
struct FamilyOf : FamilyConfig {
  explicit FamilyOf(const Config& config) : config(config) {}
  Config config;
};

// A config of every registered family, with default values. A copy is independent; assignment is in
// place.
class FamilyConfigs {
 public:
  FamilyConfigs();
  FamilyConfigs(const FamilyConfigs& other);
  FamilyConfigs& operator=(const FamilyConfigs& other);
  ~FamilyConfigs() = default;

  // Throws an Error that lists the known names.
  FamilyConfig& at(const std::string& name) const;
  const std::map<std::string, std::unique_ptr<FamilyConfig>>& all() const { return all_; }

 private:
  std::map<std::string, std::unique_ptr<FamilyConfig>> all_;
};

}  // namespace brine::nn
