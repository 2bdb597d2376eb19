/* kvrun: long-context language models on edge devices. The C API.
 *
 * Objects
 *   kvrun_model: a GGUF file, that is shapes, tokenizer, chat form. Needs no device. Immutable: any thread.
 *   kvrun_engine: a model's weights on a device. Calls from several threads are serialised inside.
 *   kvrun_session: 1..16 independent sequences and their KV cache on an engine. One thread at a time each;
 *   different sessions of one engine may be used from different threads. Callbacks must not use the session
 *   that they are called for.
 * An object must outlive those made from it: model > engine > session.
 *
 * Errors
 *   Functions answer a kvrun_status. On any but KVRUN_OK, kvrun_last_error() gives one message for the
 *   person at the keyboard: what failed, on what, why, what to do. It belongs to the calling thread and is
 *   valid until that thread's next call.
 *
 * Structs
 *   Every options struct begins with struct_size: set it to sizeof (the *_init functions do, and fill in the
 *   defaults), so that later versions can add fields at the end.
 *
 * Strings are UTF-8. Text handed out in JSON form is freed with kvrun_string_free. Functions that free,
 * close or destroy take null.
 */
#ifndef KVRUN_KVRUN_H_
#define KVRUN_KVRUN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVRUN_VERSION_MAJOR 0
#define KVRUN_VERSION_MINOR 1
#define KVRUN_VERSION_PATCH 0

#define KVRUN_MAX_SEQUENCES 16
#define KVRUN_MAX_THREADS 1024

#if defined(__GNUC__)
#define KVRUN_API __attribute__((visibility("default")))
#else
#define KVRUN_API
#endif

typedef enum kvrun_status {
  KVRUN_OK = 0,
  KVRUN_INVALID_ARGUMENT = 1,
  KVRUN_NOT_FOUND = 2,
  KVRUN_CORRUPT = 3,
  KVRUN_UNSUPPORTED = 4,
  KVRUN_OUT_OF_MEMORY = 5,
  KVRUN_CONTEXT_FULL = 6,
  KVRUN_IO_ERROR = 7,
  KVRUN_DEVICE_ERROR = 8,
  KVRUN_CANCELLED = 9,
  KVRUN_INTERNAL_ERROR = 10
} kvrun_status;

typedef struct kvrun_model kvrun_model;
typedef struct kvrun_engine kvrun_engine;
typedef struct kvrun_session kvrun_session;

/* "0.1.0 (glslc ...)": the library's version and the shader compiler it was built with.
 * Valid for the program's life. */
KVRUN_API const char* kvrun_version(void);
KVRUN_API const char* kvrun_last_error(void);
/* Short name of a status, such as "corrupt". */
KVRUN_API const char* kvrun_status_name(kvrun_status status);
KVRUN_API void kvrun_string_free(char* text);

/* What a long call is doing. done and total count bytes while loading, tokens while prefilling and tests
 * while self-testing. Answer nonzero to cancel. Called on the calling thread. */
typedef enum kvrun_phase {
  KVRUN_PHASE_LOAD = 0,
  KVRUN_PHASE_PREFILL = 1,
  KVRUN_PHASE_SELF_TEST = 2,
  KVRUN_PHASE_EVALUATE = 3,
  KVRUN_PHASE_CALIBRATE = 4
} kvrun_phase;
typedef int (*kvrun_progress_fn)(void* user, kvrun_phase phase, uint64_t done, uint64_t total);

/* ---- Devices --------------------------------------------------------------------------------------- */

/* JSON array, one object per device: index, name, kind ("gpu", "integrated", "virtual", "cpu"), api_version
 * (of Vulkan; empty where that is not used), driver, memory_bytes (the largest heap, or the machine's
 * memory), usable, reason (why not usable). Vulkan's devices come first; the CPU itself is the last of them.
 * After it comes an object for each Vulkan driver that is left out, as it crashed or hung: kind is "driver",
 * index null, name the driver's manifest; reason says what happened and how to try it again.
 *
 * A driver is tried before its first use: in a copy of this process (fork), where a crash or a hang costs
 * nothing, while this process has one thread; else in this process. A note in the user's cache folder
 * ($XDG_CACHE_HOME/kvrun/drivers, ~/.cache/kvrun/drivers) says that the trial is in progress; where this
 * process ends meanwhile, the driver is left out by those that come after it. */
KVRUN_API kvrun_status kvrun_devices_json(char** json);

