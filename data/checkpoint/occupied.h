// Directories that already are something: a model, a run, a dump, token shards, a tokenizer.
#pragma once

#include <initializer_list>

#include "data/io/file_io.h"

namespace brine::data {

enum class Holding : uint8_t { model, shards, run, tokenizer };

// Throws when the directory `out`, which need not exist, has a file by which a program knows one of
// these, unless its kind is in `allowed`: a program that reads the directory later would find that
// file and not what is written now. A run has a tokenizer.
void refuse_occupied(const Path& out, std::initializer_list<Holding> allowed = {});

}  // namespace brine::data
