/* libskipdec generates text with a skipdec bundle from C. skipdec.hpp is its C++ interface.
 *
 * Opening a bundle starts an engine: one thread that runs all requests in one batch. Each request
 * runs only the layers that its exit schedule names (SkipDecode, arXiv 2307.02628), and batching
 * never changes its output.
 *
 *   skipdec_engine* engine;
 *   if (skipdec_engine_open("opt-1.3b-int8", NULL, &engine) != SKIPDEC_OK)
 *     return fputs(skipdec_last_error(), stderr), 1;
 *   skipdec_params params;
 *   skipdec_params_init(&params, sizeof params);
 *   params.max_tokens = 32;
 *   skipdec_request* request;
 *   skipdec_submit_text(engine, "The capital of France is", &params, &request);
 *   const skipdec_delta* delta;
 *   while (skipdec_request_next(request, -1, &delta) == SKIPDEC_OK) fputs(delta->text, stdout);
 *   skipdec_request_release(request);
 *   skipdec_engine_close(engine);
 *
 * Threads: you may call every function from any thread unless its comment restricts that.
 * Errors: functions that can fail return a status; skipdec_last_error() returns the message of the
 *   calling thread's last failure.
 * Ownership: the library owns everything that a function returns; the comment names the object
 *   whose lifetime it shares. Strings are UTF-8 and end with a zero byte.
 * Forks: threads do not survive a fork. In a child, functions refuse the engines and requests of
 *   its parent with SKIPDEC_USAGE, except those that read immutable data: an engine's facts, its
 *   tokenizer, a request's prompt and schedule. Releasing them does nothing. A child can open an
 *   engine only if its parent had none open when it forked.
 * Structs: structs that the caller owns begin with their size. If the library knows more fields
 *   than the caller, it uses their defaults. The *_init functions write size and defaults. Structs
 *   that the library owns may grow at their end.
 */
#ifndef SKIPDEC_H
#define SKIPDEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SKIPDEC_API __attribute__((visibility("default")))
#else
#define SKIPDEC_API
#endif

/* Increases when something is added. A program runs with any library whose version is at least that
 * of the header with which it was compiled. */
#define SKIPDEC_ABI_VERSION 4

typedef enum skipdec_status {
  SKIPDEC_OK = 0,
  SKIPDEC_USAGE = 1,       /* an argument is not allowed */
  SKIPDEC_BUNDLE = 2,      /* the bundle is damaged, incomplete or of another format version */
  SKIPDEC_SCHEDULE = 3,    /* the exit schedule is invalid or does not fit the bundle */
  SKIPDEC_CAPACITY = 4,    /* not enough rows, positions or KV memory */
  SKIPDEC_ENVIRONMENT = 5, /* this machine lacks something, e.g. ONNX Runtime */
  SKIPDEC_CLOSED = 6,      /* the engine was closed */
  SKIPDEC_ENGINE = 7,      /* an engine failed, or its logits are not finite */
  SKIPDEC_MEMORY = 8,      /* memory ran out */
  SKIPDEC_BUSY = 9,        /* too many requests are waiting; retry later */
  SKIPDEC_TIMEOUT = 10,    /* the timeout expired */
  SKIPDEC_INTERNAL = 11,   /* a bug */
  SKIPDEC_END = 12         /* the request has ended; no more deltas follow */
} skipdec_status;

typedef struct skipdec_engine skipdec_engine;
typedef struct skipdec_request skipdec_request;
typedef struct skipdec_score skipdec_score;

/* ---- the library ---- */

/* Returns the SKIPDEC_ABI_VERSION of the library, not of the header. */
SKIPDEC_API uint32_t skipdec_abi_version(void);
/* Returns the library's version, e.g. "0.1.0". */
SKIPDEC_API const char* skipdec_version(void);
/* Returns the message of this thread's last failed call, or "" if none failed. The message is valid
 * until the thread's next call. */
SKIPDEC_API const char* skipdec_last_error(void);
/* Returns the name of a status, e.g. "bundle". */
SKIPDEC_API const char* skipdec_status_name(skipdec_status status);

/* ---- engines ---- */

typedef enum skipdec_verify {
  SKIPDEC_VERIFY_FULL = 0,  /* hash every file */
  SKIPDEC_VERIFY_GRAPHS = 1 /* hash all files but weights, whose sizes are compared */
} skipdec_verify;

