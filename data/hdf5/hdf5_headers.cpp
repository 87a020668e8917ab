// Checks of the sizes in the superblock, object headers, groups and messages of "HDF5 File Format
// Specification Version 3.0".
#include "data/hdf5/hdf5_headers.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <span>
#include <vector>

#include "tensor/base/error.h"

namespace brine::data::hdf5 {
namespace {

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
constexpr uint64_t kLargestPiece = uint64_t(16) << 20;  // of a header
constexpr const char* kUserBlock = ": begins with a user block, which is refused";
constexpr size_t kMaxPieces = 4096;
constexpr size_t kMaxNodes = 1 << 20;  // of a tree of names
// The bytes that are read of all headers: each of a valid file is read about once.
constexpr uint64_t kMaxReads = 16, kAlwaysRead = uint64_t(16) << 20;
constexpr uint64_t kBytesOfRead = 256;  // what a read costs, in bytes

constexpr int kDeepestHdf5 = 16;  // nested datatypes, chained headers

[[noreturn]] void refuse_header(const std::string& where, const char* what) {
  throw Error(where + ": damaged object header: " + what, ErrorKind::format);
}

// Bytes that are consumed from the front; reading beyond the end throws.
class Cursor {
 public:
  Cursor(const std::string& where, std::span<const char> bytes) : where_(where), bytes_(bytes) {}

