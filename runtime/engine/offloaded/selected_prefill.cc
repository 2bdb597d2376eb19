#include "runtime/engine/offloaded/selected_prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/engine/offloaded/layer_score.h"
#include "runtime/kv/memory/host_buffer.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

constexpr uint32_t kMostSelectingRows = 256;  // of a prompt that selects: a chunk
constexpr uint32_t kMostChoosingRows = 16;    // scores of more take longer than they tell
// Groups that are selected in place of each that a token selects.
constexpr double kSelectedOfToken = 2.0;
// Shorter reading is worth it: all of the text is the better answer.
constexpr double kShortMs = 100.0;
constexpr double kClearlyLess = 0.75;

// What is attended to whatever is chosen: groups that are pinned, or kept exactly.
uint32_t FrontGroups(const KvPlan& plan) {
  return std::max(plan.choice.n_pinned, plan.window.n_exact_groups);
}

size_t MostOfChoice(const KvPlan& plan, uint32_t layer) {
  return static_cast<size_t>(kSelectedOfToken * plan.layers[layer].n_chosen);
}

// Of any layer.
size_t MostGroups(const KvPlan& plan) {
  size_t most = 0;
  for (uint32_t layer = 0; layer < plan.layers.size(); ++layer)
    most = std::max(most, MostOfChoice(plan, layer));
  return most + FrontGroups(plan);
}

// What is read is decoded and attended to, which takes about as long as to read it in sequence.
bool TakesClearlyLess(const KvPlan& plan, size_t n_selected, size_t n_groups) {
  if (!plan.flash_times) return false;
  const FlashTimes& times = *plan.flash_times;
  const uint64_t bytes = RoundUp<uint64_t>(plan.record.size_bytes(), 4096);
  const double in_sequence_us = times.SequenceMicroseconds(bytes, plan.n_seal_helpers);
  const double apart_us = times.ReadMicroseconds(bytes, plan.n_seal_helpers);
  const auto layers_ms = [&](size_t n, double us) {
    return static_cast<double>(n * plan.layers.size()) * us / 1000.0;
  };
  const double exact_ms = layers_ms(n_groups, 2.0 * in_sequence_us);
  return exact_ms > kShortMs && layers_ms(n_selected, apart_us + in_sequence_us) < kClearlyLess * exact_ms;
}

}  // namespace

bool SelectsEarlier(const PromptRecords& cache, const KvRange& prompt) {
  const KvPlan& plan = cache.plan();
  const LaterPrompts way = plan.later_prompts();
  if (way == LaterPrompts::kExact || prompt.end - prompt.begin > kMostSelectingRows) return false;
  if (cache.index() == nullptr || !cache.index()->is_ready()) return false;
  const uint32_t n_groups = cache.FirstWindowGroup(prompt.begin);
  return way == LaterPrompts::kSelected ? n_groups > FrontGroups(plan)
                                        : TakesClearlyLess(plan, MostGroups(plan), n_groups);
}

SelectedPrefill::SelectedPrefill(Device& device, StepCommands& commands, PromptRecords& cache,
                                 const LayerStates& states, const KvRange& prompt)
    : device_(device),
      commands_(commands),
      cache_(cache),
      states_(states),
      prompt_(prompt),
      n_choosing_(std::min(prompt.end - prompt.begin, kMostChoosingRows)),
      tiling_(KvTiling::Of(cache.plan(), commands.config())) {
  tiling_.later = {};
}

Result<std::unique_ptr<SelectedPrefill>> SelectedPrefill::Create(Device& device, StepCommands& commands,
                                                                 PromptRecords& cache,
                                                                 const LayerStates& states,
                                                                 const KvRange& prompt) {
  std::unique_ptr<SelectedPrefill> prefill(new SelectedPrefill(device, commands, cache, states, prompt));
  KVRUN_ASSIGN_OR_RETURN(prefill->inputs_, StepInputs::Create(commands.config(), device, "activations"));
  Sizes sizes;
  while (!prefill->SettleTile(&sizes)) {
    if (prefill->n_choosing_ == 1) return std::unique_ptr<SelectedPrefill>();
    prefill->n_choosing_ /= 2;
  }
  KVRUN_RETURN_IF_ERROR(prefill->CreateBuffers(sizes));
  return prefill;
}

