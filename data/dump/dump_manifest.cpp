// Manifests of dumps (manifest.json) and headers of shards.
#include <nlohmann/json.hpp>
#include <set>

#include "data/dump/dump.h"
#include "data/dump/dump_fields.h"
#include "data/hdf5/hdf5_file.h"
#include "data/io/json.h"

namespace brine::data {

namespace {

constexpr const char* kDumpFormat = "brine-dump";
constexpr uint64_t kMaxDumpManifestBytes = uint64_t(1) << 30;

void check_version(const std::string& where, int64_t version) {
  check_format(version == kDumpVersion, where, ": format version ", version,
               ", this program reads version ", kDumpVersion, "; dump the teacher again");
}

std::vector<int64_t> get_list(const std::string& where, const Json& object, const char* key) {
  std::vector<int64_t> list;
  for (const Json& number : list_at(where, object, key)) {
    check_format(number.is_number_integer(), where, ": key \"", key,
                 "\" contains a value that is not an integer");
    list.push_back(number.get<int64_t>());
  }
  return list;
}

DumpShard read_shard(const std::string& where, const Json& entry) {
  check_format(entry.is_object(), where, ": an entry of \"shards\" is not an object");
  DumpShard shard;
  shard.name = text_at(where, entry, "name");
  check_format(is_plain_name(shard.name), where, ": shard \"", shard.name,
               "\" is not a plain file name");
  int64_t bytes = integer_at(where, entry, "bytes");
  check_format(bytes > 0, where, ": shard \"", shard.name, "\" has ", bytes, " bytes");
  shard.bytes = uint64_t(bytes);
  shard.sha256 = text_at(where, entry, "sha256");
  shard.first = integer_at(where, entry, "first");
  shard.samples = integer_at(where, entry, "samples");
  return shard;
}

void check_shards(const std::string& where, const DumpManifest& m) {
  int64_t end = 0;
  std::set<std::string> names;
  for (const DumpShard& s : m.shards) {
    check_format(s.samples >= 1 && s.first >= end && s.first <= m.spec.samples - s.samples, where,
                 ": shard \"", s.name, "\" has samples ", s.first, " to ", s.first + s.samples,
                 ", which overlap or are out of order");
    check_format(names.insert(s.name).second, where, ": shard \"", s.name, "\" is a duplicate");
    end = s.first + s.samples;
  }
}

}  // namespace

int64_t DumpManifest::stored_samples() const {
  int64_t n = 0;
  for (const DumpShard& s : shards) n += s.samples;
  return n;
}

Path manifest_path(const Path& dir) { return dir / "manifest.json"; }

DumpManifest read_manifest(const Path& dir) {
  Path path = manifest_path(dir);
  std::string where = path.string();
  check_found(std::filesystem::exists(path), where, ": does not exist, so ", dir.string(),
              " is not a dump");
  std::string text = read_file(path, kMaxDumpManifestBytes);
  Json json = parse_json_or_discard(text, where);
  check_format(!json.is_discarded() && json.is_object(), where, ": is not a JSON object");
  check_format(text_at(where, json, "format") == kDumpFormat, where,
               ": is not a manifest of a dump");
  check_version(where, integer_at(where, json, "version"));
  DumpManifest m;
  m.spec = spec_from(where, [&](DumpField& field) {
    if (may_lack(field) && !json.contains(field.name)) return;
    if (field.is_text()) {
      field.value = text_at(where, json, field.name.c_str());
    } else {
      field.value = integer_at(where, json, field.name.c_str());
    }
  });
  m.spec.samples = integer_at(where, json, "samples");
  m.samples_per_shard = integer_at(where, json, "samples_per_shard");
  check_format(m.samples_per_shard > 0, where, ": samples_per_shard is ", m.samples_per_shard);
  m.spec.windows = get_list(where, json, "windows");
  if (m.spec.ragged) m.spec.lengths = get_list(where, json, "lengths");
  check_spec(m.spec, where);
  for (const Json& entry : list_at(where, json, "shards"))
    m.shards.push_back(read_shard(where, entry));
  check_shards(where, m);
  return m;
}

void write_manifest(const Path& dir, const DumpManifest& m) {
  Json json;
  json["format"] = kDumpFormat;
  json["version"] = kDumpVersion;
  for (const DumpField& field : stored_fields(m.spec)) {
    std::visit([&](const auto& value) { json[field.name] = value; }, field.value);
  }
  json["samples"] = m.spec.samples;
  json["samples_per_shard"] = m.samples_per_shard;
  json["shards"] = Json::array();
  for (const DumpShard& s : m.shards) {
    json["shards"].push_back({{"name", s.name},
                              {"bytes", s.bytes},
                              {"sha256", s.sha256},
                              {"first", s.first},
                              {"samples", s.samples}});
  }
  std::string text = json_text(json, 2);
  // The lists on one line each: there may be millions of numbers.
  text.resize(text.rfind('\n'));
  if (m.spec.ragged) text += ",\n  \"lengths\": " + json_text(Json(m.spec.lengths));
  text += ",\n  \"windows\": " + json_text(Json(m.spec.windows)) + "\n}\n";
  write_file_atomic(manifest_path(dir), text);
}

void write_shard_header(Hdf5Writer& file, const DumpSpec& spec, int64_t first, int64_t samples) {
  file.attribute("/", "format", std::string_view(kDumpFormat));
  file.attribute("/", "version", kDumpVersion);
  for (const DumpField& field : stored_fields(spec))
    std::visit([&](const auto& v) { file.attribute("/", field.name, v); }, field.value);
  file.attribute("/", "first_sample", first);
  file.attribute("/", "samples", samples);
}

DumpSpec read_shard_header(const Hdf5Reader& file, int64_t& first) {
  const std::string& where = file.path();
  check_format(file.string_attribute("/", "format") == kDumpFormat, where,
               ": is not a shard of a dump");
  check_version(where, file.int_attribute("/", "version"));
  DumpSpec spec = spec_from(where, [&](DumpField& field) {
    if (may_lack(field) && !file.has_attribute("/", field.name)) return;
    if (field.is_text()) {
      field.value = file.string_attribute("/", field.name);
    } else {
      field.value = file.int_attribute("/", field.name);
    }
  });
  first = file.int_attribute("/", "first_sample");
  spec.samples = file.int_attribute("/", "samples");
  check_format(first >= 0, where, ": first_sample is negative");
  check_spec(spec, where, false);
  return spec;
}

void check_shard_datasets(const Hdf5Reader& file, const DumpSpec& spec, int64_t first) {
  for (const DumpDataset& d : dump_datasets(spec, spec.samples, first)) {
    Hdf5Info info = file.info(d.name);
    check_format(info.dtype == d.dtype && info.shape == d.shape, file.path(), ": ", d.name, ": is ",
                 info.dtype, " ", info.shape, ", must be ", d.dtype, " ", d.shape);
  }
}

}  // namespace brine::data