  size_t left() const { return bytes_.size(); }
  std::span<const char> take(uint64_t count, const char* what) {
    if (count > bytes_.size()) refuse_header(where_, what);
    const auto front = bytes_.first(size_t(count));
    bytes_ = bytes_.subspan(size_t(count));
    return front;
  }
  void skip(uint64_t count, const char* what) { take(count, what); }
  // Little endian.
  uint64_t number(int bytes, const char* what) {
    uint64_t value = 0;
    const auto from = take(uint64_t(bytes), what);
    for (int i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(from[size_t(i)]);
    return value;
  }
  // A text that ends with a NUL, padded to a multiple of `unit` bytes.
  void text(size_t unit, const char* what) {
    const auto nul = std::find(bytes_.begin(), bytes_.end(), '\0');
    if (nul == bytes_.end()) refuse_header(where_, what);
    const size_t size = size_t(nul - bytes_.begin()) + 1;
    skip((size + unit - 1) / unit * unit, what);
  }
  const std::string& where() const { return where_; }

 private:
  const std::string& where_;
  std::span<const char> bytes_;
};

uint64_t padded(uint64_t size, bool to_eight) { return to_eight ? (size + 7) / 8 * 8 : size; }

uint64_t product(const std::string& where, uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) refuse_header(where, "an impossible number of elements");
  return out;
}

// The number of bytes in which libhdf5 writes a number up to `largest`.
int width_of(uint64_t largest) {
  int bytes = 1;
  while (largest >>= 8) ++bytes;
  return bytes;
}

enum TypeClass {
  kFixed,
  kFloating,
  kTime,
  kString,
  kBits,
  kOpaque,
  kCompound,
  kReference,
  kEnum,
  kVariable,
  kArray
};

// Each of these reads a message's content and throws if it ends too early. Returns the size of an
// element.
uint64_t check_datatype(Cursor& m, int depth = 0) {
  constexpr const char* kWhat = "a datatype does not fit its message";
  if (depth > kDeepestHdf5) refuse_header(m.where(), "datatypes are nested too deeply");
  const uint64_t kind = m.number(1, kWhat), flags = m.number(3, kWhat), size = m.number(4, kWhat);
  const uint64_t version = kind >> 4, members = flags & 0xffff;
  const size_t unit = version < 3 ? 8 : 1;
  switch (kind & 15) {
    case kFixed:
    case kBits:
      m.skip(4, kWhat);
      break;
    case kFloating:
      m.skip(12, kWhat);
      break;
    case kTime:
      m.skip(2, kWhat);
      break;
    case kOpaque:
      m.skip(flags & 0xff, kWhat);
      break;
    case kCompound:
      for (uint64_t i = 0; i < members; ++i) {
        m.text(unit, kWhat);
        m.skip(version < 3 ? 4 : uint64_t(width_of(size)), kWhat);
        if (version == 1) m.skip(28, kWhat);
        check_datatype(m, depth + 1);
      }
      break;
    case kEnum: {
      const uint64_t base = check_datatype(m, depth + 1);
      for (uint64_t i = 0; i < members; ++i) m.text(unit, kWhat);
      m.skip(product(m.where(), members, base), kWhat);
      break;
    }
    case kVariable:
      check_datatype(m, depth + 1);
      break;
    case kArray: {
      const uint64_t axes = m.number(1, kWhat);
      m.skip(version < 3 ? 3 + 8 * axes : 4 * axes, kWhat);
      check_datatype(m, depth + 1);
      break;
    }
    default:  // strings and references have nothing more; libhdf5 refuses other classes
      break;
  }
  return size;
}

// Returns the number of elements.
uint64_t check_dataspace(Cursor& m, int length_bytes) {
  constexpr const char* kWhat = "a dataspace does not fit its message";
  const uint64_t version = m.number(1, kWhat), axes = m.number(1, kWhat),
                 flags = m.number(1, kWhat);
  const uint64_t kind = m.number(1, kWhat);
  if (version == 1) m.skip(4, kWhat);
  uint64_t elements = version >= 2 && kind == 2 ? 0 : 1;
  for (uint64_t i = 0; i < axes; ++i)
    elements = product(m.where(), elements, m.number(length_bytes, kWhat));
  if (flags & 1) m.skip(axes * uint64_t(length_bytes), kWhat);
  if (version == 1 && flags & 2) m.skip(axes * uint64_t(length_bytes), kWhat);
  return elements;
}

void check_fill_value(Cursor& m, bool old) {
  constexpr const char* kWhat = "a fill value does not fit its message";
  bool may_be_negative = false;  // which means that there is none
  if (!old) {
    const uint64_t version = m.number(1, kWhat), flags = m.number(1, kWhat);
    if (version >= 3 && (flags & 0x20) == 0) return;
    if (version < 3) {
      m.skip(1, kWhat);
      if (m.number(1, kWhat) == 0 && version == 2) return;
      may_be_negative = true;
    }
  }
  const uint64_t size = m.number(4, kWhat);
  if (!may_be_negative || size <= INT32_MAX) m.skip(size, kWhat);
}

void check_filters(Cursor& m) {
  constexpr const char* kWhat = "a filter does not fit its message";
  const uint64_t version = m.number(1, kWhat), count = m.number(1, kWhat);
  if (version == 1) m.skip(6, kWhat);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t id = m.number(2, kWhat);
    const uint64_t name = version == 1 || id >= 256 ? m.number(2, kWhat) : 0;
    m.skip(2, kWhat);
    const uint64_t values = m.number(2, kWhat);
    if (name > 0) {
      const auto text = m.take(padded(name, version == 1), kWhat);
      if (std::find(text.begin(), text.end(), '\0') == text.end()) refuse_header(m.where(), kWhat);
    }
    m.skip(4 * values + (version == 1 && values % 2 ? 4 : 0), kWhat);
  }
}

}  // namespace

// One header with all of its pieces.
class HeaderChecker::Walk {
 public:
  Walk(HeaderChecker& checker, const std::string& where, int depth)
      : c_(checker), where_(where), depth_(depth) {
    if (depth > kDeepestHdf5) refuse_header(where, "headers refer to each other");
  }

