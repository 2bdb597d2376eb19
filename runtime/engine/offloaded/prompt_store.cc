#include "runtime/engine/offloaded/prompt_store.h"

#include <algorithm>
#include <utility>

#include "platform/base/units.h"
#include "runtime/kv/memory/host_buffer.h"
#include "runtime/kv/planner/kv_plan_sizes.h"

namespace kvrun {
namespace {

constexpr uint32_t kTappedRows = 8;  // of a chunk, where queries stand for all: evenly spaced

}  // namespace

Result<std::unique_ptr<PromptStore>> PromptStore::Create(Device& device, const StepCommands& commands,
                                                         PromptRecords& cache) {
  std::unique_ptr<PromptStore> store(new PromptStore(device, commands, cache));
  KVRUN_RETURN_IF_ERROR(store->CreateBuffers());
  return store;
}

Status PromptStore::CreateBuffers() {
  const uint64_t record_bytes = std::max(plan().record.size_bytes(), plan().window.record.size_bytes());
  for (std::unique_ptr<Buffer>& records : records_) {
    KVRUN_ASSIGN_OR_RETURN(records, device_.CreateBuffer(RecordsAtOnce(plan()) * heads() * record_bytes,
                                                         BufferUse::kShared, "kv"));
  }
  if (observes()) {
    query_positions_.reserve(most_queries());
    row_mass_.emplace(device_, commands_.config());
  }
  if (observes() || divides()) {
    queries_.reserve(size_t{most_queries()} * commands_.config().q_dim());
    const uint64_t row_bytes = uint64_t{commands_.qkv_dim()} * sizeof(float);
    const uint64_t most_tapped = observes() ? std::min(kChunkRows, plan().observed_rows()) : kTappedRows;
    KVRUN_ASSIGN_OR_RETURN(tapped_,
                           device_.CreateBuffer(most_tapped * row_bytes, BufferUse::kReadback, "kv"));
  }
  if (divides()) return Status::Ok();
  if (index() == nullptr || index()->takes_records()) return Status::Ok();
  for (std::unique_ptr<Buffer>& projected : projected_) {
    KVRUN_ASSIGN_OR_RETURN(
        projected, device_.CreateBuffer(uint64_t{ProjectedRows(plan())} * plan().index.rank * sizeof(float),
                                        BufferUse::kShared, "kv"));
  }
  if (!takes_sums()) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(sums_, LayerSumBuffers::Create(device_, commands_.config(), "kv"));
  return Status::Ok();
}

void PromptStore::Begin(const KvRange& prompt, LayerTiles& tiles) {
  if (index() != nullptr) index()->ForgetLearned();
  prompt_ = prompt;
  tiles_ = &tiles;
  // Rows from the last one back: they are seen by all that stay.
  observed_stride_ = plan().samples_rows() ? CeilDiv(prompt.end, plan().observed_rows()) : 0;
  shown_tile_ = 0;
}

// They may have to be read.
Status PromptStore::Show(uint32_t tile, const TilePlanes& planes) {
  if (tile == 0 || (shown_tile_ == tile && shown_ == planes)) return Status::Ok();
  shown_tile_ = 0;
  KVRUN_ASSIGN_OR_RETURN(const bool is_there, tiles_->Show(tile, planes));
  if (!is_there) KVRUN_RETURN_IF_ERROR(LoadEarlier(layer_, tile, tiles_->kv(tile)));
  shown_tile_ = tile;
  shown_ = planes;
  return Status::Ok();
}

Status PromptStore::BeginLayer(uint32_t layer) {
  layer_ = layer;
  shown_tile_ = 0;
  queries_.clear();
  query_positions_.clear();
  next_query_ = 0;
  has_learned_ = false;
  if (row_mass_) row_mass_->Drop();
  return sums_ ? sums_->Clear() : Status::Ok();
}

uint32_t PromptStore::most_queries() const { return observes() ? plan().observed_rows() : kPromptQueries; }

void PromptStore::ChooseTapped(uint32_t first, uint32_t n_rows, std::vector<uint32_t>* tapped) {
  if (tapped_ == nullptr) return;
  if (!observes()) {
    const uint32_t n = std::min(n_rows, kTappedRows);
    for (uint32_t i = 0; i < n; ++i) tapped->push_back((i + 1) * n_rows / n - 1);
    return;
  }
  for (uint32_t row = 0; row < n_rows; ++row) {
    const uint32_t before_last = prompt_.end - 1 - first - row;
    const bool is_observed =
        observed_stride_ == 0 ? before_last < plan().observed_rows() : before_last % observed_stride_ == 0;
    if (is_observed) tapped->push_back(row);
  }
}

Status PromptStore::Tap(CommandList& list, const TappedChunk& chunk) {
  if (chunk.n_tapped > 0) {
    KVRUN_RETURN_IF_ERROR(
        list.GatherRows(*chunk.qkv, *chunk.step, chunk.n_tapped, commands_.qkv_dim(), tapped_.get()));
  }
  return sums_ ? sums_->Record(list, commands_, *chunk.qkv, chunk.n_rows, chunk.skip_rows) : Status::Ok();
}

// The newest queries take the place of the oldest.
Status PromptStore::EndTap(uint32_t first, std::span<const uint32_t> tapped) {
  if (tapped.empty()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(tapped_->Invalidate(0, tapped.size() * commands_.qkv_dim() * sizeof(float)));
  const size_t dim = commands_.config().q_dim();
  for (size_t row = 0; row < tapped.size(); ++row) {
    if (queries_.size() < most_queries() * dim) queries_.resize(queries_.size() + dim);
    if (observes()) {
      query_positions_.resize(n_queries());
      query_positions_[next_query_] = first + tapped[row];
    }
    const std::span<const float> query = Floats(*tapped_).subspan(row * commands_.qkv_dim(), dim);
    std::copy(query.begin(), query.end(), queries_.begin() + static_cast<ptrdiff_t>(next_query_ * dim));
    next_query_ = (next_query_ + 1) % most_queries();
  }
  return Status::Ok();
}

Result<PromptStore::Encoding> PromptStore::BeginEncoding(const Groups& groups, const KvRecordShape& shape,
                                                         const EntrySpace& space, uint32_t turn) {
  KvShape kv_shape = tiling().shape(groups.tile);
  kv_shape.n_kv_heads = groups.n_heads;
  const uint32_t token = groups.first * shape.group_tokens - tiling().begin(groups.tile);
  Encoding encoding;
  encoding.groups = groups;
  KVRUN_ASSIGN_OR_RETURN(encoding.list, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(encoding.list->EncodeRecords(*tiles_->kv(groups.tile), kv_shape, token, groups.n,
                                                     shape, space, records_[turn].get()));
  KVRUN_RETURN_IF_ERROR(encoding.list->Finish());
  KVRUN_ASSIGN_OR_RETURN(encoding.value, device_.Submit(*encoding.list));
  return encoding;
}

Result<std::span<const std::byte>> PromptStore::EndEncoding(const Encoding& encoding,
                                                            const KvRecordShape& shape, uint32_t turn) {
  KVRUN_RETURN_IF_ERROR(device_.Wait(encoding.value));
  const Groups& groups = encoding.groups;
  const uint64_t bytes = groups.n * (groups.n_heads / shape.n_heads) * shape.size_bytes();
  KVRUN_RETURN_IF_ERROR(records_[turn]->Invalidate(0, bytes));
  return std::span<const std::byte>(records_[turn]->host().first(bytes));
}

// As records of `shape`, [streams of these heads, n]; valid until the next call.
Result<std::span<const std::byte>> PromptStore::Encode(const Groups& groups, const KvRecordShape& shape,
                                                       const EntrySpace& space) {
  KVRUN_ASSIGN_OR_RETURN(const Encoding encoding, BeginEncoding(groups, shape, space, 0));
  return EndEncoding(encoding, shape, 0);
}

PromptStore::Groups PromptStore::FirstOf(const Groups& groups) const {
  Groups first = groups;
  first.n = std::min(groups.n, RecordsAtOnce(plan()));
  return first;
}

// While some are visited, the device encodes the next ones.
Status PromptStore::VisitEncoded(const Groups& groups, const KvRecordShape& shape, const EntrySpace& space,
                                 const EncodedFn& visit) {
  if (groups.n == 0) return Status::Ok();
  Groups left = groups;
  const auto begin_next = [&](uint32_t turn) {
    const Groups piece = FirstOf(left);
    left.first += piece.n;
    left.n -= piece.n;
    return BeginEncoding(piece, shape, space, turn);
  };
  KVRUN_ASSIGN_OR_RETURN(Encoding encoding, begin_next(0));
  for (uint32_t turn = 0; encoding.list != nullptr; turn = 1 - turn) {
    KVRUN_ASSIGN_OR_RETURN(const auto records, EndEncoding(encoding, shape, turn));
    Encoding next;
    if (left.n > 0) {
      KVRUN_ASSIGN_OR_RETURN(next, begin_next(1 - turn));
    }
    const Status visited = visit(encoding.groups, records);
    if (!visited.ok() && next.list != nullptr) static_cast<void>(device_.Wait(next.value));
    KVRUN_RETURN_IF_ERROR(visited);
    encoding = std::move(next);
  }
  return Status::Ok();
}

// From groups of the prompt all over its first tile, but for a sequence's first ones, whose keys are like no
// others.
Status PromptStore::SetMeans(uint32_t layer, uint32_t tile) {
  const bool is_first = tile == tiling().tile_of(prompt_.begin);
  if (!is_first || !cache_.wants_means(layer, prompt_.sequence, prompt_.begin)) return Status::Ok();
  const KvRecordShape& shape = plan().window.record;
  const uint32_t first = CeilDiv(std::max(prompt_.begin, EntrySpaces::kLeftOut), shape.group_tokens);
  const uint32_t end = std::min(prompt_.end, tiling().end(tile)) / shape.group_tokens;
  const uint32_t n = end - std::min(first, end);
  if (n * shape.group_tokens < EntrySpaces::kFewestEntries) return Status::Ok();
  constexpr uint32_t kPieceGroups = 64;  // neighbours are alike: pieces from all over say more
  const uint32_t most = std::max(1U, EntrySpaces::kMostEntries / (kPieceGroups * shape.group_tokens));
  const uint32_t n_pieces = std::min(CeilDiv(n, kPieceGroups), most);
  EntryMeans means(n_kv_heads(), tiling().first.head_dim);
  for (uint32_t piece = 0; piece < n_pieces; ++piece) {
    const uint32_t begin = first + piece * (n / n_pieces);
    KVRUN_RETURN_IF_ERROR(VisitEncoded(AllHeads(tile, begin, std::min(kPieceGroups, n / n_pieces)), shape,
                                       EntrySpace(), [&](const Groups&, std::span<const std::byte> records) {
                                         means.Add(shape, records);
                                         return Status::Ok();
                                       }));
  }
  return cache_.SetMeans(layer, prompt_.sequence, means.Means());
}

// Whole groups of a tile.
Status PromptStore::KeepExact(uint32_t layer, uint32_t tile, uint32_t first, uint32_t end) {
  for (uint32_t group = first; group < end;) {
    const Groups groups = FirstOf(AllHeads(tile, group, end - group));
    KVRUN_ASSIGN_OR_RETURN(const auto encoded, Encode(groups, plan().record, SpaceOf(layer)));
    const std::vector<std::byte> stored(encoded.begin(), encoded.end());
    KVRUN_ASSIGN_OR_RETURN(const auto exact, Encode(groups, plan().window.record, SpaceOf(layer)));
    KVRUN_RETURN_IF_ERROR(cache_.PutExact(layer, prompt_.sequence, group, groups.n, exact, stored));
    group += groups.n;
  }
  return Status::Ok();
}

// Whole groups to flash, and the newest, with the one that is not complete, to the window.
Status PromptStore::StoreTile(uint32_t layer, uint32_t tile) {
  layer_ = layer;
  KVRUN_RETURN_IF_ERROR(SetMeans(layer, tile));
  const uint32_t group_tokens = plan().record.group_tokens;
  const uint32_t first = std::max(prompt_.begin, tiling().begin(tile)) / group_tokens;
  const uint32_t end = std::min(prompt_.end, tiling().end(tile));
  const uint32_t end_whole = end / group_tokens;
  if (!cache_.stores_layers() && first < end_whole) {
    KVRUN_RETURN_IF_ERROR(
        VisitEncoded(AllHeads(tile, first, end_whole - first), plan().record, SpaceOf(layer),
                     [&](const Groups& piece, std::span<const std::byte> records) {
                       return cache_.AppendGroups(layer, prompt_.sequence, piece.first, piece.n, records);
                     }));
  }
  KVRUN_RETURN_IF_ERROR(KeepExact(layer, tile, first, std::min(end_whole, plan().window.n_exact_groups)));
  const uint32_t end_group = CeilDiv(end, group_tokens);
  const uint32_t newest = std::max(first, cache_.FirstWindowGroup(prompt_.end));
  if (newest >= end_group) return Status::Ok();
  return VisitEncoded(AllHeads(tile, newest, end_group - newest), plan().window.record, SpaceOf(layer),
                      [&](const Groups& piece, std::span<const std::byte> records) {
                        return cache_.PutWindow(layer, piece.first, piece.n, records);
                      });
}

// Of a tile, while the tile is shown: while some rows are visited, the device computes the next ones.
Status PromptStore::ProjectTile(uint32_t tile, uint32_t begin, uint32_t end, const IndexSides& sides,
                                uint32_t rank, const ProjectedFn& visit) {
  const KvShape& shape = tiling().shape(tile);
  const uint32_t tile_begin = tiling().begin(tile);
  const uint32_t rows_at_once = ProjectedRows(plan());
  std::unique_ptr<CommandList> lists[kProjectTurns];
  uint64_t value = 0;
  const auto submit = [&](uint32_t first, uint32_t turn) -> Status {
    KVRUN_ASSIGN_OR_RETURN(lists[turn], device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(lists[turn]->ProjectKeys(*tiles_->kv(tile), shape, first - tile_begin,
                                                   std::min(rows_at_once, end - first), sides, rank,
                                                   projected_[turn].get()));
    KVRUN_RETURN_IF_ERROR(lists[turn]->Finish());
    KVRUN_ASSIGN_OR_RETURN(value, device_.Submit(*lists[turn]));
    return Status::Ok();
  };
  KVRUN_RETURN_IF_ERROR(submit(begin, 0));
  for (uint32_t first = begin, turn = 0; first < end; first += rows_at_once, turn = 1 - turn) {
    KVRUN_RETURN_IF_ERROR(device_.Wait(value));
    if (first + rows_at_once < end) KVRUN_RETURN_IF_ERROR(submit(first + rows_at_once, 1 - turn));
    const uint64_t count = uint64_t{std::min(rows_at_once, end - first)} * rank;
    Status visited = projected_[turn]->Invalidate(0, count * sizeof(float));
    if (visited.ok()) visited = visit(first, Floats(*projected_[turn]).first(count));
    if (!visited.ok()) static_cast<void>(device_.Wait(value));  // lists must outlive what runs
    KVRUN_RETURN_IF_ERROR(visited);
  }
  return Status::Ok();
}

// To the prompt's end. Meanwhile the sums of rows that are observed: for these, tiles need not be read again.
Status PromptStore::Project(uint32_t begin, const IndexSides& sides, uint32_t rank,
                            const ProjectedFn& visit) {
  const bool sums_rows = row_mass_ && !row_mass_->has_sums() && tiling().tile_of(begin) == 0 && n_tiles() > 1;
  if (sums_rows) KVRUN_RETURN_IF_ERROR(row_mass_->BeginSums(queries_, query_positions_));
  for (uint32_t tile = tiling().tile_of(begin); tile < n_tiles(); ++tile) {
    KVRUN_ASSIGN_OR_RETURN(const RowMass::Keys keys, KeysOf(tile));
    if (sums_rows) KVRUN_RETURN_IF_ERROR(row_mass_->AddSums(keys));
    const uint32_t tile_end = std::min(prompt_.end, tiling().end(tile));
    const uint32_t first = std::max(begin, tiling().begin(tile));
    if (first >= tile_end) continue;
    KVRUN_RETURN_IF_ERROR(ProjectTile(tile, first, tile_end, sides, rank, visit));
  }
  return Status::Ok();
}

// A layer is stored head by head, and a tile has all heads: no more of it is read than is wanted.
Status PromptStore::VisitRecords(uint32_t head, uint32_t begin, uint32_t end, Want want,
                                 const RecordsFn& visit) {
  for (uint32_t first = begin; first < end;) {
    const uint32_t tile = tiling().tile_of(first);
    KVRUN_RETURN_IF_ERROR(Show(tile, {head, 1, want == Want::kKeys}));
    const uint32_t n = std::min(tiling().end(tile), end) - first;
    KVRUN_RETURN_IF_ERROR(VisitEncoded({tile, first, n, head + 1}, plan().record, SpaceOf(layer_),
                                       [&](const Groups& piece, std::span<const std::byte> records) {
                                         const uint64_t bytes = piece.n * plan().record.size_bytes();
                                         return visit(piece.first, records.subspan(head * bytes, bytes));
                                       }));
    first += n;
  }
  return Status::Ok();
}

// By places: where the tile holds what was selected, those differ from positions.
Result<RowMass::Keys> PromptStore::KeysOf(uint32_t tile) {
  KVRUN_RETURN_IF_ERROR(Show(tile, {0, n_kv_heads(), true}));
  const uint32_t begin = tiling().begin(tile);
  return RowMass::Keys{tiles_->kv(tile), tiling().shape(tile), begin - tiling().n_left_out,
                       std::min(tiling().end(tile), prompt_.end) - begin};
}

Status PromptStore::Mass(const MassForm& form, uint32_t end, Rows rows, std::span<float> mass) {
  if (tiling().n_left_out == 0) return MassOfPlaces(form, end, rows, mass);
  const uint32_t n_places = end - tiling().n_left_out;
  std::vector<float> of_places(size_t{form.n_moments} * n_kv_heads() * n_places);
  KVRUN_RETURN_IF_ERROR(MassOfPlaces(form, n_places, rows, of_places));
  std::fill(mass.begin(), mass.end(), 0.0F);
  for (uint32_t place = 0; place < n_places; ++place) {
    const uint32_t position = PositionOf(place);
    for (size_t i = 0; i < size_t{form.n_moments} * n_kv_heads(); ++i) {
      mass[i * end + position] = of_places[i * n_places + place];
    }
  }
  return Status::Ok();
}

uint32_t PromptStore::PositionOf(uint32_t place) const {
  const std::span<const uint32_t> selected = tiles_->selected();
  const uint32_t group_tokens = plan().record.group_tokens;
  const uint32_t nth = place / group_tokens;
  return nth < selected.size() ? selected[nth] * group_tokens + place % group_tokens
                               : place + tiling().n_left_out;
}

Status PromptStore::MassOfPlaces(const MassForm& form, uint32_t end, Rows rows, std::span<float> mass) {
  const auto keys_of = [this](uint32_t tile) { return KeysOf(tile); };
  if (rows == Rows::kAll && row_mass_->has_sums()) return row_mass_->Run(keys_of, form, end, mass);
  size_t first = 0;
  size_t n = query_positions_.size();
  if (rows != Rows::kAll) {
    const auto [least, most] = std::minmax_element(query_positions_.begin(), query_positions_.end());
    first = static_cast<size_t>((rows == Rows::kFirst ? least : most) - query_positions_.begin());
    n = 1;
  }
  const size_t dim = commands_.config().q_dim();
  std::vector<uint32_t> places(query_positions_.begin() + static_cast<ptrdiff_t>(first),
                               query_positions_.begin() + static_cast<ptrdiff_t>(first + n));
  for (uint32_t& place : places) place -= tiling().n_left_out;
  KVRUN_RETURN_IF_ERROR(row_mass_->BeginSums(std::span(queries_).subspan(first * dim, n * dim), places));
  for (uint32_t tile = 0; tile < n_tiles(); ++tile) {
    KVRUN_ASSIGN_OR_RETURN(const RowMass::Keys keys, KeysOf(tile));
    KVRUN_RETURN_IF_ERROR(row_mass_->AddSums(keys));
  }
  return row_mass_->Run(keys_of, form, end, mass);
}

Status PromptStore::Index(uint32_t layer) {
  if (!learns()) {
    // While there are too few entries, most are chosen anyway; decoding learns when they are not.
    if (takes_sums()) KVRUN_RETURN_IF_ERROR(index()->PrepareBlank(layer));
    KVRUN_RETURN_IF_ERROR(IndexOnly(layer));
    return ChooseStatics(layer);
  }
  if (!has_learned_) KVRUN_RETURN_IF_ERROR(Learn(layer));
  KVRUN_RETURN_IF_ERROR(IndexOnly(layer));
  return ChooseStatics(layer);
}

Status PromptStore::Learn(uint32_t layer) {
  const uint32_t n_rows = prompt_.end - prompt_.begin;
  const uint32_t n_skipped = prompt_.begin < n_sinks() ? std::min(n_rows, n_sinks() - prompt_.begin) : 0;
  KVRUN_ASSIGN_OR_RETURN(const LayerSums sums, sums_->Read(commands_.config(), n_rows, n_skipped));
  has_learned_ = true;
  return index()->Learn(layer, sums);
}

Status PromptStore::ChooseStatics(uint32_t layer) {
  return observes() && !divides() ? cache_.ChooseStatics(layer, prompt_, *this) : Status::Ok();
}

Status PromptStore::LearnAndIndex(uint32_t layer, const LayerSums& sums) {
  KVRUN_RETURN_IF_ERROR(index()->Learn(layer, sums));
  return IndexOnly(layer);
}

Status PromptStore::IndexOnly(uint32_t layer) {
  if (cache_.stores_layers()) return cache_.StoreLayer(layer, prompt_, *this);
  if (index() == nullptr) return Status::Ok();
  return index()->IndexPrompt(layer, prompt_, *this, cache_.stored_keys());
}

Status PromptStore::End() {
  KVRUN_RETURN_IF_ERROR(cache_.EndPrefill(prompt_.sequence, prompt_.end));
  // Not before: after an error the next prompt is learned from.
  if (learns()) index()->NoteReady();
  return Status::Ok();
}

}  // namespace kvrun
