// Damaged files of PyTorch and other programs' pickles: one line that names file and reason.
#include <doctest/doctest.h>

#include <functional>

#include "data/torch/torch_file.h"
#include "tests/data/torch/torch_bytes.h"
#include "tests/paths.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

using namespace brine::data;

using Parts = std::initializer_list<std::string>;

std::string said_of_bin(const std::string& text) {
  Scratch dir;
  const Path path = dir.write("m.bin", text);
  const std::string said = message([&] { TorchFile file(path); });
  CHECK(said.find('\n') == said.npos);
  CHECK((said == "no error" || said.rfind(path.string() + ": ", 0) == 0));
  return said;
}

void zip_refused(const std::function<void(ZipBytes&)>& change, Parts parts) {
  ZipBytes zip = TorchBytes().zip();
  change(zip);
  check_says(said_of_bin(zip.text()), parts);
}

// A whole pickle, or the instructions of a value in one.
void pickle_refused(const std::string& pickle, Parts parts) {
  check_says(said_of_bin(TorchBytes{.pickle = pickle}.text()), parts);
}
void value_refused(const std::string& value, Parts parts) {
  pickle_refused(pickle_of({{"x", value}}), parts);
}
void tensor_refused(const std::function<void(TensorBytes&)>& change, Parts parts) {
  TensorBytes tensor;
  change(tensor);
  value_refused(tensor.text(), parts);
}

}  // namespace

TEST_CASE("torch: other formats are refused by name") {
  const std::string golden = source_dir() + "/tests/golden/torch/";
  CHECK_REFUSES(TorchFile(golden + "old.bin"), "old.bin", "before 1.6", "torch.save");
  // Its code is compressed, its tensors are not.
  CHECK_REFUSES(TorchFile(golden + "script.bin"), "script.bin", "code", "compressed");
  CHECK_REFUSES(TorchFile(golden + "big.bin"), "big.bin", "byteorder");
  CHECK_REFUSES(TorchFile(golden + "code.bin"), "code.bin", "posix.getcwd", "nothing was run");
  check_says(said_of_bin("x"), {"not a zip archive"});
  check_says(said_of_bin(""), {"not a zip archive"});
}

TEST_CASE("torch: damaged archives are refused by their reason") {
  CHECK(said_of_bin(TorchBytes().text()) == "no error");
  zip_refused([](auto& z) { z.records[1].method = 8; }, {"m/data/0", "compressed", "8"});
  zip_refused([](auto& z) { z.records[1].flags = 1; }, {"m/data/0", "encrypted"});
  zip_refused([](auto& z) { z.records[1].longer = 1 << 20; }, {"m/data/0", "outside"});
  zip_refused([](auto& z) { z.records[1].longer = 8; }, {"m/version", "overlaps"});
  zip_refused([](auto& z) { z.records[1].moved = 1 << 20; }, {"truncated"});
  zip_refused([](auto& z) { z.records[1].moved = 1; }, {"m/data/0", "no header"});
  zip_refused([](auto& z) { z.records[1].name_in_front = "m/data/1"; },
              {"m/data/0", "another name"});
  zip_refused([](auto& z) { z.records[2] = z.records[1]; }, {"m/data/0", "twice"});
  zip_refused([](auto& z) { z.more_records = 1; }, {"directory"});
  zip_refused([](auto& z) { z.more_records = -1; }, {"after the directory"});
  zip_refused([](auto& z) { z.more_records = 1000; }, {"1003", "do not fit"});
  zip_refused([](auto& z) { z.directory_moved = 1; }, {"directory"});
  zip_refused([](auto& z) { z.records[0].name = z.records[0].name_in_front = "m/x.pkl"; },
              {"no data.pkl"});
  zip_refused([](auto& z) { z.records[2] = {"n/data.pkl", "x"}; }, {"m/data.pkl", "n/data.pkl"});
  zip_refused([](auto& z) { z.records[1].name = z.records[1].name_in_front = "m/data/1"; },
              {"no record", "data/0"});
  ZipBytes commented = TorchBytes().zip();
  commented.comment = "PK\x05\x06, a comment";
  CHECK(said_of_bin(commented.text()) == "no error");
}