/* For a program's handlers of the user's signals: the process ends because the user wants it to, and no
 * driver that is being tried is to blame. Removes the notes of such trials, and ends those in copies of this
 * process: the call that waits for one answers KVRUN_CANCELLED. May be called in a signal handler. The note
 * of a driver that has exceeded its time (20 seconds for a list of devices) stays. kvrun installs no handler
 * by itself. */
KVRUN_API void kvrun_interrupt_trials(void);

/* Drivers that were left out are tried again, once, by the next call that looks for devices.
 * KVRUN_RETRY_DRIVERS=1 in the environment does the same for a whole process. */
KVRUN_API kvrun_status kvrun_retry_drivers(void);

/* Runs every self-test on the device that `device` names (see kvrun_engine_options; NULL or "" means on all
 * of them; KVRUN_UNSUPPORTED for a pair), the CPU's with each instruction set that the processor has;
 * meanwhile the process's engines on the CPU compute with that one. JSON object: passed (bool), devices:
 * [{name, driver, limits, plan, tests: [{name, passed, detail}]}]. KVRUN_OK if the tests could be run,
 * whatever they found. */
KVRUN_API kvrun_status kvrun_doctor_json(const char* device, kvrun_progress_fn progress, void* user,
                                         char** json);

/* ---- Model ----------------------------------------------------------------------------------------- */

/* A GGUF file, or any part of a model that is split into several (NAME-00001-of-00003.gguf), whose other
 * parts lie beside it. The file stays open, and engines are loaded from it: until kvrun_engine_create has
 * returned it must not be cut or written to, which is KVRUN_CORRUPT there. After that nothing reads it again.
 */
KVRUN_API kvrun_status kvrun_model_open(const char* path, kvrun_model** model);
KVRUN_API void kvrun_model_close(kvrun_model* model);

/* JSON object: architecture, name, file_bytes, files [path], gguf_version, n_layers, n_embd, n_ff, n_heads,
 * n_kv_heads, head_dim, n_vocab, n_ctx_train (at most the sliding window), sliding_window (null: none; kvrun
 * attends to the whole context all the same), rope, tokenizer, chat_form (null if unknown), sampling
 * {temperature, top_k (0: off), top_p, min_p: what the file advises, each null where it does not; where there
 * is any, ignored [..]: advice that cannot be used, and why}, tensor_types {type: count}, parameters,
 * kv_bytes_per_token (f16), kv_bytes (f16, at `context` tokens; 0 = n_ctx_train), context. */
KVRUN_API kvrun_status kvrun_model_info_json(const kvrun_model* model, uint32_t context, char** json);

KVRUN_API uint32_t kvrun_model_vocab_size(const kvrun_model* model);
/* In tokens; at most the sliding window of a model that has one. */
KVRUN_API uint32_t kvrun_model_context_train(const kvrun_model* model);
/* 1 if the model's file asks for a begin-of-sequence token before a text. */
KVRUN_API int kvrun_model_adds_bos(const kvrun_model* model);
KVRUN_API int kvrun_model_is_end_of_generation(const kvrun_model* model, int32_t token);

#define KVRUN_ENCODE_ADD_BOS 1u /* the begin-of-sequence token first, if the model has one */
#define KVRUN_ENCODE_PARSE_SPECIAL                                            \
  2u /* control tokens written in the text are recognised; else none of them, \
        and no end-of-generation token, ever comes of a text */
#define KVRUN_ENCODE_BOS_IF_ASKED 4u /* the begin-of-sequence token first, if the file asks for it */

/* Encodes text_bytes bytes. On entry *count is the room in ids; on return the number of ids of the text.
 * If the room does not suffice nothing is written and the answer is KVRUN_OK all the same: compare *count. */
KVRUN_API kvrun_status kvrun_tokenize(const kvrun_model* model, const char* text, size_t text_bytes,
                                      uint32_t flags, int32_t* ids, size_t* count);

/* How many bytes of a text kvrun_tokenize with these flags does not say, because the vocabulary has no token
 * for them: it leaves them out, or an unknown token stands for them. 0 with most vocabularies, at once. */
KVRUN_API kvrun_status kvrun_count_lost_bytes(const kvrun_model* model, const char* text, size_t text_bytes,
                                              uint32_t flags, uint64_t* lost_bytes);

/* The text of ids. *bytes as *count above; no terminating zero. */
KVRUN_API kvrun_status kvrun_detokenize(const kvrun_model* model, const int32_t* ids, size_t count,
                                        char* text, size_t* bytes);

typedef struct kvrun_chat_message {
  const char* role; /* "system", "user" or "assistant" */
  const char* content;
} kvrun_chat_message;