SelectedPrefill::Sizes SelectedPrefill::BufferSizes() const {
  const ModelConfig& config = commands_.config();
  Sizes sizes;
  AttentionArgs attention = commands_.Attention(config.kv_layers[0], n_rows(), /*of_prompt=*/true);
  attention.kv_shape = tiling_.first;
  sizes.attention = device_.AttendScratchBytes(attention);
  for (uint32_t layer = 0; layer < config.n_kv_layers(); ++layer) {
    const ScoreArgs score = Score(layer);
    sizes.scores = std::max(sizes.scores, cache_.index()->ScoreScratchBytes(device_, score));
    sizes.chosen =
        std::max(sizes.chosen, uint64_t{n_choosing_} * score.choice_list().words() * sizeof(uint32_t));
  }
  return sizes;
}

// With what attention and scores take, within what the plan has for the first tile of any prompt, if it is to
// keep to a budget.
bool SelectedPrefill::SettleTile(Sizes* sizes) {
  const KvPlan& plan = cache_.plan();
  const KvTiling of_plan = KvTiling::Of(plan, commands_.config());
  const uint32_t n_other = CeilDiv(prompt_.end - window_begin(), plan.record.group_tokens);
  most_groups_ =
      static_cast<uint32_t>(std::min<size_t>(MostGroups(plan), cache_.FirstWindowGroup(prompt_.begin)));
  tiling_.first.n_ctx = (most_groups_ + n_other) * plan.record.group_tokens;
  *sizes = BufferSizes();
  const uint64_t bytes = tiling_.first.size_bytes() + sizes->attention + sizes->scores + sizes->chosen;
  const uint64_t room = plan.budget.bytes == UINT64_MAX ? UINT64_MAX : of_plan.first.size_bytes();
  if (bytes > room) return false;
  // What has no room is read when it is its turn.
  const uint64_t group_bytes = plan.heads_per_sequence() * plan.record.size_bytes();
  sizes->records = std::min<uint64_t>(most_groups_, (room - bytes) / group_bytes) * group_bytes;
  return true;
}

Status SelectedPrefill::CreateBuffers(const Sizes& sizes) {
  const auto make = [this](std::unique_ptr<Buffer>* buffer, uint64_t size_bytes, BufferUse use,
                           const char* part) -> Status {
    KVRUN_ASSIGN_OR_RETURN(*buffer, device_.CreateBuffer(size_bytes, use, part));
    return Status::Ok();
  };
  const auto make_of_rows = [&](std::unique_ptr<Buffer>* buffer, uint32_t n_columns) {
    return make(buffer, uint64_t{n_choosing_} * n_columns * sizeof(float), BufferUse::kDevice, "activations");
  };
  KVRUN_RETURN_IF_ERROR(make_of_rows(&hidden_, commands_.config().n_embd));
  KVRUN_RETURN_IF_ERROR(make_of_rows(&normed_, commands_.config().n_embd));
  KVRUN_RETURN_IF_ERROR(make_of_rows(&query_, commands_.config().q_dim()));
  KVRUN_RETURN_IF_ERROR(make(&tile_, tiling_.first.size_bytes(), BufferUse::kDevice, "kv"));
  if (sizes.records > 0) KVRUN_RETURN_IF_ERROR(make(&records_, sizes.records, BufferUse::kShared, "kv"));
  KVRUN_RETURN_IF_ERROR(make(&scratch_, sizes.attention, BufferUse::kDevice, "kv"));
  KVRUN_RETURN_IF_ERROR(make(&score_scratch_, sizes.scores, BufferUse::kDevice, "kv"));
  return make(&chosen_, sizes.chosen, BufferUse::kShared, "kv");
}

