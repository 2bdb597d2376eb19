#include "apps/common/kv_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/common/api.h"
#include "apps/common/failure.h"

namespace kvrun::cli {
namespace {

struct KvOptionHelp {
  const char* name;  // without --kv-
  const char* kind;
  const char* help;
  HelpGroup group;
};

const std::vector<KvOptionHelp>& Options() {
  using enum HelpGroup;
  static const std::vector<KvOptionHelp> kOptions = {
      {"method", "METHOD",
       "full: all KV is in memory; flexgen: all is on flash and read for each token; kvswap: all is on "
       "flash, and only what is predicted to matter is read (default: full; with --kv-budget, kvswap where "
       "not all KV fits into it); dynakv: the same, in clusters that follow the text; prkv: in pages of each "
       "KV "
       "head, beside a static set; arkv-flash: kvswap beside a static set in two precisions. To compare "
       "with: "
       "streaming, random, oracle, quest, meanstd, loki, "
       "infinigen, infinigen*. Methods that forget what gets little attention: arkv, h2o, snapkv, "
       "defensivekv, lazyeviction",
       kKv},
      {"budget", "BYTES|A/B|P%",
       "memory for all that grows with the context: 14155776, 13.5M, or a share of the f16 KV, such as 1/13 "
       "or 8% (bytes are never exceeded; a share that is too small to work with is raised)",
       kKv},
      {"dir", "FOLDER", "a folder on flash (default: in the user's cache folder)", kKv},
      {"type", "TYPE|K,V", "f32, f16, fp8, int8 or int4: one for both, or one each for K,V (default f16)",
       kKvExperts},
      {"group", "N", "how many consecutive entries are read as one", kKvExperts},
      {"select", "N",
       "how many entries a token reads besides sinks and window; of methods that forget: how many of each KV "
       "head are kept besides the window",
       kKvExperts},
      {"hide", "SHARE",
       "select as much as flash has time for: so that this share of the reading passes while the device "
       "computes (default: 0.9, where --kv-budget alone says how much is selected); 0: as much as the budget "
       "has room for",
       kKvExperts},
      {"reads", "N",
       "of the groups that a token selects and that are not in memory, read so many of a layer, on average, "
       "those that matter most; others that are in memory stand in for the rest (default: as many as flash "
       "has time for, where --kv-budget alone says how much is selected); 0: all",
       kKvExperts},
      {"adapt", "WHEN",
       "while decoding, select fewer entries where reads are late, and more where they are early, within the "
       "budget: on or off (default: off; with on, results depend on the machine's load)",
       kKvExperts},
      {"sample", "N",
       "attend to N more entries, drawn at random from those that are not selected, each in place of many "
       "(default: 0)",
       kKvExperts},
      {"seed", "N",
       "what --kv-sample draws by: the same number draws the same (default: --seed, where there is one, else "
       "0)",
       kKvExperts},
      {"mass", "SHARE",
       "end a selection where its predicted share of the attention is reached, such as 0.95; --kv-select is "
       "the most then",
       kKvExperts},
      {"window", "N", "how many of the newest entries stay in memory", kKvExperts},
      {"sinks", "N", "how many of the first entries are always attended to", kKvExperts},
      {"reuse", "N",
       "how many groups per layer stay in memory in case they are chosen again; if fewer than are selected, "
       "the rest is read for every token",
       kKvExperts},
      {"rank", "N", "how many columns of the index groups are scored with", kKvExperts},
      {"index", "TYPE", "the index's type: f16, int8 or int4", kKvExperts},
      {"heads", "HOW", "how the heads' scores become one: sum, softmax, gqa or per-kv-head", kKvExperts},
      {"cluster", "N", "dynakv: how many entries a cluster has on average", kKvExperts},
      {"cluster-max", "N",
       "dynakv: how many entries a cluster has at most (default: four times --kv-cluster)", kKvExperts},
      {"cluster-room", "N",
       "dynakv: for how many clusters of a KV head the index has room (default: a quarter more than a "
       "context "
       "of clusters of --kv-cluster takes)",
       kKvExperts},
      {"pending", "N", "dynakv: how many entries may wait for their cluster to be read, in each KV head",
       kKvExperts},
      {"upkeep", "N",
       "dynakv: how many clusters a token changes at most; what is left waits for a later one (default: two "
       "thirds as many as there are KV heads in all layers)",
       kKvExperts},
      {"split", "FACTOR", "dynakv: divide a cluster whose variance is so many times that of the first ones",
       kKvExperts},
      {"update", "HOW", "dynakv: how clusters follow the text: adaptive, static or local", kKvExperts},
      {"layout", "HOW", "dynakv: how clusters lie on flash: dual-head, cluster or sequence", kKvExperts},
      {"representatives", "WHERE",
       "dynakv: where the index of clusters lies: memory (default) or flash, read again for each token",
       kKvExperts},
      {"shares", "HOW",
       "methods that forget: who has how much of what is kept: even (default), heads (a layer's KV heads by "
       "their attention) or layers (layers, too); kvswap with an adapter's file that says so: layers "
       "(default) gives slots to layers by what their cut costs, even does not (nor does --kv-adapt on)",
       kKvExperts},
      {"precisions", "HOW",
       "arkv, arkv-flash: which of what is kept is exact, and which has 8 bits: bytes (default: a part of "
       "the memory is "
       "exact, as many of 8 bits as fit into the rest), entries (a part of the entries is exact), original "
       "(all exact) or quantised (all of 8 bits)",
       kKvExperts},
      {"moments", "HOW",
       "arkv, arkv-flash: what a layer's attention is measured over: keys (default, as the paper says) or "
       "rows (as its "
       "authors' code does)",
       kKvExperts},
      {"static", "SHARE|prompt",
       "of what is selected, the share that is a static set: entries that a prompt's end attends to most, "
       "which stay in memory (default: prkv: 0.25; arkv-flash: 0.5; kvswap: 0.25 where the budget says how "
       "much is "
       "selected; else 0); prompt: as the first prompt asks for",
       kKvExperts},
      {"static-steps", "N",
       "choose the static set again after so many tokens, 0: only with a prompt (default: 0; prkv and "
       "arkv-flash: 128)",
       kKvExperts},
      {"rotate", "WHEN",
       "store K and V rotated and centred, where few bits cost less: on or off (default: on where K or V is "
       "int4)",
       kKvExperts},
      {"repage", "WHEN",
       "prkv and other methods with pages: whenever the static set is chosen, write the other entries again, "
       "in "
       "pages of their own, as PRKV does: off (default) or on",
       kKvExperts},
      {"policy", "POLICY", "which group gives way to another: fifo, lru, non-hit, lfu or cluster",
       kKvExperts},
      {"adapter", "FILE",
       "a file of adapters for the index, from kvadapt calibrate (default: computed from the first prompt); "
       "dynakv: its thresholds of clusters, in place of --kv-split",
       kKv},
      {"adapter-kind", "KIND", "the adapters' kind: plain, centred, query, query-centred, heads or skewed",
       kKvExperts},
      {"io", "HOW", "how flash is read: auto (default), io_uring, aio or threads", kKvExperts},
      {"direct", "WHEN", "bypass the page cache: auto (default: if possible), on or off", kKvExperts},
  };
  return kOptions;
}

// The words that the library knows for this option.
std::vector<std::string> ChoicesOf(const std::string& name) {
  char* text = nullptr;
  if (kvrun_kv_option_choices_json(name.c_str(), &text) != KVRUN_OK) return {};
  return TakeJson(text).get<std::vector<std::string>>();
}

// As a line of options has it (kvrun_eval_options.configs).
std::string Quoted(const std::string& value) {
  if (value.find_first_of(" \t\r\n\"\\") == std::string::npos) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

void KvOptionList::Set(const std::string& source, const std::string& name, const std::string& value) {
  if (kvrun_kv_option_check(name.c_str(), value.c_str()) != KVRUN_OK) {
    // The source names the option already.
    std::string why = kvrun_last_error();
    if (const std::string named = fmt::format("KV option {}: ", name); why.starts_with(named))
      why.erase(0, named.size());
    throw UsageError(fmt::format("{}: {}", source, why));
  }
  options_.push_back({name, value, source});
}

void KvOptionList::Override(const KvOptionList& other) {
  std::erase_if(options_, [&other](const Said& option) { return other.Find(option.name) != nullptr; });
  options_.insert(options_.end(), other.options_.begin(), other.options_.end());
}

const std::string* KvOptionList::Find(const std::string& name) const {
  for (auto option = options_.rbegin(); option != options_.rend(); ++option) {
    if (option->name == name) return &option->value;
  }
  return nullptr;
}

bool KvOptionList::asks_for_plan() const { return Find("budget") != nullptr || Find("method") != nullptr; }

std::string KvOptionList::VariablesIn(const std::string& message) const {
  std::string text;
  for (const auto& [name, value, source] : options_) {
    // A variable's source is "KVRUN_KV_BUDGET (--kv-budget of kvrun run)".
    const size_t open = source.find(" (--kv-");
    if (!source.starts_with("KVRUN_KV_") || open == source.npos) continue;
    if (message.find("--kv-" + name) == message.npos) continue;
    text +=
        fmt::format(" (the environment variable {} sets {}", source.substr(0, open), source.substr(open + 2));
  }
  return text;
}

std::string KvOptionList::Line() const {
  std::string line;
  for (const auto& [name, value, source] : options_)
    line += fmt::format("{}--kv-{} {}", line.empty() ? "" : " ", name, Quoted(value));
  return line;
}

std::vector<kvrun_option> KvOptionList::values() const {
  std::vector<kvrun_option> values;
  for (const auto& [name, value, source] : options_) values.push_back({name.c_str(), value.c_str()});
  return values;
}

void AddKvOptions(OptionSet* set, KvOptionList* kv) {
  for (const KvOptionHelp& option : Options()) {
    const std::string name = option.name;
    set->Group(option.group);
    set->Checked(
        "--kv-" + name, option.kind, option.help,
        [kv, name](const std::string& source, const std::string& value) { kv->Set(source, name, value); });
    set->Offer(ChoicesOf(name));
  }
  set->Group(HelpGroup::kKvExperts);
  set->CheckedFlag(
      "--kv-tmpfs", "allow --kv-dir to be in memory, for tests",
      [kv](const std::string& source, bool value) { kv->Set(source, "tmpfs", value ? "on" : "off"); });
}

}  // namespace kvrun::cli
