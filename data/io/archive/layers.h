// Decoding of compression and archives in a stream of bytes: gzip by zlib, the others by
// libarchive.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "data/io/byte_source.h"

namespace brine::data {

inline constexpr size_t kLayerHead = 512;  // number of bytes by which a layer is recognised

enum class Layer { kNone, kGzip, kXz, kTar };

// The layer that starts with these bytes, the first kLayerHead of a file or all of a shorter one. A
// tar header is recognised by its magic or by its checksum.
Layer layer_of(std::string_view head);
// Whether it is an archive or compressed, but none of these: zip, 7z, zstd.
bool is_other_archive(std::string_view head);

// Each accepts one or more consecutive compressed streams; damage and a missing end are errors.
std::unique_ptr<ByteSource> gunzip(std::unique_ptr<ByteSource> inner);
// The decoder needs at most 1 GiB of memory.
std::unique_ptr<ByteSource> unxz(std::unique_ptr<ByteSource> inner);

// Calls visit for every regular file of a tar archive, in order. The source is named
// "ARCHIVE: MEMBER" and exists until visit returns; its unread rest is skipped, as are directories,
// links and devices. Sparse files, parts of other volumes and members of unknown type are errors.
void for_each_member(ByteSource& archive,
                     const std::function<void(std::unique_ptr<ByteSource>)>& visit);

}  // namespace brine::data