StepPlace SelectedPrefill::choosing_place() const {
  StepPlace place = commands_.own();
  place.step = inputs_.step.get();
  place.angles = inputs_.angles.get();
  place.windowed_angles = inputs_.windowed_angles.get();
  return place;
}

ScoreArgs SelectedPrefill::Score(uint32_t layer) const {
  const KvPlan& plan = cache_.plan();
  ScoreArgs args =
      LayerScore(commands_, plan, *cache_.index(), layer, n_choosing_, ScoredRule(plan), choosing_place());
  args.query = query_.get();
  args.scratch = score_scratch_.get();
  args.chosen = chosen_.get();
  return args;
}

// Angles are those of the rows; what can be chosen is what lies before the prompt's window.
void SelectedPrefill::WriteChoosingRows(std::span<const StepRow> rows) {
  std::vector<StepRow> choosing;
  std::vector<uint32_t> outputs;
  for (uint32_t i = 0; i < n_choosing_; ++i) {
    outputs.push_back((i + 1) * n_rows() / n_choosing_ - 1);
    choosing.push_back(rows[outputs.back()]);
  }
  commands_.WriteRows(choosing_place(), choosing, 0);
  commands_.WriteOutputs(choosing_place(), outputs);
  auto* step = reinterpret_cast<StepParams*>(inputs_.step->host().data());
  for (uint32_t i = 0; i < n_choosing_; ++i) step->tokens[i].position = prompt_.begin - 1;
  step->most_chosen = 0;
}

Status SelectedPrefill::Run(std::span<const StepRow> rows, const StepProgress& progress, PromptStore& store) {
  KVRUN_RETURN_IF_ERROR(cache_.PutStaticsBack(prompt_.sequence));
  WriteChoosingRows(rows);
  commands_.WriteRows(rows);
  const uint32_t end[] = {prompt_.end};
  if (!states_.are_none()) savings_ = states_.SavingsOf(prompt_.sequence, end);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(commands_.Embed(*list, n_rows(), commands_.own()));
  KVRUN_RETURN_IF_ERROR(RecordChoice(*list, 0));
  KVRUN_RETURN_IF_ERROR(Execute(*list));
  const Status run = RunLayers(rows, progress, store);
  const Status read = reading_.valid() ? reading_.get() : Status::Ok();  // the store is the caller's again
  KVRUN_RETURN_IF_ERROR(run);
  return read;
}

Status SelectedPrefill::RunLayers(std::span<const StepRow> rows, const StepProgress& progress,
                                  PromptStore& store) {
  const ModelConfig& config = commands_.config();
  if (looks_ahead()) {
    if (KeepsGrowingKv(0)) KVRUN_RETURN_IF_ERROR(BeginReading(0, store));
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(RecordChoice(*list, 1));
    KVRUN_RETURN_IF_ERROR(Execute(*list));
  }
  for (uint32_t model_layer = 0; model_layer < config.n_layers; ++model_layer) {
    if (progress && progress(uint64_t{model_layer} * n_rows() / config.n_layers, n_rows())) {
      return {StatusCode::kCancelled,
              fmt::format("cancelled in layer {} of a prompt of {} tokens", model_layer, n_rows())};
    }
    KVRUN_RETURN_IF_ERROR(KeepsGrowingKv(model_layer) ? RunKvLayer(model_layer, rows, store)
                                                      : RunStateLayer(model_layer, rows, store));
  }
  return Status::Ok();
}

uint32_t SelectedPrefill::KvLayerOf(uint32_t model_layer) const {
  const std::vector<uint32_t>& kv_layers = commands_.config().kv_layers;
  return static_cast<uint32_t>(std::lower_bound(kv_layers.begin(), kv_layers.end(), model_layer) -
                               kv_layers.begin());
}