  // The size of an element of the header's datatype, if it has one.
  std::optional<uint64_t> header(uint64_t address) {
    const std::vector<char> start = bytes(address, 4);
    const bool old = std::memcmp(start.data(), "OHDR", 4) != 0;
    old ? first_piece_v1(address) : first_piece_v2(address);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece piece = pieces_[i];
      if (i >= kMaxPieces || piece.size > kLargestPiece) refuse_header(where_, "it is too large");
      std::vector<char> content = bytes(piece.address, piece.size);
      std::span<const char> inside = content;
      if (!old && i > 0) {
        if (piece.size < 8 || std::memcmp(content.data(), "OCHK", 4) != 0)
          refuse_header(where_, "a piece does not begin as one");
        inside = inside.subspan(4, inside.size() - 8);
      }
      messages(inside, old);
    }
    return item_;
  }

 private:
  struct Piece {
    uint64_t address = 0, size = 0;
  };

  std::vector<char> bytes(uint64_t address, uint64_t size) const {
    c_.work_ += kBytesOfRead + std::min(size, c_.file_.size());
    if (c_.work_ > kMaxReads * c_.file_.size() + kAlwaysRead)
      refuse_header(where_, "headers refer to the same bytes again and again");
    std::vector<char> out(size);
    c_.file_.read(where_, address, size, out.data());
    return out;
  }

  void first_piece_v1(uint64_t address) {
    constexpr uint64_t kPrefix = 16;
    const std::vector<char> prefix = bytes(address, kPrefix);
    Cursor p(where_, prefix);
    if (p.number(1, "") != 1) refuse_header(where_, "its version is not 1 or 2");
    p.skip(7, "");
    pieces_.push_back({address + kPrefix, p.number(4, "")});
  }

  void first_piece_v2(uint64_t address) {
    const std::vector<char> start = bytes(address, 6);
    if (start[4] != 2) refuse_header(where_, "its version is not 1 or 2");
    const int flags = uint8_t(start[5]), width = 1 << (flags & 3);
    order_bytes_ = flags & 4 ? 2 : 0;
    const uint64_t at = address + 6 + (flags & 0x20 ? 16 : 0) + (flags & 0x10 ? 4 : 0);
    const std::vector<char> field = bytes(at, uint64_t(width));
    pieces_.push_back({at + uint64_t(width), Cursor(where_, field).number(width, "")});
  }

  // `old`: of version 1.
  void messages(std::span<const char> piece, bool old) {
    constexpr const char* kWhat = "a message does not fit its piece";
    Cursor p(where_, piece);
    const size_t least = old ? 1 : 4 + size_t(order_bytes_);  // a shorter remainder is a gap
    while (p.left() >= least) {
      const uint64_t type = p.number(old ? 2 : 1, kWhat), size = p.number(2, kWhat),
                     flags = p.number(old ? 4 : 1, kWhat);
      p.skip(uint64_t(order_bytes_), kWhat);
      message(type, flags & 0xff, p.take(size, kWhat));
    }
  }

  void message(uint64_t type, uint64_t flags, std::span<const char> content) {
    constexpr uint64_t kShared = 2, kNothing = 0;
    Cursor m(where_, content);
    if (type != kNothing && flags & kShared) {
      const auto item = shared(m);
      if (type == 3) item_ = item;
      return;
    }
    switch (type) {
      case 0x01:
        check_dataspace(m, c_.length_bytes_);
        return;
      case 0x02:
        return index_info(m, 8, "information on links does not fit its message");
      case 0x03:
        item_ = check_datatype(m);
        return;
      case 0x04:
      case 0x05:
        return check_fill_value(m, type == 0x04);
      case 0x06:
        return link(m);
      case 0x07:
        return external_files(m);
      case 0x08:
        return layout(m);
      case 0x0a:
        return group_info(m);
      case 0x0b:
        return check_filters(m);
      case 0x0c:
        return attribute(m);
      case 0x0d:
        return m.text(1, "a comment does not fit its message");
      case 0x0e:
        return m.skip(16, "a time does not fit its message");
      case 0x10: {
        Piece piece;
        piece.address = address(m, "a reference to a piece does not fit its message");
        piece.size = m.number(c_.length_bytes_, "a reference to a piece does not fit its message");
        pieces_.push_back(piece);
        break;
      }
      case 0x11:
        return symbol_table(m);
      case 0x12:
        return m.skip(8, "a time does not fit its message");
      case 0x15:
        return index_info(m, 2, "information on attributes does not fit its message");
      case 0x16:
        return m.skip(5, "a reference count does not fit its message");
      default:  // no size inside, or not used by supported groups and datasets
        break;
    }
  }

  uint64_t address(Cursor& m, const char* what) const { return m.number(c_.address_bytes_, what); }

  // A message, or an attribute's datatype, that is kept in another header.
  std::optional<uint64_t> shared(Cursor& m) const {
    constexpr const char* kWhat = "a shared message does not fit";
    const uint64_t version = m.number(1, kWhat), kind = m.number(1, kWhat);
    if (version >= 3 && kind != 2)
      refuse_header(where_, "messages are shared in a heap, which is refused");
    if (version == 1) m.skip(6 + uint64_t(c_.length_bytes_), kWhat);
    return c_.check_header(where_, address(m, kWhat), depth_ + 1);
  }

  void attribute(Cursor& m) const {
    constexpr const char* kWhat = "an attribute does not fit its message";
    const uint64_t version = m.number(1, kWhat), flags = m.number(1, kWhat);
    const uint64_t name_size = m.number(2, kWhat), type_size = m.number(2, kWhat),
                   space_size = m.number(2, kWhat);
    const bool old = version == 1;
    if (version >= 3) m.skip(1, kWhat);
    const auto name = m.take(padded(name_size, old), kWhat);
    if (std::find(name.begin(), name.begin() + ptrdiff_t(name_size), '\0') ==
        name.begin() + ptrdiff_t(name_size))
      refuse_header(where_, kWhat);
    Cursor type(where_, m.take(padded(type_size, old), kWhat));
    Cursor space(where_, m.take(padded(space_size, old), kWhat));
    if (!old && flags & 2)
      refuse_header(where_, "an attribute's dataspace is shared, which is refused");
    const std::optional<uint64_t> item = !old && flags & 1 ? shared(type) : check_datatype(type);
    if (!item) refuse_header(where_, "an attribute's datatype is missing");
    m.skip(product(where_, *item, check_dataspace(space, c_.length_bytes_)), kWhat);
  }

  // Information on links or attributes, with a counter of `counter` bytes.
  void index_info(Cursor& m, uint64_t counter, const char* what) const {
    m.skip(1, what);
    const uint64_t flags = m.number(1, what);
    m.skip((flags & 1 ? counter : 0) + uint64_t(c_.address_bytes_) * (flags & 2 ? 3 : 2), what);
  }

  void group_info(Cursor& m) const {
    constexpr const char* kWhat = "information on a group does not fit its message";
    m.skip(1, kWhat);
    const uint64_t flags = m.number(1, kWhat);
    m.skip((flags & 1 ? 4 : 0) + (flags & 2 ? 4 : 0), kWhat);
  }

  void link(Cursor& m) const {
    constexpr const char* kWhat = "a link does not fit its message";
    m.skip(1, kWhat);
    const uint64_t flags = m.number(1, kWhat);
    const uint64_t kind = flags & 8 ? m.number(1, kWhat) : 0;
    m.skip((flags & 4 ? 8 : 0) + (flags & 0x10 ? 1 : 0), kWhat);
    m.skip(m.number(1 << (flags & 3), kWhat), kWhat);
    m.skip(kind == 0 ? uint64_t(c_.address_bytes_) : m.number(2, kWhat), kWhat);
  }

  void external_files(Cursor& m) const {
    constexpr const char* kWhat = "a list of files does not fit its message";
    m.skip(6, kWhat);
    const uint64_t count = m.number(2, kWhat);
    m.skip(uint64_t(c_.address_bytes_) + 3 * count * uint64_t(c_.length_bytes_), kWhat);
  }

  void layout(Cursor& m) const {
    constexpr const char* kWhat = "a layout does not fit its message";
    constexpr uint64_t kCompact = 0, kContiguous = 1, kChunked = 2;
    const uint64_t version = m.number(1, kWhat);
    if (version < 3) {
      const uint64_t axes = m.number(1, kWhat), kind = m.number(1, kWhat);
      m.skip(5 + (kind == kCompact ? 0 : uint64_t(c_.address_bytes_)) + 4 * axes, kWhat);
      if (kind == kCompact) m.skip(m.number(4, kWhat), kWhat);
      return;
    }
    const uint64_t kind = m.number(1, kWhat);
    if (kind == kCompact) {
      m.skip(m.number(2, kWhat), kWhat);
    } else if (kind == kContiguous) {
      m.skip(uint64_t(c_.address_bytes_) + uint64_t(c_.length_bytes_), kWhat);
    } else if (kind == kChunked && version == 3) {
      m.skip(4 * m.number(1, kWhat) + uint64_t(c_.address_bytes_), kWhat);
    } else if (kind == kChunked) {
      chunks_v4(m);
    } else {
      m.skip(uint64_t(c_.address_bytes_) + 4, kWhat);  // virtual
    }
  }

  void chunks_v4(Cursor& m) const {
    constexpr const char* kWhat = "a layout does not fit its message";
    const uint64_t flags = m.number(1, kWhat), axes = m.number(1, kWhat),
                   width = m.number(1, kWhat);
    m.skip(axes * width, kWhat);
    // The parameters of an index of chunks: one chunk, implicit, fixed or extensible array, B-tree.
    const uint64_t index = m.number(1, kWhat);
    const uint64_t parameters = index == 1   ? (flags & 2 ? uint64_t(c_.length_bytes_) + 4 : 0)
                                : index == 3 ? 1
                                : index == 4 ? 5
                                : index == 5 ? 6
                                             : 0;
    m.skip(parameters + uint64_t(c_.address_bytes_), kWhat);
  }

  // A group whose members are in a B-tree and their names in a heap.
  void symbol_table(Cursor& m) {
    constexpr const char* kWhat = "a symbol table does not fit its message";
    const uint64_t tree = address(m, kWhat), heap = address(m, kWhat);
    const auto a = uint64_t(c_.address_bytes_), l = uint64_t(c_.length_bytes_);
    const std::vector<char> prefix = bytes(heap, 8 + 2 * l + a);
    if (std::memcmp(prefix.data(), "HEAP", 4) != 0) refuse_header(where_, "a heap is missing");
    Cursor p(where_, prefix);
    p.skip(8, kWhat);
    const uint64_t size = p.number(c_.length_bytes_, kWhat);
    uint64_t free_at = p.number(c_.length_bytes_, kWhat);
    if (size > kLargestPiece) refuse_header(where_, "a heap is too large");
    names_ = bytes(address(p, kWhat), size);
    const auto last = std::find(names_.rbegin(), names_.rend(), '\0');
    names_end_ = uint64_t(names_.rend() - last);
    // The free blocks: each starts with the offset of the next one, 1 at the end, and its size.
    for (uint64_t blocks = 0; free_at != 1; ++blocks) {
      if (free_at > size || size - free_at < 2 * l || blocks > size / (2 * l))
        refuse_header(where_, "a free block does not fit its heap");
      Cursor block(where_, std::span<const char>(names_).subspan(size_t(free_at)));
      const uint64_t room = block.left();
      free_at = block.number(c_.length_bytes_, kWhat);
      if (block.number(c_.length_bytes_, kWhat) > room)
        refuse_header(where_, "a free block does not fit its heap");
    }
    nodes_.clear();
    tree_node(tree, -1);
  }

  void tree_node(uint64_t at, int level) {
    constexpr const char* kWhat = "a tree of names is damaged";
    const auto a = uint64_t(c_.address_bytes_), l = uint64_t(c_.length_bytes_);
    const std::vector<char> head = bytes(at, 8 + 2 * a);
    if (!is_new(at) || std::memcmp(head.data(), "TREE", 4) != 0 || head[4] != 0)
      refuse_header(where_, kWhat);
    Cursor h(where_, head);
    h.skip(5, kWhat);
    const int node_level = int(h.number(1, kWhat));
    if (level >= 0 && node_level != level) refuse_header(where_, kWhat);
    const uint64_t entries = h.number(2, kWhat);
    const std::vector<char> content = bytes(at + 8 + 2 * a, entries * (a + l) + l);
    Cursor c(where_, content);
    for (uint64_t i = 0; i < entries; ++i) {
      name_at(c.number(c_.length_bytes_, kWhat));
      const uint64_t child = address(c, kWhat);
      node_level > 0 ? tree_node(child, node_level - 1) : symbols(child);
    }
    name_at(c.number(c_.length_bytes_, kWhat));
  }

  void symbols(uint64_t at) {
    constexpr const char* kWhat = "a node of names is damaged";
    const std::vector<char> head = bytes(at, 8);
    if (!is_new(at) || std::memcmp(head.data(), "SNOD", 4) != 0) refuse_header(where_, kWhat);
    Cursor h(where_, head);
    h.skip(6, kWhat);
    const uint64_t count = h.number(2, kWhat), entry = 2 * uint64_t(c_.address_bytes_) + 24;
    if (count > 2 * c_.leaf_) refuse_header(where_, kWhat);
    const std::vector<char> content = bytes(at + 8, count * entry);
    Cursor c(where_, content);
    for (uint64_t i = 0; i < count; ++i) {
      name_at(address(c, kWhat));
      c.skip(entry - uint64_t(c_.address_bytes_), kWhat);
    }
  }

  // Whether a node of the tree is seen for the first time: no two lead to one.
  bool is_new(uint64_t node) { return nodes_.size() < kMaxNodes && nodes_.insert(node).second; }

  void name_at(uint64_t offset) const {
    if (offset >= names_end_) refuse_header(where_, "a name does not fit its heap");
  }

  HeaderChecker& c_;
  const std::string& where_;
  const int depth_;
  std::vector<char> names_;
  uint64_t names_end_ = 0;  // after the last NUL
  std::set<uint64_t> nodes_;
  int order_bytes_ = 0;
  std::vector<Piece> pieces_;
  std::optional<uint64_t> item_;
};