/* Whether the model thinks before it answers. Only some chat forms have a switch for that (Qwen3's); for the
 * others ON and OFF are KVRUN_UNSUPPORTED. */
typedef enum kvrun_thinking {
  KVRUN_THINKING_DEFAULT = 0, /* as the model's chat template does where nothing is said */
  KVRUN_THINKING_ON = 1,
  KVRUN_THINKING_OFF = 2
} kvrun_thinking;

typedef struct kvrun_chat_options {
  uint32_t struct_size;
  uint32_t continued;     /* nonzero: the messages follow an answer of the assistant that is in the session
                             already, all but the end of its turn, whether or not the model generated one;
                             the ids begin with that end */
  uint32_t parse_special; /* nonzero: control tokens written in messages are obeyed. Only for messages that
                             are trusted */
  kvrun_thinking thinking;
  const char* chat_template; /* instead of the file's: a name of kvrun_chat_template_names, or the text of a
                                Jinja template of one of these forms; NULL: the file's */
} kvrun_chat_options;

KVRUN_API void kvrun_chat_options_init(kvrun_chat_options* options);
KVRUN_API const char* const* kvrun_chat_template_names(void); /* a list that ends in NULL */

/* The ids of messages in the model's chat form, ending where the assistant's answer begins, with a
 * begin-of-sequence token first where the file asks for it (not if continued). ids and *id_count as
 * kvrun_tokenize has them; options NULL: the defaults.
 * Control tokens come from the form alone. What a message holds is text, also where it spells a control
 * token, an end-of-generation token or another token that the form uses. Marks of a form that are no tokens
 * of the vocabulary, such as Llama 2's "[INST]", are text wherever they stand. KVRUN_UNSUPPORTED if the
 * model's form is not known. */
KVRUN_API kvrun_status kvrun_chat_encode(const kvrun_model* model, const kvrun_chat_message* messages,
                                         size_t count, const kvrun_chat_options* options, int32_t* ids,
                                         size_t* id_count);

/* The messages in the model's own chat form as a text, to be looked at, ending where the assistant's answer
 * begins. continued: they follow complete messages. Encoding this text with KVRUN_ENCODE_PARSE_SPECIAL obeys
 * control tokens that are written in the messages: kvrun_chat_encode does not. KVRUN_UNSUPPORTED if the
 * model's form is not known. */
KVRUN_API kvrun_status kvrun_chat_format(const kvrun_model* model, const kvrun_chat_message* messages,
                                         size_t count, int continued, char** text);

/* ---- Engine ---------------------------------------------------------------------------------------- */

typedef struct kvrun_engine_options {
  uint32_t struct_size;
  uint32_t validation; /* nonzero: enable the Vulkan validation layer, if it is installed */
  /* "auto" (or NULL): Vulkan's best device or the CPU itself, whichever computes this model faster; this is
   * measured at first use, kept in the user's cache folder, and said in kvrun_engine_info_json's notes.
   * "gpu": the best GPU; "vulkan": the same, or a Vulkan driver for the CPU where there is no GPU; "cpu" (or
   * "host"): the CPU itself; a part of a device's
   * name; or an index as in kvrun_devices_json. "A+host", where A is a Vulkan device named in one of these
   * ways: A computes prompts, the CPU itself decodes, in one memory that both see; the weights are held
   * twice. */
  const char* device;
  kvrun_progress_fn progress; /* may be NULL */
  void* progress_user;
  uint32_t profile; /* nonzero: time each operation on the device (see kvrun_session_stats_json) */
  /* Of the CPU itself; others do not look at them. */
  uint32_t exact_activations; /* nonzero: products round nothing to 8 bits, attention nothing to 16: slower */
  uint32_t n_threads;         /* at most KVRUN_MAX_THREADS; 0: one for each performance core */
  /* Of "auto": nonzero: devices are measured even where what they do is known. kvrun measures again by itself
   * where an engine saw its device compute 1.6 times as fast or as slow as it was measured. */
  uint32_t remeasure;
} kvrun_engine_options;

KVRUN_API void kvrun_engine_options_init(kvrun_engine_options* options);
KVRUN_API kvrun_status kvrun_engine_create(const kvrun_model* model, const kvrun_engine_options* options,
                                           kvrun_engine** engine);
KVRUN_API void kvrun_engine_destroy(kvrun_engine* engine);
/* JSON object: device, kind, driver, is_cpu, plan, notes [..]. */
KVRUN_API kvrun_status kvrun_engine_info_json(const kvrun_engine* engine, char** json);