TEST_CASE("torch: pickles that are not state dicts are refused by their reason") {
  pickle_refused("", {"truncated"});
  pickle_refused("\x80", {"truncated"});
  pickle_refused("}.", {"not begin like a pickle"});
  pickle_refused("\x80\x01}.", {"protocol", "1"});
  pickle_refused("\x80\x02}", {"truncated"});
  pickle_refused("\x80\x02].", {"a list", "a dict"});
  pickle_refused("\x80\x02.", {"0 values"});
  pickle_refused("\x80\x02}}.", {"2 values"});
  pickle_refused("\x80\x02}(.", {"values"});
  pickle_refused("\x80\x02}.x", {"after the pickle"});
  pickle_refused("\x80\x02}u.", {"no mark"});
  pickle_refused("\x80\x02}(0u.", {"no value"});
  pickle_refused("\x80\x02}(Nu.", {"a key without"});
  pickle_refused("\x80\x02}(NNu.", {"a key", "None"});
  pickle_refused("\x80\x02h\x07.", {"7", "not stored"});
  pickle_refused("\x80\x02X\xff\xff\xff\xff.", {"4294967295", "truncated"});
  pickle_refused("\x80\x04\x8d" + std::string(8, '\xff') + ".", {"truncated"});
  pickle_refused("\x80\x02\x8a\x09" + std::string(9, '1') + ".", {"9 bytes", "8"});
  pickle_refused("\x80\x02" + std::string("cos\nsystem\n") + pickled("true") + "\x85R.",
                 {"os.system", "nothing was run"});
  pickle_refused("\x80\x04" + pickled("os") + pickled("system") + "\x93.", {"os.system"});
  pickle_refused("\x80\x02(ios\nsystem\n.", {"instruction", "105"});
  value_refused(pickled(3), {"'x'", "an integer", "a tensor"});
  pickle_refused(pickle_of({{"x", TensorBytes().text()}, {"x", TensorBytes().text()}}),
                 {"'x'", "twice"});
  // A dict that contains itself, and a list without an end to its nesting.
  pickle_refused("\x80\x02}q\x01" + pickled("x") + "h\x01s.", {"'x'", "a dict"});
  pickle_refused("\x80\x02" + std::string(5000, ']') + std::string(4999, 'a') + ".", {"a list"});
  pickle_refused("\x80\x02" + std::string(1'100'000, 'N') + ".", {"more than 1000000"});
  // Values that are stored once and copied often.
  pickle_refused(
      "\x80\x02" + std::string("ccollections\nOrderedDict\n(") + std::string(17, 'N') + "tR.",
      {"17 arguments", "at most 16"});
  TensorBytes wide;
  wide.sizes = wide.strides = std::vector<int>(64, 1);
  const std::string text = wide.text();  // NAME (ARGUMENTS tR
  const size_t begin = text.find('(');
  std::string often = text.substr(0, begin) + "q\x01" + text.substr(begin);
  often.insert(often.size() - 1, "q\x02");
  for (int i = 0; i < 20'000; ++i) often += "0h\x01h\x02R";
  value_refused(often, {"tensors of more than 1000000 axes"});
  std::string names;
  for (int i = 0; i < 20'000; ++i)
    names += pickled(std::to_string(i)) + (i == 0 ? text + "q\x03" : "h\x03");
  pickle_refused("\x80\x02}(" + names + "u.", {"tensors of more than 1000000 axes"});
  TensorBytes named;
  named.key = std::string(256, '0');
  value_refused(named.text(), {"key of 256 bytes"});
}

TEST_CASE("torch: tensors that are not parts of their storage are refused") {
  tensor_refused([](auto& t) { t.more = "}" + pickled("neg") + "\x88s"; }, {"metadata", "negated"});
  tensor_refused([](auto& t) { t.sizes = t.strides = std::vector<int>(65, 1); },
                 {"a tensor's size", "65 axes", "at most 64"});
  tensor_refused([](auto& t) { t.key = "7"; }, {"no record", "data/7"});
  tensor_refused([](auto& t) { t.elements = 7; }, {"data/0", "24", "7", "28"});
  tensor_refused([](auto& t) { t.elements = -1; }, {"storage", "-1"});
  tensor_refused([](auto& t) { t.offset = 1; }, {"'x'", "ends beyond", "6"});
  tensor_refused([](auto& t) { t.offset = 7; }, {"'x'", "element 7"});
  tensor_refused([](auto& t) { t.offset = -4; }, {"offset", "-4"});
  tensor_refused([](auto& t) { t.sizes = {2, 4}; }, {"'x'", "8 elements", "6"});
  tensor_refused([](auto& t) { t.sizes = {2}; }, {"1 axes", "2 strides"});
  tensor_refused([](auto& t) { t.sizes = {-2, -3}; }, {"size", "-2"});
  tensor_refused([](auto& t) { t.strides = {4, 1}; }, {"'x'", "ends beyond"});
  tensor_refused([](auto& t) { t.strides = {-3, 1}; }, {"stride", "-3"});
  tensor_refused([](auto& t) { t.sizes = {3, 1}, t.strides = {0, 1}; }, {"'x'", "expanded"});
  tensor_refused(
      [](auto& t) {
        t.sizes = {1 << 30, 1 << 30};
        t.strides = {0, 0};
      },
      {"'x'", "expanded"});
  tensor_refused(
      [](auto& t) {
        t.sizes = {1 << 30, 1 << 30, 1 << 30}, t.strides = {0, 0, 0};
      },
      {"'x'", "elements", "overflows"});
  tensor_refused([](auto& t) { t.type = "ctorch\nComplexFloatStorage\n"; },
                 {"torch.ComplexFloatStorage"});
  tensor_refused([](auto& t) { t.type = "ccollections\nOrderedDict\n"; }, {"storage", "type"});
  // One storage under two types.
  const TensorBytes other{.elements = 3, .type = "ctorch\nDoubleStorage\n"};
  pickle_refused(pickle_of({{"x", TensorBytes().text()}, {"y", other.text()}}),
                 {"storage", "'0'", "two types"});
}

}  // namespace brine::test
