// Models of every architecture with another runtime's logits (../shared/reference/arch).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/support/engine_fixture.h"
#include "tests/support/reference_files.h"

namespace kvrun::testing {

inline constexpr uint32_t kRoom = 512;  // context: long factors are chosen by it, as the reference did
inline constexpr uint32_t kFirstPart = 130;

struct ArchitectureCase {
  std::string model;
  std::string ids;
  std::string logits;
};

inline std::vector<ArchitectureCase> ArchitectureCases() {
  std::vector<ArchitectureCase> cases;
  const auto folder = SharedPath("reference/arch");
  if (!folder) return cases;
  for (const auto& entry : std::filesystem::directory_iterator(*folder)) {
    if (entry.path().extension() != ".gguf") continue;
    const std::string stem = entry.path().stem().string();
    const std::string base = *folder + "/" + stem.substr(0, stem.rfind('-'));
    cases.push_back({entry.path().string(), base + ".ids", *folder + "/" + stem + ".logits"});
  }
  std::sort(cases.begin(), cases.end(),
            [](const ArchitectureCase& a, const ArchitectureCase& b) { return a.model < b.model; });
  return cases;
}

// Of them, those with layers that cannot go back.
inline std::vector<ArchitectureCase> ArchitecturesWithStates() {
  std::vector<ArchitectureCase> cases;
  for (const ArchitectureCase& one : ArchitectureCases()) {
    for (const char* name : {"/gemma", "/lfm", "/qwen35"}) {
      if (one.model.find(name) != std::string::npos) cases.push_back(one);
    }
  }
  return cases;
}

class ArchitectureFixture : public ::testing::TestWithParam<ArchitectureCase> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadModelOrDie(GetParam().model);
    ids_ = ReadIds(GetParam().ids);
    reference_ = ReadFloats(GetParam().logits);
    n_vocab_ = loaded_.model->config.n_vocab;
  }

  std::unique_ptr<ForwardPass> NewPass(KvType type = KvType::kF32, uint32_t n_sequences = 1) const {
    return loaded_.NewPass({.n_sequences = n_sequences, .n_ctx = kRoom, .kv_type = type});
  }
  size_t n_reference() const { return reference_.size() / n_vocab_; }

  // Logits of the rows of one span; all, or the last alone.
  std::vector<float> RunSpan(ForwardPass& pass, SpanKind kind, size_t begin, size_t end,
                             uint32_t sequence = 0, size_t n_outputs = 1) const {
    std::vector<float> logits;
    for (size_t at = begin; at < end;) {
      const size_t n = std::min<size_t>(end - at, pass.max_rows());
      ForwardStep step;
      for (size_t i = at; i < at + n; ++i) step.Add(kind, {ids_[i], static_cast<uint32_t>(i), sequence});
      std::vector<uint32_t> outputs;
      for (size_t i = at; i < at + n; ++i) {
        if (i + n_outputs >= end) outputs.push_back(static_cast<uint32_t>(i - at));
      }
      std::vector<float> some(outputs.size() * n_vocab_);
      const size_t most = pass.max_output_rows();
      const size_t n_first = std::min(outputs.size(), most);
      Status status =
          pass.Run(step, std::span(outputs).first(n_first), std::span(some).first(n_first * n_vocab_));
      for (size_t done = n_first; status.ok() && done < outputs.size(); done += most) {
        const size_t n_more = std::min(outputs.size() - done, most);
        status = pass.MoreLogits(std::span(outputs).subspan(done, n_more),
                                 std::span(some).subspan(done * n_vocab_, n_more * n_vocab_));
      }
      if (!status.ok()) ADD_FAILURE() << status.message();
      logits.insert(logits.end(), some.begin(), some.end());
      at += n;
    }
    return logits;
  }
  std::vector<float> AtOnce(ForwardPass& pass, size_t n_outputs) const {
    return RunSpan(pass, SpanKind::kPrompt, 0, ids_.size(), 0, n_outputs);
  }
  double Difference(std::span<const float> expected, std::span<const float> found) const {
    return CompareLogits(expected, std::vector<float>(found.begin(), found.end()), n_vocab_).max_absolute;
  }

  LoadedModel loaded_;
  std::vector<int> ids_;
  std::vector<float> reference_;
  size_t n_vocab_ = 0;
};

inline std::string ArchitectureName(const ::testing::TestParamInfo<ArchitectureCase>& param) {
  std::string name = std::filesystem::path(param.param.model).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

}  // namespace kvrun::testing