/* ---- Session --------------------------------------------------------------------------------------- */

typedef enum kvrun_kv_type { KVRUN_KV_F16 = 0, KVRUN_KV_F32 = 1 } kvrun_kv_type;

/* An option of the KV cache by name. Of two with the same name the later counts.
 *   method       "full": all of it in memory; "flexgen": all of it on flash, read again for every token;
 *                "kvswap": all of it on flash, and each token reads what it is predicted to attend to. The
 *                default is "full" where there is no budget, or where the budget holds all KV of the context,
 *                else "kvswap". A note says where the budget holds it all; a method that is said is kept
 *   budget       memory for all that grows with the context: bytes ("14155776"), with a unit of 1024s
 *                ("13.5M", "13.5MB" and "13.5MiB" are the same; K, M, G), or a share of the f16 KV of the
 *                whole context ("1/13", "8%"). Bytes are never exceeded: too few are KVRUN_OUT_OF_MEMORY. A
 *                share that is too small for "kvswap" or "flexgen", named or chosen, is raised to the least
 *                that works, which a note says. For "full", where it is named, it is refused
 *   type         "f32", "f16", "fp8", "int8", "int4": of both, or K,V ("fp8,int4")
 *   group        consecutive entries that are read as one, up to 256
 *   select       entries that a token reads besides sinks and window
 *   window       newest entries, kept in memory
 *   sinks        first entries, always attended to
 *   reuse        groups per layer that are kept in memory in case they are chosen again, from 1
 *   rank         columns of the index that groups are scored with, from 1
 *   index        its type: "f16", "int8", "int4"
 *   heads        how the heads' scores become one: "sum", "softmax", "gqa", "per-kv-head"
 *   policy       which group to give up: "fifo", "lru", "non-hit"
 *   adapter      a file of adapters for the index; else they are computed from the first prompt
 *   adapter-kind "plain", "centred", "query", "query-centred"
 *   dir          a folder on flash; else the first that can be used of $XDG_CACHE_HOME/kvrun/kv,
 *                ~/.cache/kvrun/kv and /var/tmp/kvrun-UID/kv.
 *                The file in it has no name and is gone with the session
 *   io           "auto" (default), "io_uring", "aio", "threads"
 *   direct       past the page cache: "auto" (default: where it can be), "on", "off"
 *   tmpfs        "on": dir may lie in memory, for tests
 * What is not said is chosen from the budget; what is said and breaks a budget of bytes is an error. */
typedef struct kvrun_option {
  const char* name;
  const char* value;
} kvrun_option;

typedef struct kvrun_session_options {
  uint32_t struct_size;
  uint32_t n_sequences;       /* 1..KVRUN_MAX_SEQUENCES */
  uint32_t n_ctx;             /* tokens per sequence; 0: what the model was trained with, at most 8192 */
  kvrun_kv_type kv_type;      /* F16: unless the method chooses; the option "type" says it instead */
  kvrun_progress_fn progress; /* of prefill; may be NULL */
  void* progress_user;
  const kvrun_option* kv_options; /* [n_kv_options]; read during the call only */
  size_t n_kv_options;
} kvrun_session_options;

KVRUN_API void kvrun_session_options_init(kvrun_session_options* options);

/* KVRUN_OK if there is such an option and it can have this value; else the message says which can. */
KVRUN_API kvrun_status kvrun_kv_option_check(const char* name, const char* value);

/* What a session with these options would make of its budget, before anything is loaded; KVRUN_OUT_OF_MEMORY
 * or KVRUN_INVALID_ARGUMENT where it cannot be had, with a message that says what could. JSON object: line
 * (one for people), method, full_bytes (f16 KV of the whole context, all sequences), budget_bytes (null:
 * none; of a share that was raised, what it was raised to), prefill_bytes and decode_bytes (in memory, of the
 * budget), parts [{name, bytes, prefill, decode: whether it is there in this phase}, the largest first], and,
 * counted as the options are, group, select, window, sinks, reuse, rank (0: no index), index, heads, policy,
 * k_type, v_type, adapter_kind (null where there is none), notes [..] (one where the context is longer than
 * what the model was trained with). A file of adapters is read to see that it suits; the folder for KV is not
 * made. The group that kvswap takes where none is given depends on the storage under that folder, which is
 * measured at first use, 0.1 to 0.4 seconds on flash, and kept in the user's cache folder; a note says where
 * it is not 4. */
KVRUN_API kvrun_status kvrun_kv_plan_json(const kvrun_model* model, const kvrun_session_options* options,
                                          char** json);

