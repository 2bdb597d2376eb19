#include "runtime/kv/plan/family_form.h"

#include <fmt/format.h>

#include "runtime/kv/plan/clusters_plan.h"
#include "runtime/kv/plan/groups_plan.h"
#include "runtime/kv/plan/kept_plan.h"
#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

void GroupsPlan::AddForm(FamilyForm* form) const {
  const bool has_set = statics.share.by_prompt || n_statics() > 0;
  form->options = {{"static", statics.share.by_prompt
                                  ? "prompt"
                                  : fmt::format("{}", has_set ? statics.share.share : 0.0)}};
  if (!has_set) {
    if (statics.has_rows_back)
      form->may_lack = {{"static set", std::string(KeptPrecisionsName(KeptPrecisions::kBytes))}};
    return;
  }
  form->facts.emplace_back("static set", fmt::format("{}{}{}", KeptPrecisionsName(statics.precisions),
                                                     statics.share.by_prompt ? ", as prompts say" : "",
                                                     lays_pages() ? ", pages" : ""));
}

void ClustersPlan::AddForm(FamilyForm* form) const {
  form->facts.emplace_back("clusters", fmt::format("{} of at most {}, {} pending, {} sinks", n_clusters,
                                                   max_entries, max_pending, n_sinks));
  form->facts.emplace_back("clusters' layout",
                           fmt::format("{}, {}{}", ClusterLayoutName(layout), ClusterUpdateName(update),
                                       rows_on_flash ? ", representatives on flash" : ""));
  form->options = {{"sinks", fmt::format("{}", n_sinks)},
                   {"cluster-max", fmt::format("{}", max_entries)},
                   {"cluster-room", fmt::format("{}", n_clusters)},
                   {"pending", fmt::format("{}", max_pending)},
                   {"layout", std::string(ClusterLayoutName(layout))}};
}

void KeptPlan::AddForm(FamilyForm* form) const {
  form->facts.emplace_back("kept entries",
                           fmt::format("{}, {}, {}, {}", n_entries, KeptSharesName(shares),
                                       KeptPrecisionsName(precisions), AttentionMomentsName(moments)));
  form->options = {{"select", fmt::format("{}", n_entries)}};
}

}  // namespace kvrun
