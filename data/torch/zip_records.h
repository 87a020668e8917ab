// The records of a zip archive as torch.save writes it: stored, not compressed, and mapped.
// Source: the public specification of the format, APPNOTE.TXT of PKWARE, sections 4.3 to 4.5.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "data/io/file_io.h"

namespace brine::data {

// The bytes of every record by name. Throws an Error that names the file and the reason: compressed
// or encrypted records, several disks, duplicate names, records that overlap or are outside the
// file, directories that disagree with the records. Checksums are not compared: torch.save can be
// told to leave them out.
std::map<std::string, std::string_view, std::less<>> zip_records(const Path& path,
                                                                 const MappedFile& file);

}  // namespace brine::data
