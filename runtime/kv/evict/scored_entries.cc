#include "runtime/kv/evict/scored_entries.h"

#include <algorithm>
#include <numeric>

namespace kvrun {

void ScoredEntries::Reserve(size_t n) {
  for (std::vector<uint32_t>* list : {&positions_, &rows_, &seen_, &gaps_, &order_}) {
    *list = {};
    list->reserve(n);
  }
  for (std::vector<float>* list : {&mass_, &squares_, &scores_}) {
    *list = {};
    list->reserve(n);
  }
}

void ScoredEntries::Clear(size_t n_more, uint32_t n_moments) {
  for (std::vector<uint32_t>* list : {&positions_, &rows_, &seen_, &gaps_}) list->clear();
  for (std::vector<float>* list : {&mass_, &squares_}) list->clear();
  positions_.reserve(n_more);
  mass_.reserve(n_more);
  rows_.reserve(n_more);
  if (n_moments > 1) squares_.reserve(n_more);
}

void ScoredEntries::Add(uint32_t position, std::span<const float> masses, uint32_t n_rows) {
  positions_.push_back(position);
  mass_.push_back(masses[0]);
  if (masses.size() > 1) squares_.push_back(masses[1]);
  rows_.push_back(n_rows);
}

void ScoredEntries::AddRecurrence(const Recurrence& recurrence) {
  seen_.push_back(recurrence.seen_at);
  gaps_.push_back(recurrence.longest_gap);
}

void ScoredEntries::Score(const KeepRule& rule, uint32_t now) {
  scores_.resize(positions_.size());
  rule.score({positions_, mass_, squares_, rows_, seen_, gaps_, now}, scores_);
}

size_t ScoredEntries::Worst() const {
  size_t worst = 0;
  for (size_t i = 1; i < scores_.size(); ++i) {
    if (scores_[i] < scores_[worst] || (scores_[i] == scores_[worst] && positions_[i] < positions_[worst])) {
      worst = i;
    }
  }
  return worst;
}

std::span<const uint32_t> ScoredEntries::Best(size_t n) {
  order_.resize(scores_.size());
  std::iota(order_.begin(), order_.end(), 0U);
  const auto is_better = [this](uint32_t a, uint32_t b) {
    return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : positions_[a] > positions_[b];
  };
  if (n == order_.size()) {
    std::sort(order_.begin(), order_.end(), is_better);
  } else {
    std::partial_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(n), order_.end(),
                      is_better);
  }
  order_.resize(n);
  return order_;
}

}  // namespace kvrun
