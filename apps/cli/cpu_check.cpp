// The check of the CPU at start. It runs on every x86-64 CPU: no vector code, no library except
// write() and _exit(), and before the constructors of all other files, whose code may already use
// missing features.
#include "apps/cli/cpu_check.h"

#include <unistd.h>

// A macro that the compiler defines becomes "1", one that it does not define stays a name.
#define BRINE_TEXT(x) #x
#define BRINE_NEEDED(macro) (BRINE_TEXT(macro)[0] == '1')

// Clang knows neither the pragma below nor all of these names: there nothing is compared.
#if defined(__x86_64__) && !defined(__clang__)
#define BRINE_FEATURES(F)                   \
  F("sse3", __SSE3__)                       \
  F("ssse3", __SSSE3__)                     \
  F("sse4.1", __SSE4_1__)                   \
  F("sse4.2", __SSE4_2__)                   \
  F("popcnt", __POPCNT__)                   \
  F("movbe", __MOVBE__)                     \
  F("lzcnt", __LZCNT__)                     \
  F("bmi", __BMI__)                         \
  F("bmi2", __BMI2__)                       \
  F("adx", __ADX__)                         \
  F("aes", __AES__)                         \
  F("pclmul", __PCLMUL__)                   \
  F("sha", __SHA__)                         \
  F("gfni", __GFNI__)                       \
  F("f16c", __F16C__)                       \
  F("avx", __AVX__)                         \
  F("fma", __FMA__)                         \
  F("avx2", __AVX2__)                       \
  F("vaes", __VAES__)                       \
  F("vpclmulqdq", __VPCLMULQDQ__)           \
  F("avxvnni", __AVXVNNI__)                 \
  F("avx512f", __AVX512F__)                 \
  F("avx512cd", __AVX512CD__)               \
  F("avx512bw", __AVX512BW__)               \
  F("avx512dq", __AVX512DQ__)               \
  F("avx512vl", __AVX512VL__)               \
  F("avx512ifma", __AVX512IFMA__)           \
  F("avx512vbmi", __AVX512VBMI__)           \
  F("avx512vbmi2", __AVX512VBMI2__)         \
  F("avx512vnni", __AVX512VNNI__)           \
  F("avx512bitalg", __AVX512BITALG__)       \
  F("avx512vpopcntdq", __AVX512VPOPCNTDQ__) \
  F("avx512bf16", __AVX512BF16__) F("avx512fp16", __AVX512FP16__)

namespace {
// Evaluated before the pragma below, which undefines the macros.
#define BRINE_ROW(name, macro) BRINE_NEEDED(macro),
constexpr bool kNeeded[] = {BRINE_FEATURES(BRINE_ROW)};
#undef BRINE_ROW
}  // namespace

#pragma GCC target("no-avx,no-sse4.2,no-sse4.1,no-ssse3,no-sse3,no-popcnt")
#pragma GCC target("no-bmi,no-bmi2,no-lzcnt,no-movbe,no-adx,no-tbm")
#endif

namespace brine {

const CpuFeature* cpu_features(int* count) {
#ifdef BRINE_FEATURES
  __builtin_cpu_init();
#define BRINE_ROW(name, macro) {name, false, __builtin_cpu_supports(name) != 0},
  static CpuFeature table[] = {BRINE_FEATURES(BRINE_ROW)};
#undef BRINE_ROW
  *count = int(sizeof table / sizeof table[0]);
  for (int i = 0; i < *count; ++i) table[i].needed = kNeeded[i];
  return table;
#else
  *count = 0;
  return nullptr;
#endif
}

void missing_features(const CpuFeature* features, int count, char* out, int size) {
  int length = 0;
  auto put = [&](char c) {
    if (length + 1 < size) out[length++] = c;
  };
  for (int i = 0; i < count; ++i) {
    if (!features[i].needed || features[i].present) continue;
    if (length > 0) put(' ');
    for (const char* c = features[i].name; *c != '\0'; ++c) put(*c);
  }
  out[length] = '\0';
}

namespace {

#ifdef BRINE_DISPATCH  // it is portable already
constexpr const char* kAdvice = "; build it on this machine\n";
#else
constexpr const char* kAdvice = "; build it on this machine, or with the preset \"portable\"\n";
#endif

int length_of(const char* text) {
  int length = 0;
  while (text[length] != '\0') ++length;
  return length;
}

// 101 is the earliest priority that a program may use.
__attribute__((constructor(101))) void compare_build_with_cpu() {
  int count = 0;
  const CpuFeature* features = cpu_features(&count);
  char missing[512];
  missing_features(features, count, missing, sizeof missing);
  if (missing[0] == '\0') return;
  const char* parts[] = {"brine: this build needs features that the CPU lacks: ", missing, kAdvice};
  for (const char* part : parts) {
    if (write(STDERR_FILENO, part, size_t(length_of(part))) < 0) break;
  }
  _exit(1);
}

}  // namespace

}  // namespace brine
