// Low-rank adapters of K: which few directions of a layer's keys are kept in memory to score entries with.
// Sources: KVSwap, section 3.2 (kind kPlain); Loki (arXiv 2406.02542) and InfiniGen (arXiv 2406.19707),
// section 4.3 (those of each head on its own). The kinds weighed by queries and centred are no paper's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

// kPlain: singular vectors of the keys. kCentred: of the keys less their mean. kQuery: the error of q . k
// counts, not that of k (keys weighted by the square root of the queries' second moment). kQueryCentred:
// both. Of each KV head's keys on their own: kHeads, their principal components, as Loki has them; kSkewed,
// the directions of its queries that weigh most in queries and keys, as InfiniGen has them.
enum class AdapterKind : uint8_t { kPlain, kCentred, kQuery, kQueryCentred, kHeads, kSkewed };
// "plain", "centred", "query", "query-centred", "heads", "skewed"
std::string_view AdapterKindName(AdapterKind kind);
Result<AdapterKind> FindAdapterKind(std::string_view name);

// Of one layer; key_dim = n_kv_heads * head_dim. A score is (q_h . query_side rows of its KV head) . (k .
// key_side - mean . key_side). Unless SidesDiffer, both sides are equal and orthonormal; always
// key_side^T query_side = 1. Nested: the first r columns are the adapter of rank r, as good as one that was
// computed with that rank. With IsOfHeads column c
// is zero but in the rows of KV head c % n_kv_heads.
struct LayerAdapter {
  uint32_t key_dim = 0;
  uint32_t rank = 0;
  std::vector<float> key_side;    // [key_dim, rank]
  std::vector<float> query_side;  // [key_dim, rank]
  std::vector<float> mean;        // [key_dim]; zeros unless centred
  std::vector<float>
      energy;  // [rank]: share of the (weighted) keys' energy that columns 0..i keep; may be empty
};

// What an adapter is computed from. Sums over entries, sinks left out.
template <typename Number>
struct SumsOf {
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint64_t n_keys = 0;
  std::span<const Number> keys;  // [key_dim + 1, key_dim]: the sum of k k^T, then the sum of k
  uint64_t n_queries = 0;        // per KV head
  std::span<const Number>
      queries;  // [n_kv_heads, head_dim, head_dim]: the sums of q q^T; empty for kinds without them
};
using LayerSums = SumsOf<float>;  // as a device makes them
using PreciseLayerSums = SumsOf<double>;

// Fails where there are fewer than `rank` directions to find (rank > key_dim, or no keys), heads would get
// different numbers of them (IsOfHeads), or a sum is not finite. The same sums give the same adapter: of each
// column of key_side the component of largest magnitude is positive. Where all keys are equal (after the mean
// is taken off), energy is 1 from the first column on. Of what the best columns keep of the energy it keeps
// all but a few hundred-thousandths (leading_axes.h); from precise sums, columns point where those do
// wherever that can be told.
Result<LayerAdapter> ComputeAdapter(AdapterKind kind, const LayerSums& sums, uint32_t rank,
                                    uint32_t most_threads = 1);
Result<LayerAdapter> ComputeAdapter(AdapterKind kind, const PreciseLayerSums& sums, uint32_t rank,
                                    uint32_t most_threads = 1);
// As an index keeps it: both sides are what f16 holds. Columns are scaled by powers of two first, so that the
// largest numbers of both sides are alike.
void RoundToHalves(LayerAdapter& adapter);
// As many threads as are worth it, at most.
inline constexpr uint32_t kMostAdapterThreads = 4;
// On the host, for keys that are not on the device any more. `keys`: float [n, key_dim].
// Adds them to sums as LayerSums::keys.
void AddKeys(std::span<const float> keys, uint32_t key_dim, std::span<float> sums);
// projected: float [n, rank] = (k - mean) . key_side, as the index has it.
void ProjectKeys(const LayerAdapter& adapter, std::span<const float> keys, std::span<float> projected);
// The mean square of each column of what ProjectKeys makes of the sums' keys: [rank]. Holds little more.
std::vector<double> MeanSquaresOfColumns(const LayerAdapter& adapter, const LayerSums& sums);
// What ComputeAdapter holds beside sums and answer while it works, with kMostAdapterThreads.
uint64_t AdapterWorkBytes(AdapterKind kind, uint32_t n_kv_heads, uint32_t head_dim, uint32_t rank);

constexpr bool TakesMeanOff(AdapterKind kind) {
  return kind == AdapterKind::kCentred || kind == AdapterKind::kQueryCentred;
}
constexpr bool SidesDiffer(AdapterKind kind) {
  return kind == AdapterKind::kQuery || kind == AdapterKind::kQueryCentred;
}
// Sums of queries are needed.
constexpr bool WeighsByQueries(AdapterKind kind) { return SidesDiffer(kind) || kind == AdapterKind::kSkewed; }
// Each column is of one KV head.
constexpr bool IsOfHeads(AdapterKind kind) {
  return kind == AdapterKind::kHeads || kind == AdapterKind::kSkewed;
}
// The kind nearest to it that takes no queries.
constexpr AdapterKind WithoutQueries(AdapterKind kind) {
  if (IsOfHeads(kind)) return AdapterKind::kHeads;
  return TakesMeanOff(kind) ? AdapterKind::kCentred : AdapterKind::kPlain;
}

// A row of the table from the reuse buffer's capacity to its hit rate, measured on the texts of the
// calibration. Source: KVSwap, appendix A.1.
struct ReuseRate {
  std::string policy;           // a row of ReplacementPolicies
  uint32_t group_tokens = 0;    // G
  uint32_t select_entries = 0;  // M * G, sinks and window not counted
  uint32_t n_ctx = 0;           // tokens before the measured ones
  uint32_t reuse_groups = 0;    // C, per layer, sinks not counted
  float rate = 0.0F;            // of chosen groups, sinks not counted: the share that was in a slot already
  bool operator==(const ReuseRate&) const = default;
};

// All layers of a model, as a file holds them.
struct Adapter {
  AdapterKind kind = AdapterKind::kPlain;
  std::string fingerprint;  // of the model (ModelFingerprint)
  std::vector<LayerAdapter> layers;
  std::vector<ReuseRate> reuse;  // may be empty
  // [n_layers, n_kv_heads]: thresholds of DynaKV's clusters, as multiples of the mean variance of a KV head's
  // first ones (FindClusterFactor). Empty: none were measured.
  std::vector<float> cluster_thresholds;
  // [n_layers, n_kv_heads, 2 (K, V), head_dim]: means of a text's entries, less the first ones, for records
  // that hold entries less their means (EntrySpaces). Empty: none were measured.
  std::vector<float> entry_means;
  // [n_layers], their mean 1: how many slots a layer should have, by what its cut costs
  // (engine/layer_sensitivity.h). Empty: nothing was measured.
  std::vector<float> layer_shares;
  // For people: the texts that the layers are computed from, and what the rest was measured on. Empty: older
  // files do not say it.
  std::string made_from;
  std::string measured_on;
};

// A GGUF file (docs/formats/adapter.md): sides and mean in f16. Written beside the target, which
// may be a link, and renamed.
Status WriteAdapter(const Adapter& adapter, const std::string& path);
// `rank` columns of each layer; refused where the file has fewer, or is of another model: the message says
// what each is.
Result<Adapter> ReadAdapter(const std::string& path, const std::string& fingerprint, uint32_t n_layers,
                            uint32_t key_dim, uint32_t rank);
// All that the file holds, of whatever model.
Result<Adapter> ReadWholeAdapter(const std::string& path);

}  // namespace kvrun
