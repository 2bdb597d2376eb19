/* kvrun's scheduler: many requests to one model at once, as a server or an app with several conversations has
 * them. Those that are answered share the device token by token, while the prompt of another is read in
 * between; the others wait. What each is answered does not depend on the others. What was read and said is
 * kept in sessions on flash, encrypted if there is a key: of a prompt that begins like one of them only the
 * rest is read, also in another process, months later.
 *
 *   kvrun_scheduler_create(engine, &options, &scheduler)
 *   kvrun_scheduler_add(scheduler, ids, count, &generate, &events, &id)     any thread, any time
 *   while (runs) kvrun_scheduler_step(scheduler, 100, &is_idle)             one thread
 *
 * The prompt of a conversation is all of it: what was said, as the chat template writes it, and the new
 * message. */
#ifndef KVRUN_SCHEDULER_H
#define KVRUN_SCHEDULER_H

#include <kvrun/kvrun.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvrun_scheduler kvrun_scheduler;

typedef struct kvrun_scheduler_options {
  uint32_t struct_size;
  uint32_t n_parallel;  /* requests that are computed at once; 0: 4 */
  uint32_t most_queued; /* requests that wait beside them; 0: 64 */
  uint32_t n_ctx;       /* tokens of the longest prompt with its answer; 0: what the model was trained with */
  /* Of each request, as kvrun_session_options has them. A budget in bytes is of all together, and each has
   * the n_parallel-th part; a share is one of the request's own context. */
  const kvrun_option* kv_options; /* [n_kv_options]; read during the call only */
  size_t n_kv_options;
  /* Where sessions are kept: NULL: the user's folder (as kvrun_session_options.session), "": nowhere. Those
   * that the scheduler makes are called serve-...; all others of the same model and key are read, too. */
  const char* folder;
  /* That they may take, with documents that kvrun run keeps; the least recently used go first. 0: 20 GiB. */
  uint64_t keep_bytes;
  const char* session_key_path; /* as kvrun_session_options has it; NULL or "": they are plain */
  /* Tokens of context that each request has, also one that needs fewer: what is selected of a KV cache may
   * depend on it. At most n_ctx; 0: 1024; 1: as many as prompt and answer need. */
  uint32_t least_ctx;
  uint32_t reserved; /* not read */
} kvrun_scheduler_options;

KVRUN_API void kvrun_scheduler_options_init(kvrun_scheduler_options* options);

/* Reads the tokens of all sessions of the folder. The engine must outlive it. */
KVRUN_API kvrun_status kvrun_scheduler_create(kvrun_engine* engine, const kvrun_scheduler_options* options,
                                              kvrun_scheduler** scheduler);
/* Requests that have not ended are cancelled, and saved as far as they were read. */
KVRUN_API void kvrun_scheduler_destroy(kvrun_scheduler* scheduler);

/* What happens to a request. Called within kvrun_scheduler_step (the last also within
 * kvrun_scheduler_destroy), one call at a time, possibly on another thread than the one that called that.
 * Of the scheduler they may call kvrun_scheduler_cancel only. */
typedef struct kvrun_request_events {
  uint32_t struct_size;
  uint32_t reserved;
  void* user;
  /* While the prompt is read: `done` of `total` tokens are there, `cached` of them were before. May be NULL.
   */
  void (*progress)(void* user, uint64_t done, uint64_t total, uint64_t cached);
  kvrun_token_fn token; /* sequence is 0; nonzero cancels */
  /* Once, and nothing after it. status: KVRUN_CANCELLED where somebody asked for that; then, and where it is
   * an error, message says why. stats_json: prefill_tokens, cached_tokens, answer_tokens, ttft_ms and the
   * like of this request, memory (of all that runs), and, where it had a session, notes, details and kv, as
   * kvrun_session_stats_json has them. Valid during the call. */
  void (*end)(void* user, kvrun_status status, const char* message, const kvrun_generate_result* result,
              const char* stats_json);
} kvrun_request_events;

/* Any thread. generate: as for kvrun_session_generate, with draws_by_seed_alone taken as set; what it points
 * to is read during the call only. KVRUN_OUT_OF_MEMORY if as many wait as may, KVRUN_CONTEXT_FULL if prompt
 * and answer (max_tokens) are longer than n_ctx. */
KVRUN_API kvrun_status kvrun_scheduler_add(kvrun_scheduler* scheduler, const int32_t* ids, size_t count,
                                           const kvrun_generate_options* generate,
                                           const kvrun_request_events* events, uint64_t* request);
/* Any thread. It ends within a token, or within a step of its prompt. What was read of that is kept, or,
 * where it cannot be as a prompt is computed as a whole, rests in the request's memory: for a request whose
 * prompt begins like it, 10 minutes, or until another needs the place. One that has ended, or was never
 * there, is none's. */
KVRUN_API void kvrun_scheduler_cancel(kvrun_scheduler* scheduler, uint64_t request);

/* One thread at a time: a token for each request that is being answered, and some of a prompt. With nothing
 * to do it waits for a request, at most wait_ms. is_idle (may be NULL): nonzero if there was nothing to do.
 */
KVRUN_API kvrun_status kvrun_scheduler_step(kvrun_scheduler* scheduler, uint32_t wait_ms, int* is_idle);

/* Any thread; a fifth of a second old at most. JSON object: requests [{id, state ("reading", "answering",
 * "queued"), prompt_tokens, read_tokens (with the cached ones), cached_tokens, answer_tokens}], queued (how
 * many wait), ended, cancelled, failed, prompt_tokens, cached_tokens, answer_tokens, decode_tokens,
 * prefill_ms, decode_ms (sums over those that have ended), read_bytes and written_bytes (of flash, since the
 * start), kv [as kvrun_session_stats_json has it, of each session that is open and has it], stored [{name,
 * tokens, bytes}], memory (as kvrun_session_stats_json has it). */
KVRUN_API kvrun_status kvrun_scheduler_json(const kvrun_scheduler* scheduler, char** json);

#ifdef __cplusplus
}
#endif

#endif
