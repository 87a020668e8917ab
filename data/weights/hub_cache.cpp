// Models by their name on the Hugging Face Hub. A model of the cache is a directory: refs/REVISION
// has the commit, snapshots/COMMIT the files, which are links to blobs/.
#include "data/weights/hub_cache.h"

#include <algorithm>
#include <optional>

namespace brine::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kMain = "main";
constexpr uint64_t kMaxReference = 4096;  // bytes of a file in refs/

Path& cache() {
  static Path directory;
  return directory;
}

struct HubName {
  std::string organisation, name, revision;
};

bool only(const std::string& text, const char* others) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return letter || std::string_view(others).find(c) != std::string_view::npos;
  });
}

// As the Hub accepts them: "--" separates the parts in the cache, and "." and ".." are of paths.
bool is_part(const std::string& text) {
  return !text.empty() && only(text, "._-") && text[0] != '.' && text[0] != '-' &&
         text.find("--") == text.npos && text.find("..") == text.npos;
}

// "refs/pr/1" has slashes, but does not leave the directory.
bool is_revision(const std::string& text) {
  return !text.empty() && only(text, "._-/") && text[0] != '/' && text.find("..") == text.npos;
}

std::optional<HubName> parse(const std::string& path) {
  const size_t slash = path.find('/');
  if (slash == path.npos) return std::nullopt;
  const size_t at = path.find('@', slash);
  HubName out{path.substr(0, slash), path.substr(slash + 1, at - slash - 1),
              at == path.npos ? kMain : path.substr(at + 1)};
  if (!is_part(out.organisation) || !is_part(out.name) || !is_revision(out.revision))
    return std::nullopt;
  return out;
}

bool path_exists(const Path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The name that `path` is, if nothing has this path.
std::optional<HubName> wanted(const std::string& path) {
  if (cache().empty() || path_exists(path)) return std::nullopt;
  return parse(path);
}

Path directory_of(const HubName& model) {
  return cache() / ("models--" + model.organisation + "--" + model.name);
}

// The commit that a reference has; another revision can be a commit itself.
std::string commit_of(const HubName& model) {
  const Path reference = directory_of(model) / "refs" / model.revision;
  std::error_code ignored;
  if (!fs::is_regular_file(reference, ignored)) return model.revision;
  std::string text;
  try {
    text = read_file(reference, kMaxReference);
  } catch (const Error&) {  // not readable: as if it were not there
    return "";
  }
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

}  // namespace

void set_hub_cache(const Path& directory) { cache() = directory; }

std::string local_model(const std::string& path) {
  const std::optional<HubName> model = wanted(path);
  if (!model) return path;
  const std::string commit = commit_of(*model);
  // A commit has no slash or dot: what a file says does not lead out of the cache.
  if (commit.empty() || !only(commit, "")) return path;
  const Path snapshot = directory_of(*model) / "snapshots" / commit;
  std::error_code ignored;
  return fs::is_directory(snapshot, ignored) ? snapshot.string() : path;
}

std::string how_to_fetch(const std::string& path) {
  const std::optional<HubName> model = wanted(path);
  if (!model) return "";
  std::string command = "hf download " + model->organisation + "/" + model->name;
  if (model->revision != kMain) command += " --revision " + model->revision;
  return join(path_exists(directory_of(*model)) ? ", and its revision " + model->revision + " is"
                                                : ", and it is",
              " not in the cache of the Hugging Face Hub, ", cache().string(), "; `", command,
              "` fetches it");
}

}  // namespace brine::data