typedef struct kvrun_config_options {
  uint32_t struct_size;
  uint32_t n_sequences; /* as the session's */
  uint32_t n_ctx;       /* as the session's */
  uint32_t force;       /* nonzero: what would be refused is a note */
  const char* kv_dir;   /* as the option "dir"; NULL: its default */
} kvrun_config_options;

KVRUN_API void kvrun_config_options_init(kvrun_config_options* options);

/* Reads a config, which `kvadapt tune` writes (docs/config.md), and takes from it what it has for a session
 * of n_sequences and n_ctx. KVRUN_UNSUPPORTED where it is of another model, or of another device than
 * `engine`'s; engine NULL: the device is not compared, as before loading. JSON object: kv_options [{name,
 * value}], to be given to kvrun_session_create as kvrun_option, followed by the caller's own, of which the
 * later counts; exact (bool: it has a solution for these n_sequences and n_ctx; else the nearest was taken),
 * solution {batch, ctx, budget_bytes, predicted_ms, measured_ms, kl, bound: null where the config does not
 * say}, notes [..] (what differs from where it was tuned, and which solution was taken if not an exact one).
 *
 *   kvrun_config_json("kvrun.toml", model, NULL, &options, &json)      before loading: what will be taken
 *   kvrun_engine_create(model, &engine_options, &engine)
 *   kvrun_config_json("kvrun.toml", model, engine, &options, &json)    refused where the device is another
 *   session_options.kv_options = .., session_options.n_kv_options = ..
 *   kvrun_session_create(engine, &session_options, &session)           with the same n_sequences and n_ctx */
KVRUN_API kvrun_status kvrun_config_json(const char* path, const kvrun_model* model,
                                         const kvrun_engine* engine, const kvrun_config_options* options,
                                         char** json);

KVRUN_API kvrun_status kvrun_session_create(kvrun_engine* engine, const kvrun_session_options* options,
                                            kvrun_session** session);
KVRUN_API void kvrun_session_destroy(kvrun_session* session);
KVRUN_API uint32_t kvrun_session_context(const kvrun_session* session);
/* Tokens whose KV is computed: the last generated token is not counted until the sequence is fed or generated
 * again. */
KVRUN_API uint32_t kvrun_session_length(const kvrun_session* session, uint32_t sequence);
/* Forgets a sequence's tokens from position `length` on, and a generated token that is not computed yet.
 * KVRUN_INVALID_ARGUMENT if the sequence is shorter. */
KVRUN_API kvrun_status kvrun_session_truncate(kvrun_session* session, uint32_t sequence, uint32_t length);

/* Appends ids to a sequence and computes their KV. Nothing is appended on KVRUN_CONTEXT_FULL or
 * KVRUN_INVALID_ARGUMENT; on KVRUN_CANCELLED the chunks that were finished stay. count 0 computes a generated
 * token that is not computed yet, and nothing else. */
KVRUN_API kvrun_status kvrun_session_feed(kvrun_session* session, uint32_t sequence, const int32_t* ids,
                                          size_t count);

/* Logits of `rows` consecutive positions, the first of which is `position` in the sequence: float
 * [rows, vocab_size], valid during the call. Answer nonzero to cancel. */
typedef int (*kvrun_logits_fn)(void* user, uint32_t position, uint32_t rows, const float* logits);

/* Like feed, and hands out the raw logits of the last `last` of these positions (0: of all), in order. */
KVRUN_API kvrun_status kvrun_session_feed_logits(kvrun_session* session, uint32_t sequence,
                                                 const int32_t* ids, size_t count, size_t last,
                                                 kvrun_logits_fn logits, void* user);

#define KVRUN_MAX_LOGPROBS 20

/* A token and the natural logarithm of its probability, 0 or less. */
typedef struct kvrun_token_logprob {
  int32_t token;
  float logprob;
} kvrun_token_logprob;

/* What the model alone says of a step: by its raw logits, before penalties, temperature and all else that
 * sampling does. `taken` is the token that was taken; likeliest [n], the likeliest first (of equal ones the
 * lower id), n being n_logprobs or the vocabulary's size. Called on the calling thread right before the
 * kvrun_token_fn of that token; valid during the call. */
typedef void (*kvrun_logprobs_fn)(void* user, uint32_t sequence, kvrun_token_logprob taken,
                                  const kvrun_token_logprob* likeliest, size_t n);

