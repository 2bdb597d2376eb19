// How an index is cut into tiles for scoring, and what workers keep of them (score_passes-inl.h).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "platform/base/units.h"
#include "runtime/device/device.h"
#include "runtime/device/host/host_cores.h"
#include "runtime/device/host/rounded_queries.h"
#include "runtime/device/host/score.h"

namespace kvrun::host {

inline constexpr float kNoReference = -16777216.0F;
inline constexpr size_t kTileVectors = 4;
// Weights that each worker keeps at least: a third of a core's second-level cache.
inline size_t KeptBytes() {
  static const size_t bytes = std::clamp(SecondLevelCacheBytes() / 3, size_t{160} << 10, size_t{1} << 20);
  return bytes;
}

// 2 to the power of a whole number of at most 0; something at least, of a NaN.
inline float Power(float exponent) {
  const auto whole = static_cast<int32_t>(std::min(0.0F, std::max(-126.0F, exponent)));
  return std::bit_cast<float>(static_cast<uint32_t>(whole + 127) << 23);
}

struct Softmax {
  float reference = kNoReference;
  float sum = 0.0F;
};

// A unit is what a worker's share consists of: as many whole groups as fit into a tile, or one that takes
// several tiles.
struct Tiling {
  Tiling(const ScoreArgs& args, size_t lanes)
      : tile_entries(lanes),
        group_rows(args.index_shape.rows()),
        unit_groups(std::max<size_t>(1, tile_entries / group_rows)),
        unit_entries(unit_groups * group_rows),
        row_bits(size_t{args.index_shape.rank} * KvElementBits(args.index_shape.type)),
        unit_bytes(unit_groups * args.index_shape.group_words() * 4),
        folds(args.reduction != HeadReduction::kSum && GroupScoreOf(args.rule) == GroupScore::kMass &&
              group_rows % kTileVectors == 0),
        tile_weights(folds ? tile_entries / kTileVectors : tile_entries) {}

  // Where the tile's entry i lies in it.
  size_t PlaceOf(size_t i) const { return folds ? i % kTileVectors * tile_weights + i / kTileVectors : i; }

  size_t tile_entries;  // room: the last may stay empty
  size_t group_rows;
  size_t unit_groups;
  size_t unit_entries;
  size_t row_bits;
  size_t unit_bytes;
  bool folds;
  size_t tile_weights;  // that are kept of a row
};

inline size_t KeptTileBytes(const Tiling& tiling, size_t n_rows) {
  return n_rows * (tiling.tile_weights + 1) * sizeof(float);
}

// All of them, as far as plans have memory for that, which is two bytes for each entry and row: reading back
// what lies in a larger cache, or in memory, takes less than the same products again.
inline size_t KeptBytesOf(const Tiling& tiling, size_t n_rows, size_t n_entries, size_t n_workers) {
  const size_t n_units = CeilDiv(n_entries, tiling.unit_entries);
  const size_t unit_tiles = CeilDiv(tiling.unit_entries, tiling.tile_entries);
  const size_t span_tiles = CeilDiv(n_units, kScoreSpans) * unit_tiles;
  const size_t all = CeilDiv(kScoreSpans, n_workers) * span_tiles * KeptTileBytes(tiling, n_rows);
  const size_t planned = n_rows * n_entries * sizeof(uint16_t) / n_workers;
  return std::max(KeptBytes(), std::min(all, planned));
}

// What a worker has of its own, in ThreadPool::Scratch.
struct WorkerMemory {
  // Without memory only n_bytes and n_kept count.
  WorkerMemory(std::byte* begin, const Tiling& tiling, size_t n_columns, size_t n_rows, size_t max_lanes,
               size_t kept_bytes)
      : n_kept(kept_bytes / KeptTileBytes(tiling, n_rows)) {
    const auto take = [this, begin]<typename T>(T*& to, size_t count) {
      to = begin == nullptr ? nullptr : reinterpret_cast<T*>(begin + n_bytes);
      n_bytes += RoundUp<size_t>(count * sizeof(T), 64);
    };
    take(tile, RoundUp<size_t>(n_columns, RoundedQueries::kWordColumns) * tiling.tile_entries);
    take(products, n_rows * tiling.tile_entries);
    take(totals, tiling.tile_entries);
    take(bytes, tiling.tile_entries);
    take(bits, tiling.tile_entries);
    take(references, n_rows);
    take(sums, n_rows * max_lanes);
    take(kept, n_kept * n_rows * tiling.tile_weights);
  }

  float* tile;      // [n_columns, tile_entries]
  float* products;  // [n_rows, tile_entries]; or [n_rows, tile_weights] weights
  float* totals;    // [tile_entries]
  int32_t* bytes;   // RowOffsets of the tile
  int32_t* bits;
  float* references;  // [n_rows], so far
  float* sums;        // [n_rows, lanes] of weights, by lane
  float* kept;        // [n_kept, n_rows, tile_weights]
  size_t n_kept = 0;  // tiles that there is room for
  size_t n_bytes = 0;
};

// What the second pass needs of the first, of all workers together.
struct FirstPass {
  FirstPass(std::byte* begin, size_t n_rows) {
    references = reinterpret_cast<float*>(begin);
    factors = references + n_rows;
    tile_references = factors + n_rows;
  }
  static size_t Bytes(size_t n_rows, size_t n_tiles) { return (2 + n_tiles) * n_rows * sizeof(float); }

  float* references;       // [n_rows]: of all entries
  float* factors;          // [n_rows]: what weights are multiplied with in the end
  float* tile_references;  // [n_tiles, n_rows]: when they were weighed
};

// Where the weights of a span's first tiles are kept: in a worker's memory, whoever computes them.
struct KeptTiles {
  float* weights;  // [n_tiles, n_rows, tile_weights]
  size_t n_tiles;
};

// One token's scoring.
struct Scoring {
  const ScoreArgs& args;
  const ScoreLayout& layout;
  const Tiling& tiling;
  const uint8_t* index;      // of the token's sequence
  const uint8_t* index_end;  // of all sequences
  const float* z;            // [n_rows, n_columns]
  size_t n_rows;
  size_t n_columns;    // of an entry, that are looked at
  Softmax* softmaxes;  // [kScoreSpans, n_rows]
  float* scores;       // [n_lists, n_groups]
  size_t n_entries;    // that can be chosen
  FirstPass first_pass;
  RoundedQueries rounded;  // of z
  bool rounds;             // they are multiplied with, and weights are less exact

  size_t n_units() const { return CeilDiv(n_entries, tiling.unit_entries); }
  size_t span_units() const { return CeilDiv(n_units(), kScoreSpans); }
  size_t n_spans() const { return CeilDiv(n_units(), span_units()); }
  size_t unit_tiles() const { return CeilDiv(tiling.unit_entries, tiling.tile_entries); }
};

}  // namespace kvrun::host