typedef enum skipdec_weights {
  SKIPDEC_WEIGHTS_MAPPED = 0, /* map the files; processes share the pages */
  SKIPDEC_WEIGHTS_COPIED = 1  /* copy them to memory of this process, in huge pages if available */
} skipdec_weights;

/* Which clients reuse a cached prompt prefix. From the time to first token, a client that shares
 * prefixes can learn what others sent. */
typedef enum skipdec_prefix_cache {
  SKIPDEC_PREFIX_CACHE_OFF = 0,    /* cache no prefixes */
  SKIPDEC_PREFIX_CACHE_SHARED = 1, /* share them among all clients */
  SKIPDEC_PREFIX_CACHE_CLIENT = 2  /* share them only within a client, see skipdec_params */
} skipdec_prefix_cache;

typedef struct skipdec_options {
  size_t size;
  const char* schedule;       /* default of all requests, see skipdec_params; NULL: the bundle's */
  int32_t threads;            /* size of the process-wide pool; 0: all processors available to it */
  int32_t max_batch_size;     /* rows that run together; default 8 */
  uint64_t kv_memory;         /* bytes for KV caches; 0: half of the available memory */
  int32_t raw_prompts;        /* 1: do not wrap texts in the bundle's prompt template */
  int32_t verify;             /* a skipdec_verify; default SKIPDEC_VERIFY_FULL */
  int32_t weights;            /* a skipdec_weights; default SKIPDEC_WEIGHTS_MAPPED */
  int32_t max_waiting;        /* maximum number of waiting requests; default 256 */
  int32_t max_prefill_tokens; /* per prompt call; default 2048 */
  int64_t max_model_len;      /* positions per request, prompt and text; 0: the model's */
  const char* admission;      /* "fcfs" or "gang:min_free=2,hold_ms=8"; NULL: fcfs */
  int32_t prefix_cache;       /* a skipdec_prefix_cache; default SKIPDEC_PREFIX_CACHE_SHARED */
  const char* onnxruntime;    /* path of libonnxruntime; NULL: search for it */
  /* Drafts: guesses of the next tokens, of which one pass checks several. They change no text.
   * "own" (from texts of this engine), "lookup" (from the request's own text), "ends:3" (3 of the
   * layers), "trained" (the bundle's draft layer), "own+ends:3" (in this order), "own,tokens=4"
   * (with limits), "auto" (what the bundle recommends), NULL or "off" (none). See docs/cpp.md. */
  const char* draft;
} skipdec_options;

/* Writes ``size``, which is sizeof(skipdec_options), and the defaults into ``options``. */
SKIPDEC_API void skipdec_options_init(skipdec_options* options, size_t size);

/* Opens the bundle at ``path`` and starts the engine's thread. ``options`` may be NULL for
 * defaults. On success the caller owns ``*engine`` and closes it with skipdec_engine_close. */
SKIPDEC_API skipdec_status skipdec_engine_open(const char* path, const skipdec_options* options,
                                               skipdec_engine** engine);

/* Refuses new requests and waits for the existing ones to end, at most ``timeout`` seconds
 * (negative: without limit). Returns SKIPDEC_TIMEOUT if some have not ended, and SKIPDEC_USAGE in a
 * callback. */
SKIPDEC_API skipdec_status skipdec_engine_drain(skipdec_engine* engine, double timeout);

/* Waits for the current step, ends all requests and frees the engine. Callbacks get a last delta
 * for each completion, with finish_reason "abort" and stop_reason "closed"; other calls for those
 * requests return SKIPDEC_CLOSED. Requests stay readable until they are released. Drains and scores
 * that wait in other threads end. As before free(), all other calls with ``engine`` must have
 * returned, and only callbacks may begin one. ``engine`` may be NULL. Returns SKIPDEC_USAGE in a
 * callback. */
SKIPDEC_API skipdec_status skipdec_engine_close(skipdec_engine* engine);

/* Describes an open bundle. Valid until the engine is closed. */
typedef struct skipdec_info {
  const char* model;       /* the model's name */
  const char* description; /* the backend, e.g. "ONNX Runtime 1.31.0, skipdec avx512vnni" */
  const char* schedule;    /* full text of the default schedule */
  const char* draft;       /* full text of the drafts, which auto chose; "" if there are none */
  int64_t num_layers, hidden_size, vocab_size, max_model_len;
  int64_t eos_token_id;     /* -1: none */
  int32_t has_tokenizer;    /* 0: prompts must be token ids, see no_tokenizer */
  const char* no_tokenizer; /* why there is no tokenizer; "" if there is one */
  const char* warning;      /* e.g. that the model was not tuned to skip layers; "" if none */
} skipdec_info;

