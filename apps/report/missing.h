// What a report lacks, with the commands that make it.
#pragma once

#include "apps/report/report.h"

namespace brine::report {

// Adds to report.missing. A command has the paths, the text and the lengths that were given, and is
// one that works for the model: a sweep of k needs a mask, one that keeps every key is converted
// first. Words in capitals stand for what only the reader knows. Where no command can make it, the
// command is empty.
void note_missing(Report& report, const Request& request);

}  // namespace brine::report
