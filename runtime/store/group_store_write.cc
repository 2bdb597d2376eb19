// GroupStore: records to flash.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "platform/base/units.h"
#include "runtime/store/group_store.h"

namespace kvrun {

Status GroupStore::Append(uint32_t layer, uint32_t stream, uint32_t first_group,
                          std::span<const std::byte> records) {
  const size_t n_groups = records.size() / shape_.record_bytes;
  if (records.size() % shape_.record_bytes != 0 || n_groups > shape_.n_groups) {
    return {StatusCode::kInvalidArgument, fmt::format("{} bytes are not 0 to {} records of {} bytes",
                                                      records.size(), shape_.n_groups, shape_.record_bytes)};
  }
  const Run run{layer, stream, first_group, static_cast<uint32_t>(n_groups)};
  KVRUN_RETURN_IF_ERROR(CheckRun(run, "append"));
  Status status = AppendRuns(run, records);
  if (!status.ok()) Forget(run);
  return status;
}

Status GroupStore::AppendRuns(const Run& run, std::span<const std::byte> records) {
  // Two writes to one place have no order: the older one has to end first.
  KVRUN_RETURN_IF_ERROR(WaitForWrites(run));
  KVRUN_RETURN_IF_ERROR(Poll(0));
  KVRUN_RETURN_IF_ERROR(TakeWriteError());
  // Runs of one length, rather than a short one at the end.
  const uint32_t n_runs = CeilDiv(run.n_groups, staged_groups_);
  const uint32_t n_per_run = n_runs > 0 ? CeilDiv(run.n_groups, n_runs) : 0;
  for (uint32_t begin = 0; begin < run.n_groups; begin += n_per_run) {
    const Run part{run.layer, run.stream, run.first_group + begin, std::min(n_per_run, run.n_groups - begin)};
    while (!StartWrite(part, records.data() + uint64_t{begin} * shape_.record_bytes)) {
      KVRUN_RETURN_IF_ERROR(Poll(1));
    }
    KVRUN_RETURN_IF_ERROR(Poll(0));
    KVRUN_RETURN_IF_ERROR(TakeWriteError());
  }
  return Status::Ok();
}

bool GroupStore::StartWrite(const Run& run, const std::byte* records) {
  const uint64_t bytes = run.n_groups * stride_bytes_;
  StagedFile::Request* const io = file_.Take(IoKind::kWrite, bytes);
  if (io == nullptr) return false;
  Request& request = requests_[io->index];
  request = {io, run, nullptr, {}};
  const uint64_t padding_bytes = stride_bytes_ - shape_.record_bytes;
  for (uint32_t i = 0; i < run.n_groups; ++i) {
    const uint64_t place = Place(run, i);
    std::byte* const staged = Staged(request, i);
    std::memcpy(staged, records + uint64_t{i} * shape_.record_bytes, shape_.record_bytes);
    std::memset(staged + shape_.record_bytes, 0, padding_bytes);
    ChecksumAt(run, i) = Checksum(staged, place);
  }
  io->segments[0] = {Staged(request, 0), bytes};
  io->n_segments = 1;
  Queue(request, 0);
  return true;
}

Status GroupStore::WaitForWrites(const Run& run) {
  const auto overlaps = [&](const Request& request) {
    return request.io != nullptr && request.io->in_flight && request.io->kind == IoKind::kWrite &&
           request.run.layer == run.layer && request.run.stream == run.stream &&
           request.run.first_group < run.first_group + run.n_groups &&
           run.first_group < request.run.first_group + request.run.n_groups;
  };
  while (file_.n_writes() > 0 && std::any_of(requests_.begin(), requests_.end(), overlaps)) {
    KVRUN_RETURN_IF_ERROR(Poll(1));
  }
  return Status::Ok();
}

void GroupStore::OnWritten(Request& request, int error_number) {
  const Run run = request.run;
  file_.Release(*request.io);
  if (error_number == 0) return;
  Forget(run);
  if (!write_error_.ok()) return;  // the first says why
  write_error_ = CannotBeWritten(
      error_number, fmt::format("layer {}, stream {}, groups {} to {} of the KV cache", run.layer, run.stream,
                                run.first_group, run.first_group + run.n_groups - 1));
}

Status GroupStore::Flush() {
  while (file_.n_writes() > 0) KVRUN_RETURN_IF_ERROR(Poll(1));
  KVRUN_RETURN_IF_ERROR(file_.error());
  return TakeWriteError();
}

}  // namespace kvrun
