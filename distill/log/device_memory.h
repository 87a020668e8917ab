// The peak memory of a run on its device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace brine::distill {

// The peak since the start, or since reset_peak(): "peak 1.2 GiB", on a GPU "peak 1.2 GiB on
// cuda:0".
std::string peak_memory();
// On a GPU adds "device" and "peak_bytes" to a result in JSON.
void add_peak_memory(nlohmann::ordered_json& out);

}  // namespace brine::distill
