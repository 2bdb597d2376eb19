#include "runtime/kv/plan/kv_plan.h"

#include <algorithm>

namespace kvrun {
namespace {

uint64_t Sum(const std::vector<KvPart>& parts, bool KvPart::*counts) {
  uint64_t bytes = 0;
  for (const KvPart& part : parts) bytes += part.*counts ? part.bytes : 0;
  return bytes;
}

bool ChoosesLess(const KvLayerPlan& a, const KvLayerPlan& b) { return a.n_chosen < b.n_chosen; }

// The family's answer.
template <typename Answer>
auto Ask(const KvPlan& plan, const Answer& answer) {
  return std::visit(answer, plan.family);
}

}  // namespace

void KvPlan::SetCounts(uint32_t n_chosen, uint32_t n_cache_slots) {
  choice.n_chosen = n_chosen;
  slots.n_cache_slots = n_cache_slots;
  layers.assign(layers.size(), {n_chosen, n_cache_slots});
  has_layer_shares = false;
}

uint32_t KvPlan::least_chosen() const {
  return std::min_element(layers.begin(), layers.end(), ChoosesLess)->n_chosen;
}

uint32_t KvPlan::most_chosen() const {
  return std::max_element(layers.begin(), layers.end(), ChoosesLess)->n_chosen;
}

uint32_t KvPlan::n_own_slots(uint32_t layer) const {
  const uint32_t n = layers[layer].n_cache_slots;
  const bool have_slots = Ask(*this, [](const auto& own) { return own.exact_groups_have_slots(); });
  return have_slots ? n : n - std::min(slots.n_cache_slots, window.n_exact_chosen);
}

uint32_t KvPlan::n_stored_groups() const {
  return Ask(*this, [](const auto& own) { return own.lays_pages(); }) ? 2 * n_groups() : n_groups();
}

FamilyForm KvPlan::family_form() const {
  FamilyForm form;
  Ask(*this, [&form](const auto& own) { own.AddForm(&form); });
  return form;
}

uint32_t KvPlan::n_total() const {
  return std::max(choice.n_chosen, Ask(*this, [](const auto& own) { return own.n_total(); }));
}

CandidatePlan KvPlan::candidates() const {
  return Ask(*this, [](const auto& own) { return own.candidate_groups(); });
}

const ReadingPlan* KvPlan::reading() const {
  return Ask(*this, [](const auto& own) { return own.decided_by(); });
}

bool KvPlan::has_slot_biases() const {
  return slots.record.has_positions || n_statics() > 0 || choice.n_sampled > 0;
}

uint32_t KvPlan::told_tokens() const { return n_statics() > 0 ? 1 : record.group_tokens; }

uint32_t KvPlan::records_per_extent() const {
  return Ask(*this, [this](const auto& own) { return own.records_per_extent(*this); });
}

uint32_t KvPlan::n_record_ids() const {
  return records_per_extent() * Ask(*this, [this](const auto& own) { return own.n_extents(*this); });
}

uint32_t KvPlan::n_choosable() const {
  return Ask(*this, [this](const auto& own) { return own.n_choosable(*this); });
}

uint32_t KvPlan::EntriesOfSlots(uint32_t n_slots) const {
  return Ask(*this, [this, n_slots](const auto& own) { return own.EntriesOfSlots(*this, n_slots); });
}

uint32_t KvPlan::selected_entries() const {
  return Ask(*this, [this](const auto& own) { return own.selected_entries(*this); });
}

uint32_t KvPlan::sink_entries() const {
  return Ask(*this, [this](const auto& own) { return own.sink_entries(*this); });
}

StaticShare KvPlan::static_share() const {
  return Ask(*this, [](const auto& own) { return own.static_share(); });
}

uint32_t KvPlan::n_statics() const {
  return Ask(*this, [](const auto& own) { return own.n_statics(); });
}

uint32_t KvPlan::most_statics() const {
  return Ask(*this, [](const auto& own) { return own.most_statics(); });
}

LaterPrompts KvPlan::later_prompts() const {
  return Ask(*this, [](const auto& own) { return own.prompts_after(); });
}

uint32_t KvPlan::static_steps() const {
  return Ask(*this, [](const auto& own) { return own.static_steps(); });
}

uint32_t KvPlan::observed_rows() const {
  return Ask(*this, [](const auto& own) { return own.most_observed(); });
}

bool KvPlan::samples_rows() const {
  return Ask(*this, [](const auto& own) { return own.observes_samples(); });
}

bool KvPlan::needs_queries() const {
  return Ask(*this, [](const auto& own) { return own.needs_queries(); });
}

bool KvPlan::has_int4() const {
  const KvRecordShape low = Ask(*this, [](const auto& own) { return own.lowered_record(); });
  const KvType types[] = {record.k_type, record.v_type, low.k_type, low.v_type};
  return std::find(std::begin(types), std::end(types), KvType::kInt4) != std::end(types);
}

bool KvPlan::has_rows_file() const {
  return Ask(*this, [](const auto& own) { return own.has_rows_file(); });
}

uint64_t KvPlan::prefill_bytes() const { return Sum(parts, &KvPart::in_prefill); }

uint64_t KvPlan::decode_bytes() const { return Sum(parts, &KvPart::in_decode); }

std::vector<std::string> KvNotes::All() const {
  std::vector<std::string> all = for_people;
  all.insert(all.end(), for_experts.begin(), for_experts.end());
  return all;
}

}  // namespace kvrun
