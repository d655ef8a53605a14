/* weir.h: the C interface of libweir, the datapath that runs inside a training process.
 *
 * Conventions: opaque handles; `struct_size` first in every public struct, set to sizeof by the
 * caller; every function that can fail returns a weir_status and never throws; every wait has a
 * deadline. A session belongs to one rank of one job. Calls on one session come from one thread at
 * a time except weir_wait, weir_last_error and weir_get_stats, which are thread-safe. */
#ifndef WEIR_H_
#define WEIR_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define WEIR_EXPORT __attribute__((visibility("default")))
#else
#define WEIR_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum weir_status {
  WEIR_OK = 0,
  WEIR_INVALID_ARGUMENT = 1,    /* a wrong argument; weir_last_error names it */
  WEIR_NOT_FOUND = 2,           /* an unknown name; the valid ones are listed */
  WEIR_FAILED_PRECONDITION = 3, /* right call, wrong state */
  WEIR_DATA_LOSS = 4,           /* malformed or corrupt bytes from a peer, file or agent */
  WEIR_PEER_UNAVAILABLE = 5,    /* a rank is gone; weir_last_error names it */
  WEIR_DEADLINE_EXCEEDED = 6,   /* names the rank that was waited for */
  WEIR_RESOURCE_EXHAUSTED = 7,
  WEIR_ABORTED = 8, /* another rank or weir_session_close ended the operation */
  WEIR_INTERNAL = 9
} weir_status;

/* Passed as int32_t: an enum parameter could not hold, and so not refuse, an unknown value. */
typedef enum weir_dtype { WEIR_FLOAT32 = 0, WEIR_FLOAT16 = 1, WEIR_BFLOAT16 = 2 } weir_dtype;

typedef struct weir_session weir_session;
typedef struct weir_request weir_request;

typedef struct weir_options {
  size_t struct_size;
  const char* job; /* name of the training run, equal on all ranks */
  int32_t rank;
  int32_t world;
  const char* transport;          /* NULL: "tcp" */
  const char* listen;             /* "host:port", port 0: any; NULL: "127.0.0.1:0" */
  const char* agent;              /* "unix:/path" or "tcp:host:port"; NULL or "": no agent */
  const char* agent_token;        /* for tcp agents; may be NULL */
  const char* plan_file;          /* static plan (JSON of weir.v1.Plan); NULL: none */
  double operation_timeout_s;     /* per collective; 0: 60 */
  double connect_timeout_s;       /* 0: 60 */
  const char* congestion_control; /* NULL: the system's */
} weir_options;

/* One contiguous parameter range of a bucket. */
typedef struct weir_parameter {
  const char* name; /* stable over the job's life */
  uint64_t elements;
} weir_parameter;

typedef struct weir_stats {
  size_t struct_size;
  uint64_t step;
  uint64_t plan_version;
  uint64_t bytes_sent;
  uint64_t steps_skipped;
  int32_t agent_connected; /* 0 or 1 */
  double last_step_s;
  double last_exposed_s;
} weir_stats;

/* Completion of one all-reduce: called on a session thread, must not call into the session. */
typedef void (*weir_callback)(void* context, weir_status status);

/* Creates a session and starts listening. On error *session is NULL and `error` (may be NULL) holds
 * up to error_size bytes of the reason. */
WEIR_EXPORT weir_status weir_session_create(const weir_options* options, weir_session** session,
                                            char* error, size_t error_size);
/* Where peers reach this rank: "host:port". Valid as long as the session. */
WEIR_EXPORT const char* weir_session_address(const weir_session* session);
/* Connects to all ranks; addresses[r] is rank r's weir_session_address. Collective call. */
WEIR_EXPORT weir_status weir_session_connect(weir_session* session, const char* const* addresses,
                                             int32_t count);
/* Ends every operation, joins every thread, frees the session. Bounded by 5 s. NULL is allowed. */
WEIR_EXPORT void weir_session_close(weir_session* session);

/* Declares a bucket of consecutive parameters; equal order on all ranks. The key is a hash of the
 * dtype and of the parameters' names and sizes. Residuals follow parameters across redefinitions: a
 * bucket that held one of them is dissolved. Allowed within a step for buckets unused in it; the
 * same declaration again is free. Needs no network. */
WEIR_EXPORT weir_status weir_define_bucket(weir_session* session, const weir_parameter* parameters,
                                           size_t count, int32_t dtype, uint64_t* key);

/* A step is one optimiser step: begin, one all-reduce per bucket in the same order on all ranks,
 * end. Begin swaps to an announced plan; end waits for all operations and reports telemetry.
 * *skipped (may be NULL): 1 when some rank met NaN or infinity: every bucket's residual is as
 * before the step, and each bucket that held one was delivered as NaN on all ranks. */
WEIR_EXPORT weir_status weir_step_begin(weir_session* session);
WEIR_EXPORT weir_status weir_step_end(weir_session* session, int32_t* skipped);

/* Sums the bucket over all ranks, times `scale` (1/world for the mean), in place. `data` holds the
 * bucket's elements in its dtype and stays untouched until completion. Asynchronous: returns when
 * queued. Either callback or request may be NULL; a request is freed by weir_wait. */
WEIR_EXPORT weir_status weir_all_reduce(weir_session* session, uint64_t bucket, void* data,
                                        double scale, weir_callback callback, void* context,
                                        weir_request** request);
/* Waits for one request at most timeout_s seconds; 0: the session's operation timeout. Frees the
 * request unless it timed out. */
WEIR_EXPORT weir_status weir_wait(weir_session* session, weir_request* request, double timeout_s);

/* Optional: the loss of the current step, for the controller's view. */
WEIR_EXPORT void weir_report_loss(weir_session* session, double loss);

/* Error-feedback residuals of all parameters, between steps. Export with buffer NULL gives the
 * size. Import matches by parameter name; unknown names are kept for later, sizes must match. */
WEIR_EXPORT weir_status weir_export_state(weir_session* session, void* buffer, size_t* size);
WEIR_EXPORT weir_status weir_import_state(weir_session* session, const void* buffer, size_t size);

WEIR_EXPORT weir_status weir_get_stats(weir_session* session, weir_stats* stats);
/* The active plan as JSON (weir.v1.Plan) with a terminating zero. *size: capacity in, length
 * without the zero out; WEIR_RESOURCE_EXHAUSTED when too small, *size then says how long the text
 * is. */
WEIR_EXPORT weir_status weir_get_plan(weir_session* session, char* buffer, size_t* size);

/* Static text for a status. Never NULL. */
WEIR_EXPORT const char* weir_strerror(int32_t status);
/* The last error on this session, with rank, peer and numbers; valid until the next failing call of
 * the calling thread. Never NULL. */
WEIR_EXPORT const char* weir_last_error(const weir_session* session);
WEIR_EXPORT const char* weir_version(void);
/* This build's codecs and collectives as JSON (weir.v1.Capabilities). */
WEIR_EXPORT const char* weir_capabilities(void);

#ifdef __cplusplus
}
#endif
#endif /* WEIR_H_ */