typedef struct kvrun_generate_options {
  uint32_t struct_size;
  uint32_t max_tokens;      /* per sequence; 0: until the context is full */
  float temperature;        /* 0: greedy */
  uint32_t top_k;           /* 0: off */
  float top_p;              /* 1: off */
  float min_p;              /* 0: off */
  float repetition_penalty; /* 1: off; over the last repetition_window tokens, prompt included */
  uint32_t repetition_window;
  uint64_t seed;
  const char* const* stop; /* strings that end generation and are not part of the text */
  size_t n_stop;
  uint32_t ignore_end; /* nonzero: go on after end-of-generation tokens (benchmarks) */
  uint32_t reserved;   /* not read: it was padding in earlier versions */
  /* Taken off the logit of a token that was generated since the sequence was fed last and is among its last
   * repetition_window tokens: presence_penalty once, frequency_penalty for each time that it is there. From
   * -100 to 100; 0: off. After the repetition penalty. */
  float presence_penalty;
  float frequency_penalty;
  uint32_t n_logprobs;        /* up to KVRUN_MAX_LOGPROBS; 0: `logprobs` is not called */
  kvrun_logprobs_fn logprobs; /* not NULL unless n_logprobs is 0 */
  void* logprobs_user;
} kvrun_generate_options;

typedef enum kvrun_finish {
  KVRUN_FINISH_LENGTH = 0,       /* max_tokens reached */
  KVRUN_FINISH_END = 1,          /* the model ended */
  KVRUN_FINISH_STOP = 2,         /* a stop string */
  KVRUN_FINISH_CONTEXT_FULL = 3, /* no room for another token */
  KVRUN_FINISH_CANCELLED = 4     /* the callback asked to stop */
} kvrun_finish;

/* Called on the calling thread for each generated token, the end-of-generation token excluded. text is the
 * part of the answer that became certain: whole UTF-8 characters, possibly none (text_bytes 0), and never a
 * part of a stop string. With token < 0 it is only text that was held back (at the end). Answer nonzero to
 * cancel. */
typedef int (*kvrun_token_fn)(void* user, uint32_t sequence, int32_t token, const char* text,
                              size_t text_bytes);

typedef struct kvrun_generate_result {
  uint32_t n_tokens; /* generated, the end-of-generation token excluded */
  kvrun_finish finish;
} kvrun_generate_result;

KVRUN_API void kvrun_generate_options_init(kvrun_generate_options* options);

/* Continues `n` sequences, each fed with at least one token before, together: one step of the device computes
 * the next token of all of them. results: [n], may be NULL. Each generated token but the last of a sequence
 * is part of its context afterwards; the last is appended too when the sequence is fed or generated again.
 * KVRUN_OK also when the callback cancels: results then read KVRUN_FINISH_CANCELLED. */
KVRUN_API kvrun_status kvrun_session_generate(kvrun_session* session, const uint32_t* sequences, size_t n,
                                              const kvrun_generate_options* options, kvrun_token_fn token,
                                              void* user, kvrun_generate_result* results);

/* JSON object: prefill_tokens, prefill_ms, prefill_tps, decode_tokens, decode_ms, decode_tps, ttft_ms, memory
 * {weights, kv, activations, staging, total: bytes}, operations [{name, count, ms}] with profile, notes [..].
 * Where KV is kept in records (any method but "full"; "full" in types other than f16 and f32) also kv:
 * method, full_bytes, budget_bytes, prefill_bytes, decode_bytes, parts (these as kvrun_kv_plan_json); of
 * decoding: chosen_groups (sinks not counted), hit_rate (of them, those in memory already),
 * stall_ms_per_token (the device waited for flash), io_hidden (0..1, the share of reading that it did not
 * wait for), with profile layers [{loads, ms}]; of prefill and decoding: io_mode ("io_uring direct"),
 * io_notes [..], reads, read_bytes, records_read_again (bad at first), mean_read_bytes, read_mbps (10^6
 * bytes/s, while reading), bytes_written. What nothing was counted for is null. Counters run since the
 * session was created or kvrun_session_stats_reset. */
KVRUN_API kvrun_status kvrun_session_stats_json(const kvrun_session* session, char** json);
KVRUN_API void kvrun_session_stats_reset(kvrun_session* session);

/* ---- Evaluation ------------------------------------------------------------------------------------ */

/* The JSON object of one configuration, as soon as it is known; valid during the call. */
typedef void (*kvrun_eval_result_fn)(void* user, const char* json);