Status SelectedPrefill::RecordChoice(CommandList& list, uint32_t model_layer) {
  if (!KeepsGrowingKv(model_layer)) return Status::Ok();
  const ModelConfig& config = commands_.config();
  const uint32_t n = n_choosing_;
  const uint32_t layer = KvLayerOf(model_layer);
  KVRUN_RETURN_IF_ERROR(list.GatherRows(*commands_.hidden(), *inputs_.step, n, config.n_embd, hidden_.get()));
  KVRUN_RETURN_IF_ERROR(commands_.Query(list, model_layer, n, {hidden_.get(), normed_.get(), query_.get()}));
  KVRUN_RETURN_IF_ERROR(list.ScoreAndSelect(Score(layer)));
  return cache_.index()->RecordSearch(list, layer, n, score_scratch_.get());
}

Status SelectedPrefill::Execute(CommandList& list) {
  KVRUN_RETURN_IF_ERROR(list.Finish());
  return device_.Execute(list);
}

Result<std::vector<uint32_t>> SelectedPrefill::BestChosen(uint32_t layer, size_t most) const {
  const ChoiceList shape = Score(layer).choice_list();
  const uint32_t n_groups = cache_.FirstWindowGroup(prompt_.begin);
  std::vector<float> sums(n_groups);
  std::vector<bool> is_chosen(n_groups);
  std::vector<uint32_t> chosen;
  for (uint32_t row = 0; row < n_choosing_; ++row) {
    const auto list = Words(*chosen_).subspan(size_t{row} * shape.words(), shape.words());
    const uint32_t n = std::min(list[0], shape.n_chosen);
    if (n != list[0] || (n > 0 && list[n] >= n_groups)) {
      return Status(StatusCode::kDevice,
                    fmt::format("layer {}: the device chose {} groups up to number {}, and there are {}; run "
                                "kvrun doctor",
                                layer, list[0], n > 0 ? list[n] : 0, n_groups));
    }
    const auto* scores = reinterpret_cast<const float*>(list.data() + shape.scores_begin());
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t group = list[1 + i];
      if (!is_chosen[group]) chosen.push_back(group);
      is_chosen[group] = true;
      sums[group] += std::isfinite(scores[i]) ? scores[i] : 0.0F;  // what is no number would have no order
    }
  }
  if (chosen.size() <= most) return chosen;
  std::nth_element(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(most), chosen.end(),
                   [&](uint32_t a, uint32_t b) { return sums[a] != sums[b] ? sums[a] > sums[b] : a < b; });
  chosen.resize(most);
  return chosen;
}

Result<std::vector<uint32_t>> SelectedPrefill::Selected(uint32_t layer) const {
  const KvPlan& plan = cache_.plan();
  KVRUN_RETURN_IF_ERROR(chosen_->Invalidate(0, chosen_->size_bytes()));
  KVRUN_ASSIGN_OR_RETURN(std::vector<uint32_t> selected, BestChosen(layer, MostOfChoice(plan, layer)));
  for (uint32_t group = 0; group < FrontGroups(plan); ++group) selected.push_back(group);
  std::sort(selected.begin(), selected.end());
  selected.erase(std::unique(selected.begin(), selected.end()), selected.end());
  KVRUN_CHECK(selected.size() <= most_groups_);
  return selected;
}

Status SelectedPrefill::BeginReading(uint32_t layer, PromptStore& store) {
  KVRUN_ASSIGN_OR_RETURN(next_selected_, Selected(layer));
  // Where there is no thread to be had, it is read by whoever waits for it.
  reading_ = std::async(std::launch::async | std::launch::deferred, [this, layer, &store] {
    return store.ReadAhead(layer, next_selected_, records_.get());
  });
  return Status::Ok();
}

Status SelectedPrefill::EndReading(uint32_t layer, PromptStore& store) {
  if (!reading_.valid()) KVRUN_RETURN_IF_ERROR(BeginReading(layer, store));
  KVRUN_RETURN_IF_ERROR(reading_.get());
  selected_.swap(next_selected_);
  n_selected_ += selected_.size();
  tiling_.n_left_out =
      window_begin() - static_cast<uint32_t>(selected_.size()) * cache_.plan().record.group_tokens;
  return Status::Ok();
}

