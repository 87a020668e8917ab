// The registration that ends a folder of nn/models.
//
//   struct ExampleConfig {            // an aggregate; field names are those of config.json
//     void describe(data::Schema&);   // the sizes
//     void validate() const;          // throws Error
//     ModelShape shape() const;
//     data::Json to_json() const;     // config.json, and back: read() refuses by name what is not
//     void read(const data::Json&, const std::string& source);  // supported
//     void set_positions(int64_t);    // `brine extend`
//     // Optional, see FamilyConfig for what happens without them:
//     static constexpr bool kWhole = false;
//     std::string tensor_name(const std::string& name_in_file) const;
//     std::map<std::string, std::string> ties() const;
//     void infer_from_tensors(const std::vector<std::string>& names);
//     ClassHead class_head() const;   // all three or none
//     void set_class_head(const ClassHead&);
//     ClassHeadTensors class_head_tensors() const;
//   };
//   struct ExampleModel : Model {
//     ExampleModel(Init&, const ExampleConfig&, const AttentionMethod&);
//     ...
//   };
//   const RegisterFamily<ExampleConfig, ExampleModel> registration("example");
#pragma once

#include <nlohmann/json.hpp>

#include "nn/models/family.h"

namespace brine::nn {

// Made(Init&, const Config&, const AttentionMethod&).
template <class Config, class Made>
struct RegisterFamily {
  // `config` has the default values.
  RegisterFamily(const std::string& name, const Config& config = {}) {
    families()[name] = [=] { return std::make_unique<Entry>(name, config); };
  }

 private:
  struct Entry final : FamilyOf<Config> {
    Entry(const std::string& name, const Config& config) : FamilyOf<Config>(config), name_(name) {}
    using FamilyOf<Config>::config;

    std::string name() const override { return name_; }
    bool is_whole() const override {
      if constexpr (requires { Config::kWhole; }) return Config::kWhole;
      return FamilyConfig::is_whole();
    }
    std::unique_ptr<FamilyConfig> clone() const override { return std::make_unique<Entry>(*this); }
    void assign(const FamilyConfig& other) override {
      config = dynamic_cast<const Entry&>(other).config;
    }
    void describe(data::Schema& schema) override { config.describe(schema); }
    ModelShape shape() const override { return config.shape(); }
    std::unique_ptr<Model> make(Init& init, const AttentionMethod& method) const override {
      config.validate();
      return std::make_unique<Made>(init, config, method);
    }
    data::Json to_json() const override { return config.to_json(); }
    void read(const data::Json& json, const std::string& source) override {
      config.read(json, source);
    }
    void set_positions(int64_t positions) override { config.set_positions(positions); }
    void infer_from_tensors(const std::vector<std::string>& names) override {
      if constexpr (requires { config.infer_from_tensors(names); }) {
        config.infer_from_tensors(names);
      }
    }
    std::string tensor_name(const std::string& name) const override {
      if constexpr (requires { config.tensor_name(name); }) return config.tensor_name(name);
      return FamilyConfig::tensor_name(name);
    }
    std::map<std::string, std::string> ties() const override {
      if constexpr (requires { config.ties(); }) return config.ties();
      return FamilyConfig::ties();
    }
    ClassHead class_head() const override {
      if constexpr (kHasClassHead) return config.class_head();
      return FamilyConfig::class_head();
    }
    void set_class_head(const ClassHead& head) override {
      if constexpr (kHasClassHead) return config.set_class_head(head);
      FamilyConfig::set_class_head(head);
    }
    ClassHeadTensors class_head_tensors() const override {
      if constexpr (kHasClassHead) return config.class_head_tensors();
      return FamilyConfig::class_head_tensors();
    }

    static constexpr bool kHasClassHead = requires(const Config& c) { c.class_head(); };

   private:
    std::string name_;
  };
};

}  // namespace brine::nn