/* Points ``*info`` to the description of the bundle. */
SKIPDEC_API skipdec_status skipdec_engine_info(skipdec_engine* engine, const skipdec_info** info);

typedef struct skipdec_stats {
  size_t size;                                       /* the caller's sizeof(skipdec_stats) */
  int64_t running, waiting;                          /* running rows; waiting requests */
  int64_t submitted, finished, aborted, failed;      /* requests, and scored texts */
  int64_t reserved_bytes, prefix_bytes, limit_bytes; /* KV memory */
  int64_t prompt_tokens, prefix_tokens, generated_tokens;
  int64_t steps, step_rows, layer_calls, layer_rows; /* totals over decode steps */
  double prefill_seconds, decode_seconds, sampling_seconds, scoring_seconds;
  int64_t draft_steps;           /* calls of layers that drafted */
  int64_t draft_tokens;          /* guesses that passes checked */
  int64_t accepted_draft_tokens; /* guesses that were right */
  double draft_seconds;          /* part of decode_seconds spent on drafts before their passes */
  int64_t drafting;              /* guesses per row and pass now; 0: none */
} skipdec_stats;

/* Writes the current figures into ``stats``, whose size the caller has set. */
SKIPDEC_API skipdec_status skipdec_engine_stats(skipdec_engine* engine, skipdec_stats* stats);

/* ---- requests ---- */

typedef struct skipdec_logprob {
  int64_t token_id;
  double logprob;
  int64_t rank; /* 1 is the most probable token */
} skipdec_logprob;

typedef struct skipdec_delta {
  int64_t index;            /* index of the completion in its request, 0 … n-1 */
  const int64_t* token_ids; /* [num_tokens], which is 0 or 1 */
  size_t num_tokens;
  const char* text; /* complete characters; "" while a character or stop string is incomplete */
  size_t num_bytes; /* length of text, which may hold zero bytes */
  const char* finish_reason;       /* "stop", "length", "abort" or "error"; NULL while it runs */
  const char* stop_reason;         /* the stop string or the error; NULL: none */
  int64_t stop_token_id;           /* the stop token; -1: none */
  int64_t layers;                  /* number of decoder layers that the token ran */
  const skipdec_logprob* logprobs; /* [num_logprobs], chosen token first; or NULL */
  size_t num_logprobs;
  int32_t drafted; /* 1: the token is a right guess, after which the completion continued */
} skipdec_delta;

/* Receives each delta of a request, in order, on the engine's thread, which waits for it.
 * ``delta`` and its pointers are valid until the callback returns. The last delta of each
 * completion has a finish_reason ("error" if the engine failed, "abort" if it was closed) and comes
 * exactly once, unless the request is released earlier. A return value other than 0 cancels the
 * request.
 *
 * A callback may submit, cancel and release requests, including its own, and poll any request (with
 * a timeout of 0). Waiting for a request of this engine, scoring, draining and closing it return
 * SKIPDEC_USAGE. If a C++ callback throws, only its request ends, with finish_reason "error" and
 * the exception's message as its stop_reason. A callback must not end its thread or call longjmp.
 */
typedef int (*skipdec_callback)(void* user_data, const skipdec_delta* delta);

