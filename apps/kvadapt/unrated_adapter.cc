#include "apps/kvadapt/unrated_adapter.h"

#include <fmt/format.h>
#include <system_error>

#include <filesystem>

#include "apps/common/failure.h"
#include "apps/common/report.h"
#include "offline/inspect_file.h"

namespace kvrun::cli {
namespace {

namespace fs = std::filesystem;

std::string BehindLinks(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path real = fs::canonical(path, error);
  return error ? path : real.string();
}

bool IsAdapter(const std::string& path) {
  const auto object = offline::InspectFile(path);
  return object.ok() && ParseJson(*object)["what"] == "adapter";
}

}  // namespace

UnratedAdapter::UnratedAdapter(const std::string& output)
    : output_(output), target_(BehindLinks(output)), path_(target_ + ".unrated") {}

void UnratedAdapter::Check() const {
  std::error_code error;
  if (fs::exists(path_, error) && !(fs::is_regular_file(path_, error) && IsAdapter(path_))) {
    throw Failure(
        KVRUN_INVALID_ARGUMENT,
        fmt::format("{} is there and no adapter, and would be lost: the new one has that name until "
                    "its reuse rates are measured; move it away, name another output, or give "
                    "--no-reuse-rates",
                    path_));
  }
}

void UnratedAdapter::Complete(const std::function<void()>& work,
                              const std::function<std::string()>& goes_on) const {
  TakeModeOfOld();
  Explained(work,
            [&](const Failure& failure) { return fmt::format("{}; {}", failure.what(), Settle(goes_on())); });
  std::error_code error;
  fs::rename(path_, target_, error);
  if (!error) return;
  throw Failure(KVRUN_IO_ERROR,
                fmt::format("cannot rename {} to {}: {}; the new adapter is complete: rename it", path_,
                            output_, error.message()));
}

bool UnratedAdapter::HasOld() const {
  std::error_code error;
  return fs::exists(target_, error);
}

// At once: what others may not read in the old one is not for them in the new one either.
void UnratedAdapter::TakeModeOfOld() const {
  std::error_code error;
  const fs::file_status old = fs::status(target_, error);
  if (!error && fs::exists(old)) fs::permissions(path_, old.permissions(), error);
}

std::string UnratedAdapter::Settle(const std::string& goes_on) const {
  const std::string again =
      "or " + (goes_on.empty() ? "run the same command again" : "measure them: " + goes_on);
  if (HasOld()) {
    return fmt::format(
        "{} is as it was before, and {} is the new adapter without reuse rates: rename it to take it, {}",
        output_, path_, again);
  }
  std::error_code error;
  fs::rename(path_, target_, error);
  return fmt::format("{} is the new adapter without reuse rates: take it as it is, {}",
                     error ? path_ : output_, again);
}

}  // namespace kvrun::cli
