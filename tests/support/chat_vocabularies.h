// Vocabularies for tests of chats: the marks of every form as tokens, in files that differ in what these are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/model/tokenizer.h"

namespace kvrun::testing {

enum class MarkType { kControl, kUserDefined };

// Every mark of the known forms.
const std::vector<std::string>& ChatMarks();

// Bytes, some words, marks, and user-defined tokens of white space. In both the vocabulary's own rules
// (merges, pieces with scores) would build marks from their letters, where they are let.
std::unique_ptr<Tokenizer> BpeWithMarks(MarkType type, const std::vector<std::string>& marks = ChatMarks());
std::unique_ptr<Tokenizer> SpmWithMarks(MarkType type);

}  // namespace kvrun::testing
