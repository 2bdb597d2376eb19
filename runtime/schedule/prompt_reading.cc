#include "runtime/schedule/prompt_reading.h"

#include <exception>
#include <utility>

namespace kvrun {

PromptReading::PromptReading(std::unique_ptr<Turns> turns, std::unique_ptr<RequestLane> lane,
                             SessionOptions options, StoredPrompts::Place place,
                             const RequestLane::MakeSession& make, std::string new_path)
    : lane_(std::move(lane)), turns_(std::move(turns)) {
  turns_->Give(
      [this, &make, options = std::move(options), place = std::move(place), new_path = std::move(new_path)] {
        try {
          status_ = lane_->Read(options, place, make, new_path, [this] { return turns_->Rest(); });
        } catch (const std::exception& failure) {  // nobody would catch it on that thread
          status_ = Status(StatusCode::kOutOfMemory, failure.what());
        }
      });
}

}  // namespace kvrun
