// Where models that are named as on the Hugging Face Hub are looked up.
#include "apps/cli/hub_cache.h"

#include <cstdlib>

namespace brine {

std::filesystem::path hub_cache() {
  constexpr struct {
    const char *variable, *below;
  } places[] = {{"HF_HUB_CACHE", ""},
                {"HF_HOME", "hub"},
                {"XDG_CACHE_HOME", "huggingface/hub"},
                {"HOME", ".cache/huggingface/hub"}};
  for (const auto& [variable, below] : places) {
    const char* value = std::getenv(variable);
    if (value && *value) return *below ? std::filesystem::path(value) / below : value;
  }
  return {};
}

}  // namespace brine