HeaderChecker::HeaderChecker(const std::string& path, const StoredFile& file) : file_(file) {
  auto begins_at = [&](uint64_t at) {
    char start[8];
    if (file.size() < at + sizeof start) return false;
    file.read(path, at, sizeof start, start);
    return std::string_view(start, sizeof start) == kSignature;
  };
  if (!begins_at(0)) {
    // Some results of the library count addresses from the end of such a block, others do not.
    for (uint64_t at = 512; at < file.size(); at *= 2)
      check_format(!begins_at(at), path, kUserBlock);
    throw Error(path + ": cannot be opened as HDF5: it does not begin like an HDF5 file",
                ErrorKind::format);
  }
  constexpr const char* kWhat = "the superblock is cut";
  std::vector<char> bytes(std::min<uint64_t>(file.size(), 128));
  file.read(path, 0, bytes.size(), bytes.data());
  Cursor s(path, bytes);
  s.skip(kSignature.size(), kWhat);
  const uint64_t version = s.number(1, kWhat);
  if (version < 2) s.skip(4, kWhat);
  address_bytes_ = int(s.number(1, kWhat));
  length_bytes_ = int(s.number(1, kWhat));
  auto usual = [](int size) { return size == 2 || size == 4 || size == 8; };
  check_format(version <= 3 && usual(address_bytes_) && usual(length_bytes_), path,
               ": cannot be opened as HDF5: superblock of version ", version, " with addresses of ",
               address_bytes_, " and lengths of ", length_bytes_, " bytes");
  s.skip(1, kWhat);
  if (version < 2) {
    leaf_ = s.number(2, kWhat);
    s.skip(version == 0 ? 6 : 10, kWhat);  // sizes of other trees, flags
  }
  check_format(s.number(address_bytes_, kWhat) == 0, path, kUserBlock);
  const uint64_t extension = s.number(address_bytes_, kWhat);
  s.skip((version < 2 ? 3 : 1) * uint64_t(address_bytes_), kWhat);
  root_ = s.number(address_bytes_, kWhat);
  if (!BRINE_TRUST_HDF5 && version >= 2 && extension < file.size()) check_header(path, extension);
}

std::optional<uint64_t> HeaderChecker::check_header(const std::string& where, uint64_t address,
                                                    int depth) {
  const auto known = good_.find(address);
  if (known != good_.end()) return known->second;
  const std::optional<uint64_t> item = Walk(*this, where, depth).header(address);
  good_.emplace(address, item);
  return item;
}

}  // namespace brine::data::hdf5