double SelectedPrefill::selected_share() const {
  const double all =
      static_cast<double>(cache_.FirstWindowGroup(prompt_.begin)) * commands_.config().n_kv_layers();
  return static_cast<double>(n_selected_) / all;
}

Status SelectedPrefill::RunKvLayer(uint32_t model_layer, std::span<const StepRow> rows, PromptStore& store) {
  const uint32_t layer = KvLayerOf(model_layer);
  KVRUN_RETURN_IF_ERROR(EndReading(layer, store));
  KVRUN_RETURN_IF_ERROR(store.BeginLayer(layer));
  KVRUN_RETURN_IF_ERROR(store.LoadSelected(layer, selected_, records_.get(), tile_.get()));
  if (looks_ahead() && KeepsGrowingKv(model_layer + 1)) KVRUN_RETURN_IF_ERROR(BeginReading(layer + 1, store));
  std::vector<uint32_t> tapped;
  store.ChooseTapped(prompt_.begin, n_rows(), &tapped);
  tile_rows_.assign(rows.begin(), rows.end());
  for (StepRow& row : tile_rows_) row.sequence = 0;
  const StepPlace place = commands_.own();
  commands_.WriteRows(place, tile_rows_, tiling_.n_left_out);
  commands_.WriteOutputs(place, tapped);
  AttentionArgs attention = commands_.Attention(model_layer, n_rows(), /*of_prompt=*/true, place);
  attention.kv = tile_.get();
  attention.kv_shape = tiling_.first;
  attention.scratch = scratch_.get();
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(commands_.Qkv(*list, model_layer, n_rows(), place));
  KVRUN_RETURN_IF_ERROR(list->RopeAndStore(attention));
  KVRUN_RETURN_IF_ERROR(
      store.Tap(*list, {place.step, place.qkv, static_cast<uint32_t>(tapped.size()), n_rows(), 0}));
  KVRUN_RETURN_IF_ERROR(list->Attend(attention));
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*list, model_layer, n_rows(), place));
  KVRUN_RETURN_IF_ERROR(RecordChoice(*list, model_layer + (looks_ahead() ? 2 : 1)));
  KVRUN_RETURN_IF_ERROR(Execute(*list));
  KVRUN_RETURN_IF_ERROR(store.EndTap(prompt_.begin, tapped));
  return KeepLayer(model_layer, store);
}

// The store serves one thread at a time, and the index does without it.
Status SelectedPrefill::KeepLayer(uint32_t model_layer, PromptStore& store) {
  const uint32_t layer = KvLayerOf(model_layer);
  if (looks_ahead()) {
    KVRUN_RETURN_IF_ERROR(store.Index(layer));
    if (reading_.valid()) reading_.wait();
    return store.StoreTile(layer, 0);
  }
  KVRUN_RETURN_IF_ERROR(store.StoreTile(layer, 0));
  if (KeepsGrowingKv(model_layer + 1)) KVRUN_RETURN_IF_ERROR(BeginReading(layer + 1, store));
  return store.Index(layer);
}

// Its rows have positions and sequence of their own, not a tile's.
Status SelectedPrefill::RunStateLayer(uint32_t model_layer, std::span<const StepRow> rows,
                                      PromptStore& store) {
  if (looks_ahead() && KeepsGrowingKv(model_layer + 1))
    KVRUN_RETURN_IF_ERROR(BeginReading(KvLayerOf(model_layer + 1), store));
  commands_.WriteRows(rows);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(
      states_.RecordLayer(*list, commands_, model_layer, n_rows(), /*of_prompt=*/true, commands_.own()));
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*list, model_layer, n_rows(), commands_.own()));
  for (const LayerStates::Saving& saving : savings_) {
    KVRUN_RETURN_IF_ERROR(states_.RecordSave(*list, model_layer, prompt_.sequence, *saving.to));
  }
  KVRUN_RETURN_IF_ERROR(RecordChoice(*list, model_layer + (looks_ahead() ? 2 : 1)));
  return Execute(*list);
}

}  // namespace kvrun
