// Where models that are named as on the Hugging Face Hub are looked up.
#pragma once

#include <filesystem>

namespace brine {

// The first of HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub and
// HOME/.cache/huggingface/hub whose variable is set and not empty, as huggingface_hub chooses it.
// Empty when none is.
std::filesystem::path hub_cache();

}  // namespace brine
