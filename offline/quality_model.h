// What a candidate costs in quality, guessed from those that were measured: log KL as a sum over what a
// candidate is made of, by Bayesian linear regression. Pure. It only orders what to measure next: no
// candidate is chosen by a guess.
#pragma once

#include <vector>

#include "offline/candidate.h"

namespace kvrun::offline {

struct GuessedKl {
  double log_mean = 0.0;
  double log_deviation = 0.0;
};

class QualityModel {
 public:
  QualityModel();

  void Add(const SizedCandidate& candidate, double kl);
  GuessedKl Guess(const SizedCandidate& candidate) const;

 private:
  void Solve();

  // Of the weights: precision matrix, precision times mean, and what follows from both.
  std::vector<double> precision_;
  std::vector<double> shift_;
  std::vector<double> mean_;
  std::vector<double> cholesky_;
};

}  // namespace kvrun::offline
