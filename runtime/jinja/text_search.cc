#include "runtime/jinja/text_search.h"

#include <algorithm>
#include <string>

namespace kvrun::jinja {
namespace {

constexpr size_t kShortText = 32;

}  // namespace

TextSearch::TextSearch(std::string_view wanted) : wanted_(wanted) {
  if (wanted.size() <= kShortText) return;
  beginnings_.resize(wanted.size() + 1);
  size_t matched = 0;
  for (size_t i = 1; i < wanted.size(); ++i) {
    while (matched > 0 && wanted[i] != wanted[matched]) matched = beginnings_[matched];
    if (wanted[i] == wanted[matched]) ++matched;
    beginnings_[i + 1] = matched;
  }
}

size_t TextSearch::Find(std::string_view text, size_t begin) const {
  if (beginnings_.empty()) return text.find(wanted_, begin);
  size_t matched = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    while (matched > 0 && text[i] != wanted_[matched]) matched = beginnings_[matched];
    if (text[i] == wanted_[matched]) ++matched;
    if (matched == wanted_.size()) return i + 1 - matched;
  }
  return std::string_view::npos;
}

Result<std::vector<size_t>> FindAll(Run& run, std::string_view text, std::string_view wanted, int64_t most) {
  KVRUN_RETURN_IF_ERROR(run.Step(1 + (text.size() + wanted.size()) / 32));
  std::vector<size_t> places;
  const TextSearch search(wanted);
  for (size_t at = search.Find(text, 0); at != std::string_view::npos && most != 0; --most) {
    KVRUN_RETURN_IF_ERROR(run.Take(sizeof(size_t)));
    places.push_back(at);
    at = search.Find(text, at + wanted.size());
  }
  return places;
}

Result<std::vector<size_t>> FindAllFromRight(Run& run, std::string_view text, std::string_view wanted,
                                             int64_t most) {
  const std::string text_back(text.rbegin(), text.rend());
  const std::string wanted_back(wanted.rbegin(), wanted.rend());
  KVRUN_RETURN_IF_ERROR(run.Take(text.size()));
  KVRUN_ASSIGN_OR_RETURN(std::vector<size_t> places, FindAll(run, text_back, wanted_back, most));
  for (size_t& place : places) place = text.size() - place - wanted.size();
  std::reverse(places.begin(), places.end());
  return places;
}

Result<bool> HasText(Run& run, std::string_view text, std::string_view wanted) {
  KVRUN_RETURN_IF_ERROR(run.Step(1 + (text.size() + wanted.size()) / 32));
  return TextSearch(wanted).Find(text, 0) != std::string_view::npos;
}

}  // namespace kvrun::jinja
