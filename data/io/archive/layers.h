// Decoding of compression and archives in a stream of bytes: gzip by zlib, the others by
// libarchive.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "data/io/byte_source.h"

namespace brine::data {

inline constexpr size_t kLayerHead = 512;  // number of bytes by which a layer is recognised

enum class Layer { kNone, kGzip, kXz, kZstd, kTar, kZip, kSevenZip };

// The layer that starts with these bytes, the first kLayerHead of a file or all of a shorter one. A
// tar header is recognised by its magic or by its checksum.
Layer layer_of(std::string_view head);

// Each accepts one or more consecutive compressed streams; damage and a missing end are errors.
std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> inner);
// Layer::kXz or kZstd. The decoder needs at most 1 GiB of memory.
std::unique_ptr<ByteSource> decompress(std::unique_ptr<ByteSource> inner, Layer layer);

// Calls visit for every regular file of an archive (Layer::kTar, kZip or kSevenZip), in order. The
// source is named "ARCHIVE: MEMBER" and lives until visit returns; its unread rest is skipped, as
// are directories, links and devices. Encrypted files, sparse files, parts of other volumes and
// members of unknown type are errors. A 7z archive must be a regular file itself.
void for_each_member(ByteSource& archive, Layer layer,
                     const std::function<void(std::unique_ptr<ByteSource>)>& visit);

}  // namespace brine::data
