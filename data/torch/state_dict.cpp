// The stack machine of pickles, restricted to what the pickle of a state dict needs.
#include "data/torch/state_dict.h"

#include <cstring>
#include <map>
#include <set>

#include "data/io/file_io.h"
#include "data/io/utf8.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

constexpr size_t kMaxValues = 1'000'000;
// A value that is stored once can be used many times, so what is copied of it is bounded.
constexpr size_t kMaxTorchAxes = 64;  // PyTorch's limit
constexpr size_t kMaxArguments = 16;
constexpr size_t kLongestStorageKey = 255;

// Instructions by their bytes.
enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kNone = 'N',
  kInt = 'J',
  kInt1 = 'K',
  kInt2 = 'M',
  kFloat = 'G',
  kUnicode = 'X',
  kUnicode1 = 0x8c,
  kUnicode8 = 0x8d,
  kLong1 = 0x8a,
  kTrue = 0x88,
  kFalse = 0x89,
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kAppend = 'a',
  kAppends = 'e',
  kSetItem = 's',
  kSetItems = 'u',
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kPersistent = 'Q',
  kReduce = 'R',
  kBuild = 'b',
  kPut = 'q',
  kLongPut = 'r',
  kGet = 'h',
  kLongGet = 'j',
  kMemoize = 0x94,
  kProtocol = 0x80,
  kFrame = 0x95,
};

enum class Kind { none, truth, integer, real, text, tuple, list, dict, global, storage, tensor };

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"None",     "a bool",    "an integer", "a float",
                                   "a string", "a tuple",   "a list",     "a dict",
                                   "a name",   "a storage", "a tensor"};
  return names[size_t(kind)];
}

using Id = uint32_t;  // of a value; a value may be used more than once

struct Value {
  Kind kind = Kind::none;
  int64_t number = 0;          // of an integer or bool; index of a global, storage or tensor
  std::string_view text = {};  // in the pickle
  std::vector<Id> items = {};  // of a tuple or list; of a dict key, value, key, value...
};

struct Global {
  const char *module, *name;
  const char* dtype;  // of a storage; null for a function
};

constexpr Global kGlobals[] = {
    {"collections", "OrderedDict", nullptr},
    {"torch._utils", "_rebuild_tensor_v2", nullptr},
    {"torch._utils", "_rebuild_parameter", nullptr},
    {"torch", "FloatStorage", "F32"},
    {"torch", "HalfStorage", "F16"},
    {"torch", "BFloat16Storage", "BF16"},
    {"torch", "DoubleStorage", "F64"},
    {"torch", "LongStorage", "I64"},
    {"torch", "IntStorage", "I32"},
    {"torch", "ShortStorage", "I16"},
    {"torch", "CharStorage", "I8"},
    {"torch", "ByteStorage", "U8"},
    {"torch", "BoolStorage", "BOOL"},
};
enum Function { kOrderedDict, kRebuildTensor, kRebuildParameter };

class Machine {
 public:
  Machine(const std::string& file, std::string_view pickle) : file_(file), all_(pickle) {}

  StateDict run() {
    check_format(byte() == kProtocol, where(0), ": does not begin like a pickle");
    const uint8_t protocol = byte();
    check_format(protocol >= 2 && protocol <= 5, where(0), ": protocol ", int(protocol),
                 " is not supported, only 2 to 5");
    for (uint8_t op; (op = next()) != kStop;) run(op);
    check_format(at_ == all_.size(), where(at_), ": bytes after the pickle's end");
    check_format(stack_.size() == 1 && marks_.empty(), where(at_), ": ", stack_.size(),
                 " values at the pickle's end, wanted one");
    return state_dict(stack_[0]);
  }

 private:
  std::string where(size_t at) const { return join(file_, ": pickle, byte ", at); }
  template <class... Parts>
  void require(bool ok, const Parts&... parts) const {
    if (!ok) [[unlikely]]
      throw Error(join(where(op_at_), ": ", parts...), ErrorKind::format);
  }

