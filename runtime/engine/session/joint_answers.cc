#include "runtime/engine/session/joint_answers.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvrun {

std::vector<Status> JointAnswers::Step(std::span<Generation* const> answers) {
  std::vector<Status> statuses(answers.size(), Status::Ok());
  std::vector<std::pair<StepForm, std::vector<Place>>> alike;
  for (size_t i = 0; i < answers.size(); ++i) {
    const Place place{answers[i], &statuses[i]};
    answers[i]->BeginStep();
    StepMember* const member = answers[i]->member();
    if (member == nullptr) {
      statuses[i] = answers[i]->Compute();
      continue;
    }
    const StepForm form = member->look_back().form();
    auto group = std::find_if(alike.begin(), alike.end(), [&](const auto& one) { return one.first == form; });
    if (group == alike.end()) group = alike.insert(group, {form, {}});
    group->second.push_back(place);
  }
  for (const auto& [form, places] : alike) {
    for (size_t first = 0; first < places.size(); first += SharedStep::kMostRows) {
      const std::span rest = std::span(places).subspan(first);
      ComputeTogether(SharedOf(form), rest.first(std::min(rest.size(), SharedStep::kMostRows)));
    }
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    if (statuses[i].ok()) statuses[i] = answers[i]->EndStep();
  }
  return statuses;
}

// Where a step of all fails, nobody knows whose fault it was: each is computed by itself.
void JointAnswers::ComputeTogether(Shared* shared, std::span<const Place> places) {
  const auto compute_each = [&] {
    for (const Place& place : places) *place.status = place.answer->Compute();
  };
  if (places.size() == 1 || shared->has_failed) return compute_each();
  std::vector<SharedStep::Row> rows;
  for (const Place& place : places) rows.push_back(place.answer->RowToCompute());
  const Clock::time_point begin = Clock::now();
  Status computed = Status::Ok();
  {
    const std::unique_lock lock = places.front().answer->LockDevice();
    computed = shared->step->Run(rows);
    shared->has_failed = !computed.ok();
    if (shared->has_failed) shared->step->Drop();
  }
  if (!computed.ok()) return compute_each();
  const Clock::duration share = (Clock::now() - begin) / places.size();
  for (size_t i = 0; i < places.size(); ++i) {
    *places[i].status = rows[i].status;
    if (rows[i].status.ok()) places[i].answer->NoteComputed(share);
  }
}

JointAnswers::Shared* JointAnswers::SharedOf(const StepForm& form) {
  const auto found =
      std::find_if(shared_.begin(), shared_.end(), [&](const Shared& one) { return one.form == form; });
  if (found != shared_.end()) return &*found;
  return &shared_.emplace_back(Shared{form, std::make_unique<SharedStep>()});
}

void JointAnswers::Forget(Generation* answer) {
  const std::unique_lock lock = answer->LockDevice();
  for (Shared& shared : shared_) {
    shared.step->Drop();
    shared.has_failed = false;
  }
}

}  // namespace kvrun
