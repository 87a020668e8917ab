// The readers used by data/tasks/task.cpp. Internal to data/.
#pragma once

#include "data/tasks/task.h"

namespace brine::data {

// A TSV file of GLUE.
TaskExamples read_glue(const Task& task, const Path& dir, const TaskSplit& split);

// Expressions of ListOps: a TSV file with the columns Source and Target, as Long Range Arena (Tay
// et al., ICLR 2021) publishes them and `brine lra listops` writes them. Round brackets are left
// out; a row whose Target is not the value of its expression is an error.
TaskExamples read_listops(const Task& task, const Path& dir, const TaskSplit& split);

}  // namespace brine::data