  // Bytes of the pickle.
  std::string_view take(uint64_t size) {
    require(size <= all_.size() - at_, size, " bytes of ", all_.size() - at_, " (truncated?)");
    at_ += size;
    return all_.substr(at_ - size, size);
  }
  template <class T>
  T number() {
    return number_from<T>(take(sizeof(T)).data());
  }
  uint8_t byte() { return number<uint8_t>(); }
  std::string_view line() {
    const size_t end = all_.find('\n', at_);
    require(end != all_.npos, "a name without an end (truncated?)");
    const std::string_view out = take(end - at_);
    ++at_;
    return out;
  }

  // The next instruction.
  uint8_t next() {
    op_at_ = at_;
    return byte();
  }

  // Values.
  Id make(Value value) {
    require(values_.size() < kMaxValues, "more than ", kMaxValues, " values");
    values_.push_back(std::move(value));
    return Id(values_.size() - 1);
  }
  void push(Value value) { stack_.push_back(make(std::move(value))); }
  void push_number(Kind kind, int64_t number) { push({.kind = kind, .number = number}); }
  Id pop() {
    top();  // throws where there is none
    const Id id = stack_.back();
    stack_.pop_back();
    return id;
  }
  std::vector<Id> pop_to_mark() {
    require(!marks_.empty(), "no mark on the stack");
    std::vector<Id> out(stack_.begin() + int64_t(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return out;
  }
  Value& top() {
    require(!stack_.empty() && (marks_.empty() || stack_.size() > marks_.back()),
            "no value on the stack");
    return values_[stack_.back()];
  }
  const Value& of(Id id, Kind kind, const char* what) const {
    require(values_[id].kind == kind, what, " is ", name_of(values_[id].kind), ", wanted ",
            name_of(kind));
    return values_[id];
  }
  uint64_t size_of(Id id, const char* what) const {
    const Value& value = of(id, Kind::integer, what);
    require(value.number >= 0, what, " is ", value.number, ", wanted 0 or more");
    return uint64_t(value.number);
  }
  std::vector<uint64_t> sizes_of(Id id, const char* what) const {
    const std::vector<Id>& items = of(id, Kind::tuple, what).items;
    require(items.size() <= kMaxTorchAxes, what, " has ", items.size(), " axes, at most ",
            kMaxTorchAxes, " are supported");
    std::vector<uint64_t> out;
    out.reserve(items.size());
    for (Id item : items) out.push_back(size_of(item, what));
    return out;
  }

  void run(uint8_t op) {
    switch (op) {
      case kNone:
        return push({});
      case kTrue:
      case kFalse:
        return push_number(Kind::truth, op == kTrue);
      case kInt:
        return push_number(Kind::integer, number<int32_t>());
      case kInt1:
        return push_number(Kind::integer, byte());
      case kInt2:
        return push_number(Kind::integer, number<uint16_t>());
      case kLong1:
        return push_number(Kind::integer, long_number());
      case kFloat:
        take(8);
        return push({.kind = Kind::real});
      case kUnicode:
        return push({.kind = Kind::text, .text = take(number<uint32_t>())});
      case kUnicode1:
        return push({.kind = Kind::text, .text = take(byte())});
      case kUnicode8:
        return push({.kind = Kind::text, .text = take(number<uint64_t>())});
      case kFrame:
        return require(number<uint64_t>() <= all_.size() - at_, "a frame beyond the end");
      case kMark:
        return set_mark();
      case kPop:
        pop();
        return;
      case kPopMark:
        pop_to_mark();
        return;
      case kEmptyDict:
        return push({.kind = Kind::dict});
      case kEmptyList:
        return push({.kind = Kind::list});
      case kEmptyTuple:
        return push({.kind = Kind::tuple});
      case kTuple:
        return push({.kind = Kind::tuple, .items = pop_to_mark()});
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return push({.kind = Kind::tuple, .items = pop_some(op - kTuple1 + 1)});
      case kAppend:
      case kAppends:
        return extend(Kind::list, op == kAppend ? pop_some(1) : pop_to_mark());
      case kSetItem:
      case kSetItems:
        return extend(Kind::dict, op == kSetItem ? pop_some(2) : pop_to_mark());
      case kPut:
        return remember(byte());
      case kLongPut:
        return remember(number<uint32_t>());
      case kMemoize:
        return remember(uint32_t(memo_.size()));
      case kGet:
        return recall(byte());
      case kLongGet:
        return recall(number<uint32_t>());
      case kGlobal: {
        const std::string_view module = line();
        return push_global(module, line());
      }
      case kStackGlobal: {
        const Id name = pop(), module = pop();
        return push_global(of(module, Kind::text, "a module").text,
                           of(name, Kind::text, "a name").text);
      }
      case kPersistent:
        return push_number(Kind::storage, storage(pop()));
      case kReduce:
        return reduce();
      case kBuild:
        pop();  // attributes of the dict, like the versions of its modules
        return require(top().kind == Kind::dict, "attributes of ", name_of(top().kind));
      default:
        require(false, "the instruction ", int(op), " is not one of a state dict; nothing was run");
    }
  }

  // An integer of up to 8 bytes in two's complement.
  int64_t long_number() {
    const uint8_t size = byte();
    require(size <= 8, "an integer of ", int(size), " bytes, at most 8 are supported");
    const std::string_view bytes = take(size);
    const bool negative = size > 0 && uint8_t(bytes.back()) >= 128;
    uint64_t out = negative ? UINT64_MAX : 0;
    std::memcpy(&out, bytes.data(), size);
    return int64_t(out);
  }

  void set_mark() {
    require(marks_.size() < kMaxValues, "more than ", kMaxValues, " marks");
    marks_.push_back(stack_.size());
  }

  std::vector<Id> pop_some(int count) {
    std::vector<Id> out(static_cast<size_t>(count));
    for (int i = count; i-- > 0;) out[size_t(i)] = pop();
    return out;
  }

  // Adds to the list or dict on top of the stack.
  void extend(Kind kind, const std::vector<Id>& items) {
    Value& to = top();
    require(to.kind == kind, "adds to ", name_of(to.kind), ", wanted ", name_of(kind));
    require(kind == Kind::list || items.size() % 2 == 0, "a key without a value");
    for (size_t i = 0; kind == Kind::dict && i < items.size(); i += 2)
      of(items[i], Kind::text, "a key");
    to.items.insert(to.items.end(), items.begin(), items.end());
  }

  void remember(uint32_t index) {
    top();
    require(memo_.size() < kMaxValues, "more than ", kMaxValues, " stored values");
    memo_[index] = stack_.back();
  }
  void recall(uint32_t index) {
    auto found = memo_.find(index);
    require(found != memo_.end(), "uses the value ", index, ", which was not stored");
    require(stack_.size() < kMaxValues, "more than ", kMaxValues, " values");
    stack_.push_back(found->second);
  }

  void push_global(std::string_view module, std::string_view name) {
    for (size_t i = 0; i < std::size(kGlobals); ++i) {
      if (module == kGlobals[i].module && name == kGlobals[i].name)
        return push_number(Kind::global, int64_t(i));
    }
    require(false, "uses '", shown(module.substr(0, 80)), ".", shown(name.substr(0, 80)),
            "', which a state dict of tensors does not need; nothing was run");
  }

  // The storage that ("storage", type, key, device, elements) names.
  int64_t storage(Id id) {
    const std::vector<Id> items = of(id, Kind::tuple, "a persistent id").items;
    require(items.size() == 5 && of(items[0], Kind::text, "a persistent id").text == "storage",
            "a persistent id that is not a storage");
    const char* dtype = kGlobals[of(items[1], Kind::global, "a storage's type").number].dtype;
    require(dtype != nullptr, "a storage without a type");
    const std::string_view key = of(items[2], Kind::text, "a storage's key").text;
    const uint64_t elements = size_of(items[4], "a storage's size");
    require(key.size() <= kLongestStorageKey, "a storage's key of ", key.size(), " bytes, at most ",
            kLongestStorageKey, " are supported");
    auto [it, fresh] = storage_of_.emplace(key, out_.storages.size());
    if (fresh) out_.storages.push_back({dtype, std::string(key), elements});
    const PickledStorage& earlier = out_.storages[it->second];
    require(earlier.dtype == dtype && earlier.elements == elements, "the storage '", shown(key),
            "' has two types or sizes");
    return int64_t(it->second);
  }

  void reduce() {
    const Id arguments = pop(), function = pop();
    const size_t count = of(arguments, Kind::tuple, "an argument list").items.size();
    require(count <= kMaxArguments, count, " arguments, at most ", kMaxArguments, " are supported");
    const std::vector<Id> given = values_[arguments].items;
    switch (of(function, Kind::global, "a function").number) {
      case kOrderedDict:
        require(given.empty(), "an OrderedDict with ", given.size(), " arguments, wanted none");
        return push({.kind = Kind::dict});
      case kRebuildTensor:
        return push_number(Kind::tensor, tensor(given));
      case kRebuildParameter:
        require(!given.empty(), "a parameter without a tensor");
        of(given[0], Kind::tensor, "a parameter's value");
        stack_.push_back(given[0]);
        return;
      default:
        require(false, "calls a storage's type");
    }
  }

  // (storage, offset, sizes, strides, requires_grad, hooks) and maybe metadata, which may say that
  // the values are to be negated.
  int64_t tensor(const std::vector<Id>& given) {
    require(given.size() == 6 || given.size() == 7, "a tensor of ", given.size(),
            " arguments, wanted 6");
    require(given.size() == 6 || of(given[6], Kind::dict, "a tensor's metadata").items.empty(),
            "a tensor with metadata (a negated or conjugated view), which is not supported");
    PickledTensor t;
    t.storage = size_t(of(given[0], Kind::storage, "a tensor's storage").number);
    t.offset = size_of(given[1], "a tensor's offset");
    t.shape = sizes_of(given[2], "a tensor's size");
    t.strides = sizes_of(given[3], "a tensor's stride");
    require(t.shape.size() == t.strides.size(), "a tensor of ", t.shape.size(), " axes with ",
            t.strides.size(), " strides");
    count_axes(t);
    tensors_.push_back(std::move(t));
    return int64_t(tensors_.size() - 1);
  }

  // Values of a few bytes may describe many tensors.
  void count_axes(const PickledTensor& t) {
    axes_ += t.shape.size();
    require(axes_ <= kMaxValues, "tensors of more than ", kMaxValues, " axes together");
  }

  StateDict state_dict(Id id) {
    const Value& dict = of(id, Kind::dict, "the file's content");
    std::set<std::string_view> names;
    for (size_t i = 0; i < dict.items.size(); i += 2) {
      const std::string_view name = values_[dict.items[i]].text;
      const Value& value = values_[dict.items[i + 1]];
      check_format(value.kind == Kind::tensor, file_, ": '", shown(name), "' is ",
                   name_of(value.kind), ", wanted a tensor");
      check_format(names.insert(name).second, file_, ": tensor '", shown(name), "' occurs twice");
      count_axes(tensors_[size_t(value.number)]);
      out_.tensors.push_back(tensors_[size_t(value.number)]);
      out_.tensors.back().name = name;
    }
    return std::move(out_);
  }

  const std::string& file_;
  std::string_view all_;
  size_t at_ = 0, op_at_ = 0;
  std::vector<Value> values_;
  std::vector<Id> stack_;
  std::vector<size_t> marks_;
  std::map<uint32_t, Id> memo_;
  std::map<std::string, size_t> storage_of_;
  std::vector<PickledTensor> tensors_;
  size_t axes_ = 0;  // of all tensors that were described
  StateDict out_;
};

}  // namespace

StateDict read_state_dict(const std::string& file, std::string_view pickle) {
  return Machine(file, pickle).run();
}

}  // namespace brine::data
