// The readers used by data/tasks/task.cpp, and ListOps' tokenizer. Internal to data/.
#pragma once

#include "data/tasks/task.h"

namespace brine::data {

// Rows of a TSV file by the names of its columns, or of JSON lines by those of its keys: of GLUE,
// and of the user. The latter's columns may be numbers, from 1, in a file without a header line;
// their texts are not empty, and without labels in the task they are those of the file, sorted.
TaskExamples read_rows(const Task& task, const Path& dir, const TaskSplit& split);

// The glosses in the data files of WordNet (wndb(5)), each labelled by its lexicographer file
// (lexnames(5)). One in 20 glosses is in dev and one in test, selected by a hash of the definition,
// so that equal definitions are never on both sides.
TaskExamples read_wordnet(const Task& task, const Path& dir, const TaskSplit& split);
// The 45 names of lexnames(5), by number.
std::vector<std::string> wordnet_files();

// The books of a text file, or of all *.txt in a directory in the order of their names, each ended
// by a line "<|endoftext|>" or the end of its file. A heading of title and author is not part of a
// passage. Each book is cut at line ends into 20 stretches of about equal length; number 7 is in
// dev, number 14 in test.
TaskExamples read_books(const Task& task, const Path& dir, const TaskSplit& split);

// Expressions of ListOps: a TSV file with the columns Source and Target, as Long Range Arena (Tay
// et al., ICLR 2021) publishes them and `brine lra listops` writes them. Round brackets are left
// out; a row whose Target is not the value of its expression is an error.
TaskExamples read_listops(const Task& task, const Path& dir, const TaskSplit& split);
// The tokenizer of models of ListOps that start without weights, with a token for each word: [PAD]
// [UNK] [CLS] [SEP] [MASK], then the 15 of listops_tokens().
std::unique_ptr<Tokenizer> listops_tokenizer();

}  // namespace brine::data
