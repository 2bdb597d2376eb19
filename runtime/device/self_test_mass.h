// Self-tests of the operations that tell how much attention entries receive: each against a small computation
// here, on any device.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/device/self_test_slots.h"

namespace kvrun {

// The rows of a prompt's end, and its KV in two tiles.
struct RowMassCase {
  static constexpr uint32_t kKvHeads = 2;
  static constexpr uint32_t kRows = 5;

  KvType type = KvType::kF16;
  uint32_t head_dim = 64;
  uint32_t group = 1;  // query heads of a KV head
  MassForm form = {};

  uint32_t n_heads() const { return group * kKvHeads; }
};

// On success a line of detail, else what is wrong. Attention over slots with mass: the output, and the mass.
Result<std::string> CheckSlotMass(Device& device, const SlotCase& c, const MassForm& form);
// SumWeights of both tiles, and AttentionMass.
Result<std::string> CheckRowMass(Device& device, const RowMassCase& c);

// Every value of a form at least once.
inline constexpr std::array kSelfTestMassForms = {
    MassForm{2, MassForm::Heads::kLargest, MassForm::Rows::kLargest},
    MassForm{2, MassForm::Heads::kMean, MassForm::Rows::kAdd},
    MassForm{1, MassForm::Heads::kMean, MassForm::Rows::kReplace}};
inline std::array<RowMassCase, 2> SelfTestRowMassCases(KvType type) {
  return {RowMassCase{type, 64, 3, {4, MassForm::Heads::kMean, MassForm::Rows::kAdd}},
          RowMassCase{type, 66, 2, {1, MassForm::Heads::kLargest, MassForm::Rows::kLargest}}};
}
// "mean, added": for names of tests.
std::string MassFormText(const MassForm& form);

}  // namespace kvrun