typedef struct kvrun_eval_options {
  uint32_t struct_size;
  uint32_t n_ctx;   /* ids that are used */
  uint32_t n_steps; /* of these, the last are fed one by one */
  /* Each a line of options as on the command line, "--kv-method kvswap --kv-budget 1/13"; a value
     with blanks in it stands between double quotes. */
  const char* const* configs;
  size_t n_configs;
  kvrun_progress_fn progress; /* in tokens, of the prefill and then of each configuration; may be NULL */
  void* progress_user;
  kvrun_eval_result_fn result; /* may be NULL */
  void* result_user;
} kvrun_eval_options;

KVRUN_API void kvrun_eval_options_init(kvrun_eval_options* options);

/* What KV methods cost in quality. Prefills ids[0, n_ctx - n_steps) once, then feeds the next n_steps one by
 * one with all KV in memory (f16), and with each configuration. JSON array, an object for each: config, ppl
 * and ppl_full (perplexity of the method and of full on the ids that follow), kl_mean (KL(full || method),
 * nats), top1_agreement, recall (of one step in eight: the share of the exact attention, by full's keys, that
 * lies on the attended entries; mean over query heads, layers, steps), recall_oracle, recall_recent and
 * recall_random (of as many groups chosen by the exact attention, of as many of the newest entries, of as
 * many groups by chance), hit_rate, decode_tps, decode_tps_full, kv (as in kvrun_session_stats_json), notes
 * [..] (as in kvrun_kv_plan_json); or config and error. */
KVRUN_API kvrun_status kvrun_eval_json(kvrun_engine* engine, const kvrun_eval_options* options,
                                       const int32_t* ids, size_t count, char** json);

/* ---- Calibration: adapters from texts -------------------------------------------------------------- */

typedef struct kvrun_calibrate_options {
  uint32_t struct_size;
  const char* kind;            /* plain, centred, query, query-centred; NULL: query-centred */
  uint32_t rank;               /* columns that the file holds; 0: all that there are, at most 256 */
  uint32_t n_ctx;              /* texts are cut into pieces of at most so many tokens; 0: chosen */
  const int32_t* const* texts; /* [n_texts], each of counts[i] ids */
  const size_t* counts;
  size_t n_texts;
  kvrun_progress_fn progress; /* in tokens; may be NULL */
  void* progress_user;
  const char* checkpoint;   /* a file that keeps sums until `path` is written, so that an interrupted call can
                               be continued by the same call; another kind of file of that name is refused, and
                               so is what was left by a call with other texts, n_ctx or model; NULL: none */
  const char* sums;         /* a file for the sums that adapters are computed from; NULL: none */
  uint32_t restart;         /* nonzero: begins anew, and replaces `checkpoint`, whatever it holds */
  uint32_t checkpoint_ms;   /* at least so long from one writing of `checkpoint` to the next; 0: 30000 */
  uint32_t keep_checkpoint; /* nonzero: `checkpoint` is there in the end too, with all sums, for a caller who
                               does more with the adapter, and removes it when that is done: the same call
                               makes the same adapter from it at once */
} kvrun_calibrate_options;

KVRUN_API void kvrun_calibrate_options_init(kvrun_calibrate_options* options);

/* Computes each layer's adapter (KVSwap, section 3.2) from the model's keys and queries on these texts and
 * writes them to `path` (docs/formats/adapter.md); that, `checkpoint` and `sums` are three files, and none is
 * a file of the model, which is KVRUN_INVALID_ARGUMENT. Nothing is written on an error, but for `checkpoint`,
 * which holds the pieces that are done (docs/formats/sums.md), and is removed when all is, unless it is to be
 * kept. json, which may be NULL: an object with kind, rank, n_tokens, n_pieces, resumed_tokens (that were in
 * the checkpoint), notes [text], fingerprint, layers [{energy: [of columns 0..i, by i]}]. */
KVRUN_API kvrun_status kvrun_calibrate(kvrun_engine* engine, const kvrun_calibrate_options* options,
                                       const char* path, char** json);

/* What that call would begin with. JSON object: resumed_tokens, n_tokens, note (for people: what the
 * checkpoint is used for, or why it is not; empty where there is none). An error where that call would refuse
 * the checkpoint. */
KVRUN_API kvrun_status kvrun_calibrate_checkpoint_json(kvrun_engine* engine,
                                                       const kvrun_calibrate_options* options, char** json);

/* ---- Reuse rates: how often a selected group is in memory already ----------------------------------- */

