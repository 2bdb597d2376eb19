// Which code asks a method's row what it is, or a plan which family's it is. A family answers for itself
// (runtime/kv/planner/kv_family.h, the folders groups, clusters and evict, its part of a plan), and so do the
// parts that a row names (kv_parts, kv_stores). What others ask is in a list, with the reason: a new method
// must not be a change of all of them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <string_view>

namespace kvrun {
namespace {

struct Asker {
  std::string_view path;
  int n_lines;
  std::string_view reason;
};
constexpr Asker kAskers[] = {
    {"offline/candidate.cc", 3, "a candidate is written down with a static set or without"},
    {"runtime/capi/config.cc", 1, "a config is looked for where a file is needed"},
    {"runtime/capi/kv.cc", 1, "the folder is told where there is a file in it"},
    {"runtime/capi/kv_info.cc", 8, "reports have what a method has, and null for the rest"},
    {"runtime/engine/measure/benchmark.cc", 2, "what is timed must read"},
    {"runtime/engine/measure/work_kinds.cc", 1, "what a step that chooses groups has to move"},
    {"runtime/engine/offloaded/decode_lists.cc", 1, "whether layers differ"},
    {"runtime/engine/offloaded/offloaded_pass.cc", 1, "whether a sequence has gaps"},
    {"runtime/engine/offloaded/static_refresh.cc", 1, "whether there is a set to choose again"},
    {"runtime/engine/offloaded/static_refresh.h", 1, "how that set is chosen"},
    {"runtime/engine/session/session_adapter.cc", 2, "what a method takes of an adapter's file"},
    {"runtime/engine/session/session_kv.cc", 3,
     "files that a method needs, in which units they are sealed, and whether it selects"},
    {"runtime/engine/session/write_estimate.cc", 1, "clusters are written block by block"},
    {"runtime/kv/index/low_rank_index.cc", 1, "keys as they are have no adapter to learn"},
    {"runtime/kv/plan/kv_plan.cc", 1, "hands questions to the family's part"},
    {"runtime/kv/plan/kv_plan.h", 1, "whether there is a static set"},
    {"runtime/kv/planner/kv_plan_reading.cc", 1, "says the options again"},
    {"runtime/kv/planner/kv_plan_sizes.cc", 1, "slots of a layer's own are searched for groups"},
    {"runtime/kv/planner/kv_planner.cc", 3, "adapters that are computed, and what wide keys are worth"},
    {"runtime/kv/serve/group_server.cc", 1, "whether the set has a share now"},
};
constexpr int kMostQuestions = 35;

// Families, and what a row is made into.
bool MayAsk(const std::string& path) {
  static const std::regex kFamilies(
      "runtime/kv/(groups|clusters|evict)/.*|runtime/kv/plan/kv_method\\..*|runtime/kv/serve/"
      "kv_(parts|stores)\\..*|runtime/kv/memory/kept_(entries|lists)\\..*|"
      "runtime/kv/planner/(.*_family|kv_plan_(clusters|kept|statics))\\..*");
  return std::regex_match(path, kFamilies);
}

std::map<std::string, int> QuestionsOf(const std::filesystem::path& root) {
  static const std::regex kQuestion(
      "\\b(evicts|has_clusters|has_statics|selects|is_on_flash|needs_file|counts_groups|may_have_statics|has_"
      "pages|"
      "has_adapters|has_index|goes_by_score)\\(\\)|\\bKv(Index|Selector|Store|Residency|Precision)Kind::|"
      "(\\.|->)of_(groups|clusters|kept)\\(\\)|"
      "[pP]lan\\w*(\\(\\))?(\\.|->)((groups|clusters|kept)\\(\\)|family\\b)");
  std::map<std::string, int> questions;
  for (const char* folder : {"runtime", "offline", "apps"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      const std::string path = std::filesystem::relative(entry.path(), root);
      if ((extension != ".cc" && extension != ".h") || MayAsk(path)) continue;
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        if (std::regex_search(line, kQuestion)) ++questions[path];
      }
    }
  }
  return questions;
}

TEST(TraitQuestions, AreAskedByFamiliesAndFew) {
  std::map<std::string, int> questions = QuestionsOf(KVRUN_SOURCE_DIR);
  int n = 0;
  for (const auto& [path, n_lines] : questions) n += n_lines;
  EXPECT_LE(n, kMostQuestions);
  for (const Asker& asker : kAskers) {
    EXPECT_EQ(questions[std::string(asker.path)], asker.n_lines)
        << asker.path << ": say in the list how many there are, and why";
    EXPECT_FALSE(asker.reason.empty());
    questions.erase(std::string(asker.path));
  }
  for (const auto& [path, n_lines] : questions) {
    ADD_FAILURE() << path << " asks " << n_lines
                  << " times what a method is: let its family answer, or say why not";
  }
}

}  // namespace
}  // namespace kvrun