typedef struct skipdec_params {
  size_t size;
  int64_t max_tokens; /* default 16; 0: up to the last position */
  /* The next five are unset by default: NaN, and INT64_MIN for top_k. Unset ones take the bundle's
   * defaults, or else 1, 0, 1, 0 and 1. */
  double temperature;        /* 0: the most probable token */
  int64_t top_k;             /* 0: off */
  double top_p;              /* 1: off */
  double min_p;              /* 0: off */
  double repetition_penalty; /* 1: off */
  double presence_penalty;   /* default 0: off */
  double frequency_penalty;  /* default 0: off */
  int32_t has_seed;          /* 1: use `seed`; 0: use fresh entropy */
  uint64_t seed;             /* equal seeds give equal texts */
  int64_t n;                 /* number of completions; default 1 */
  int64_t min_tokens;        /* tokens before anything may stop the text; default 0 */
  const char* const* stop;   /* [num_stop] strings that end the text */
  size_t num_stop;
  const int64_t* stop_token_ids; /* [num_stop_token_ids] */
  size_t num_stop_token_ids;
  int32_t ignore_eos;
  int32_t include_stop_str_in_output;
  int32_t skip_special_tokens; /* default 1 */
  int64_t logprobs;            /* most probable tokens to report beside the chosen one; -1: none */
  /* "full", "2x", "4x:horizon=64", JSON as `skipdec schedule show --json` prints it,
   * or a path that ends in .json; NULL: the engine's default. */
  const char* schedule;
  /* Seconds from now after which the request ends with "abort"; negative: at once; 0: never. */
  double deadline;
  skipdec_callback callback; /* NULL: the caller uses skipdec_request_next */
  void* user_data;           /* passed to the callback; not copied */
  const char* client; /* name of the caller; clients take turns, one request each; NULL: none */
  const char* draft;  /* "off": no drafts for this request; NULL: the engine's drafts */
  /* 1: texts are chats that the bundle's template has rendered. They get neither a prompt template
   * nor special tokens, which the chat template writes. */
  int32_t rendered_chat;
} skipdec_params;

/* Writes ``size``, which is sizeof(skipdec_params), and the defaults into ``params``. */
SKIPDEC_API void skipdec_params_init(skipdec_params* params, size_t size);

/* Checks a request and queues it. ``params`` may be NULL for defaults; what it points to is copied,
 * except ``user_data``. On success the caller owns ``*request`` and releases it; else it is NULL.
 * Returns SKIPDEC_BUSY if max_waiting requests already wait. */
SKIPDEC_API skipdec_status skipdec_submit_text(skipdec_engine* engine, const char* prompt,
                                               const skipdec_params* params,
                                               skipdec_request** request);
SKIPDEC_API skipdec_status skipdec_submit_tokens(skipdec_engine* engine, const int64_t* token_ids,
                                                 size_t num_tokens, const skipdec_params* params,
                                                 skipdec_request** request);

typedef struct skipdec_prompt {
  const char* text; /* NULL: use token_ids */
  const int64_t* token_ids;
  size_t num_tokens; /* number of token_ids */
} skipdec_prompt;

/* Queues ``count`` requests, or none if one is refused. They are admitted together as far as they
 * fit, so that their prompts share calls. ``requests`` must have room for ``count`` handles, which
 * the caller then owns; all requests share the callback and its ``user_data``. On failure
 * ``requests`` holds no handles: each is NULL or as it was before the call. */
SKIPDEC_API skipdec_status skipdec_submit_many(skipdec_engine* engine,
                                               const skipdec_prompt* prompts, size_t count,
                                               const skipdec_params* params,
                                               skipdec_request** requests);

/* Returns the next delta of any completion of the request, waiting at most ``timeout`` seconds
 * (negative: without limit; 0: a poll). Returns SKIPDEC_END after the last delta, SKIPDEC_TIMEOUT
 * if none came in time, SKIPDEC_CLOSED if the engine was closed, SKIPDEC_ENGINE if it failed
 * permanently, and SKIPDEC_USAGE if a callback of this engine calls it with a timeout other than 0.
 * ``delta`` and what it points to are valid until the next call for this request. Only one thread
 * at a time may call it for a request. */
SKIPDEC_API skipdec_status skipdec_request_next(skipdec_request* request, double timeout,
                                                const skipdec_delta** delta);

/* Waits for all completions to end, at most ``timeout`` seconds. Returns SKIPDEC_OK, or the error
 * that skipdec_request_next would return. */
SKIPDEC_API skipdec_status skipdec_request_wait(skipdec_request* request, double timeout);

/* Ends the request with finish_reason "abort" before the next step. Does nothing if it has ended.
 */
SKIPDEC_API skipdec_status skipdec_request_cancel(skipdec_request* request);