typedef struct kvrun_reuse_options {
  uint32_t struct_size;
  uint32_t n_ctx;             /* ids that are used, at most; 0: chosen, at most 8192 */
  const char* folder;         /* the KV lies in it meanwhile; NULL: as kvrun_option "dir" */
  uint32_t allow_tmpfs;       /* nonzero: a folder in memory will do */
  kvrun_progress_fn progress; /* in tokens; may be NULL */
  void* progress_user;
} kvrun_reuse_options;

KVRUN_API void kvrun_reuse_options_init(kvrun_reuse_options* options);

/* Measures how often a group that was chosen with this adapter is in the reuse buffer already, by the
 * buffer's capacity (KVSwap, appendix A.1), and puts the table into the adapter's file in place of an earlier
 * one; the file is as it was on an error. Reads the first of these ids at once and decodes the last of those,
 * for several sizes of groups and numbers of selected entries. json, which may be NULL: an object with n_ctx
 * (ids that were used), n_steps (of these the last, which are counted), rank (of the selection), note (where
 * there are no rates: why) and rates [{policy, group, select (entries), ctx (tokens before the counted ones),
 * capacity (groups per layer, sinks not counted), rate (0..1)}]. */
KVRUN_API kvrun_status kvrun_measure_reuse(kvrun_engine* engine, const kvrun_reuse_options* options,
                                           const char* adapter_path, const int32_t* ids, size_t count,
                                           char** json);

/* ---- Benchmarks -------------------------------------------------------------------------------------- */

/* A model of a named shape with random weights: SmolLM2-135M, Llama-3.2-1B, Llama-3.1-8B. n_layers 0: the
 * shape's own number, but 4 of Llama-3.1-8B's 32. Of fewer layers than the shape has, a benchmark tells the
 * whole model's rates too (kvrun_bench_json). The weights lie in a nameless file in the folder that
 * kvrun_option "dir" has by default; there is no tokenizer. The names are known to kvrun_shape_names, a list
 * that ends in NULL. */
KVRUN_API kvrun_status kvrun_model_make(const char* shape, uint32_t n_layers, kvrun_model** model);
KVRUN_API const char* const* kvrun_shape_names(void);

typedef struct kvrun_bench_options {
  uint32_t struct_size;
  const char* kv;         /* "--kv-method kvswap --kv-budget 1/13"; NULL: full */
  const uint32_t* depths; /* [n_depths]: tokens that are there before the measured ones */
  size_t n_depths;
  uint32_t n_prompt;      /* of one sequence, prefilled from an empty context, timed; 0: none */
  uint32_t n_decode;      /* decoded at each depth, timed; 0: none */
  uint32_t n_sequences;   /* decoded together; 0: 1 */
  uint32_t n_repetitions; /* 0: 3 */
  uint32_t fill_random;   /* nonzero: the KV at a depth is random, not prefilled */
  float hit_rate;   /* with fill_random: this share of a step's groups were chosen by the last one too */
  uint32_t io_only; /* nonzero: also repeats the reads of the last run, without computing */
  kvrun_progress_fn progress; /* in tokens; may be NULL */
  void* progress_user;
} kvrun_bench_options;

KVRUN_API void kvrun_bench_options_init(kvrun_bench_options* options);

/* Each depth has a session of its own, with as much context as it needs. JSON array, an object per depth:
 * depth, n_layers (that were timed), n_layers_model (that the model has: more, where kvrun_model_make made a
 * part of it), prefill_tps and decode_tps (medians, null where nothing was measured), prefill_tps_runs and
 * decode_tps_runs [..], hit_rate, io_hidden, stall_ms_per_token, kv and memory (as in
 * kvrun_session_stats_json, of the last run), notes [..] (as in kvrun_kv_plan_json), operations [{name,
 * per_token, ms_per_token}] of the last run that decoded, with the engine's profile, and with io_only io
 * {reads, bytes, fetches (a layer's reads of one stream; the next begins when they are done), mbps (10^6
 * bytes/s of the time it took)}. Where decoding was measured, weights {step_bytes (of all that a step
 * multiplies with), mbps (those, at the median rate), stream_mbps (what the device reaches that only reads as
 * much from memory, in the same run)}. Where a part
 * of the layers was timed, 2 or more, whole_model {n_layers, prefill_tps, decode_tps, prefill_tps_runs,
 * decode_tps_runs}: half as many layers take turns with them, and what the difference says of layers is
 * scaled to all of them; all other keys are of the part. part_note is there
 * where people should know more of it. */
KVRUN_API kvrun_status kvrun_bench_json(kvrun_engine* engine, const kvrun_bench_options* options,
                                        char** json);

#ifdef __cplusplus
}
#endif

#endif /* KVRUN_KVRUN_H_ */
