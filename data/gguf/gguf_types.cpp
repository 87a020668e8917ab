// The table of ggml's types.
#include "data/gguf/gguf_types.h"

#include <map>

#include "data/gguf/dequantise.h"
#include "data/weights/weight_file.h"

namespace brine::data {
namespace {

constexpr Dtype kValues = Dtype::f32;

const GgufType kTypes[] = {
    {0, "F32", 1, 4, Dtype::f32, nullptr},
    {1, "F16", 1, 2, Dtype::f16, nullptr},
    {30, "BF16", 1, 2, Dtype::bf16, nullptr},
    {2, "Q4_0", 32, 18, kValues, dequantise_q4_0},
    {3, "Q4_1", 32, 20, kValues, dequantise_q4_1},
    {6, "Q5_0", 32, 22, kValues, dequantise_q5_0},
    {7, "Q5_1", 32, 24, kValues, dequantise_q5_1},
    {8, "Q8_0", 32, 34, kValues, dequantise_q8_0},
    {12, "Q4_K", 256, 144, kValues, dequantise_q4_k},
    {13, "Q5_K", 256, 176, kValues, dequantise_q5_k},
    {14, "Q6_K", 256, 210, kValues, dequantise_q6_k},
};

// Types that are not read, for messages.
const std::map<uint32_t, const char*>& other_types() {
  static const std::map<uint32_t, const char*> all = {
      {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"},
      {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
      {22, "IQ2_S"},  {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},
      {27, "I64"},    {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},
      {39, "MXFP4"},
  };
  return all;
}

}  // namespace

const GgufType* find_gguf_type(uint32_t number) {
  for (const GgufType& type : kTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

std::string gguf_type_name(uint32_t number) {
  if (const GgufType* type = find_gguf_type(number)) return type->name;
  auto other = other_types().find(number);
  return other != other_types().end() ? other->second : "type " + std::to_string(number);
}

std::string known_gguf_types() {
  std::string out;
  for (const GgufType& type : kTypes) out += (out.empty() ? "" : ", ") + std::string(type.name);
  return out;
}

void read_gguf_row(const GgufType& type, const unsigned char* x, int64_t n, float* y) {
  if (type.dequantise) {
    type.dequantise(x, n / type.values, y);
  } else {
    convert_values(reinterpret_cast<unsigned char*>(y), Dtype::f32, x, type.dtype, n);
  }
}

}  // namespace brine::data