typedef struct skipdec_completion {
  const char* text;         /* the whole text; pointers are valid until the request is released */
  size_t num_bytes;         /* length of text, which may hold zero bytes */
  const int64_t* token_ids; /* [num_tokens] */
  const int64_t* layers;    /* [num_tokens] number of decoder layers that each token ran */
  size_t num_tokens;
  const char* finish_reason; /* "stop", "length", "abort" or "error" */
  const char* stop_reason;   /* see skipdec_delta */
  int64_t stop_token_id;
  const skipdec_logprob* logprobs; /* those of all tokens, concatenated; NULL unless requested */
  const size_t* logprobs_ends;     /* [num_tokens] end of each token's part in logprobs */
  double time_to_first_token;      /* seconds from submission */
  double seconds;                  /* seconds from the first token to the last */
  const double* token_seconds;     /* [num_tokens] seconds from submission to each token */
  int64_t passes;                  /* decode steps in which it took part, except a failed one */
  int64_t drafted;                 /* guesses that those steps checked; 0 without drafts */
  int64_t accepted;                /* right guesses; these steps gave passes + accepted tokens */
} skipdec_completion;

/* Returns completion ``index`` of a request that has ended; SKIPDEC_USAGE if it is still running.
 */
SKIPDEC_API skipdec_status skipdec_request_completion(skipdec_request* request, int64_t index,
                                                      const skipdec_completion** completion);
/* Returns the prompt's token ids, which are valid until the request is released. */
SKIPDEC_API skipdec_status skipdec_request_prompt(skipdec_request* request,
                                                  const int64_t** token_ids, size_t* num_tokens);
/* Returns the full text of the request's schedule, valid until the request is released. */
SKIPDEC_API skipdec_status skipdec_request_schedule(skipdec_request* request,
                                                    const char** schedule);
/* Returns the indices, [count] in ascending order, of the layers that a token with ``count`` layers
 * ran; ``count`` is a value from a completion's ``layers``. For each count, a schedule has one set
 * of layers. The indices are valid until the request is released. Returns SKIPDEC_USAGE for a count
 * that no token of the schedule has. */
SKIPDEC_API skipdec_status skipdec_request_layers(skipdec_request* request, int64_t count,
                                                  const int64_t** layers);

/* Cancels the request if it is running, and frees it; its callback is not called again. Waits for a
 * running callback of the request, unless that callback is the caller. ``request`` may be NULL. */
SKIPDEC_API void skipdec_request_release(skipdec_request* request);

/* ---- scoring ---- */

/* Computes the log-probabilities of ``continuation`` after ``prompt``, each token at the depth at
 * which it would be generated. Blocks until the engine has run it between two steps. ``schedule``
 * is as in skipdec_params. On success, the caller owns ``*score`` and releases it. */
SKIPDEC_API skipdec_status skipdec_score_tokens(skipdec_engine* engine, const int64_t* prompt,
                                                size_t prompt_tokens, const int64_t* continuation,
                                                size_t continuation_tokens, const char* schedule,
                                                skipdec_score** score);
SKIPDEC_API skipdec_status skipdec_score_text(skipdec_engine* engine, const char* prompt,
                                              const char* continuation, const char* schedule,
                                              skipdec_score** score);

typedef struct skipdec_score_values {
  const int64_t*
      token_ids; /* [num_tokens] tokens of the continuation; valid until the score is released */
  const double* logprobs; /* [num_tokens] */
  const int64_t* layers;  /* [num_tokens] number of layers that each token ran */
  size_t num_tokens;
} skipdec_score_values;

/* Returns the values of a score. */
SKIPDEC_API const skipdec_score_values* skipdec_score_get(const skipdec_score* score);
/* Frees a score, which may be NULL. */
SKIPDEC_API void skipdec_score_release(skipdec_score* score);

/* ---- text and tokens ---- */

/* Encodes ``text`` into ``token_ids``, which has room for ``capacity`` ids, and sets
 * ``*num_tokens`` to the number of ids. If that exceeds ``capacity``, the rest is not written. With
 * ``is_prompt``, the prompt template and special tokens are added. */
SKIPDEC_API skipdec_status skipdec_encode(skipdec_engine* engine, const char* text,
                                          int32_t is_prompt, int64_t* token_ids, size_t capacity,
                                          size_t* num_tokens);
/* Decodes token ids into ``text``, which has room for ``capacity`` bytes, with a zero at the end.
 * Like snprintf, it sets ``*num_bytes`` to the full length without the zero. */
SKIPDEC_API skipdec_status skipdec_decode(skipdec_engine* engine, const int64_t* token_ids,
                                          size_t num_tokens, int32_t skip_special_tokens,
                                          char* text, size_t capacity, size_t* num_bytes);

#ifdef __cplusplus
}
#endif

#endif
