/* Continues several texts at once: answer_many MODEL.gguf "Once upon a time" "It was a dark" ... */
#include <kvrun/scheduler.h>
#include <stdio.h>
#include <string.h>

typedef struct answer {
  const char* text;
  char said[2048];
  size_t said_bytes;
} answer;

static int n_open = 0; /* requests that have not ended */

static int token(void* user, uint32_t sequence, int32_t id, const char* text, size_t text_bytes) {
  answer* of = user;
  if (of->said_bytes + text_bytes > sizeof of->said) return 1; /* nonzero: stop */
  memcpy(of->said + of->said_bytes, text, text_bytes);
  of->said_bytes += text_bytes;
  return 0;
}

static void end(void* user, kvrun_status status, const char* message, const kvrun_generate_result* result,
                const char* stats_json) {
  const answer* of = user;
  printf("%s%.*s\n\n", of->text, (int)of->said_bytes, of->said);
  if (status != KVRUN_OK) fprintf(stderr, "kvrun: %s\n", message);
  --n_open;
}

static int ask(kvrun_model* model, kvrun_scheduler* scheduler, answer* one) {
  kvrun_generate_options how;
  kvrun_request_events events = {sizeof events, 0, one, NULL, token, end};
  int32_t ids[4096];
  size_t count = 4096;
  uint64_t request;
  if (strlen(one->text) + 8 > count) return fprintf(stderr, "a text is too long\n"), 1;
  kvrun_generate_options_init(&how);
  how.max_tokens = 64;
  if (kvrun_tokenize(model, one->text, strlen(one->text), KVRUN_ENCODE_BOS_IF_ASKED, ids, &count) ||
      kvrun_scheduler_add(scheduler, ids, count, &how, &events, &request)) {
    return 1;
  }
  return ++n_open, 0;
}

int main(int argc, char** argv) {
  kvrun_model* model = NULL;
  kvrun_engine* engine = NULL;
  kvrun_scheduler* scheduler = NULL;
  kvrun_engine_options on;
  kvrun_scheduler_options with;
  static answer answers[16];
  int failed;
  if (argc < 3 || argc > 18) return fprintf(stderr, "usage: answer_many MODEL TEXT... (up to 16)\n"), 2;
  kvrun_engine_options_init(&on), kvrun_scheduler_options_init(&with);
  with.folder = ""; /* nothing is kept */
  failed = kvrun_model_open(argv[1], &model) || kvrun_engine_create(model, &on, &engine) ||
           kvrun_scheduler_create(engine, &with, &scheduler);
  for (int i = 2; !failed && i < argc; ++i) {
    answers[i - 2].text = argv[i];
    failed = ask(model, scheduler, &answers[i - 2]);
  }
  while (!failed && n_open > 0) failed = kvrun_scheduler_step(scheduler, 100, NULL);
  if (failed) fprintf(stderr, "kvrun: %s\n", kvrun_last_error());
  kvrun_scheduler_destroy(scheduler), kvrun_engine_destroy(engine), kvrun_model_close(model);
  return failed;
}
