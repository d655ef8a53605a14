/* weir.h: the C interface of libweir, the datapath that runs inside a training process.
 *
 * Conventions: opaque handles; `struct_size` first in every public struct, set to sizeof by the
 * caller; every function that can fail returns a weir_status and never throws; every wait has a
 * deadline. A session belongs to one rank of one job. Calls on one session come from one thread at
 * a time except weir_last_error and weir_get_stats, which are thread-safe, as all functions of
 * requests are. Handles belong to the process that made them: a forked child gets
 * WEIR_FAILED_PRECONDITION for them, and what it closes stays open. */
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
typedef enum weir_dtype {
  WEIR_FLOAT32 = 0,
  WEIR_FLOAT16 = 1,
  WEIR_BFLOAT16 = 2,
  /* of communicators only, not of buckets: */
  WEIR_FLOAT64 = 3,
  WEIR_INT8 = 4,
  WEIR_UINT8 = 5,
  WEIR_INT32 = 6,
  WEIR_INT64 = 7
} weir_dtype;

typedef struct weir_session weir_session;
/* What was queued by weir_all_reduce or a function of a communicator. */
typedef struct weir_request weir_request;

typedef struct weir_options {
  size_t struct_size;
  const char* job; /* name of the training run, equal on all ranks */
  int32_t rank;
  int32_t world;
  /* NAME[:KEY=VALUE[,KEY=VALUE...]], as "tcp:connections=4,pacing=100M". NULL: "auto". Names:
   *   "auto"   shared memory within a node, else TCP
   *   "shm", "tcp"; "verbs" where it was built
   * Keys of "auto" and "tcp", for what TCP carries:
   *   connections=1..16    for each pair of ranks, for paths that one does not fill; 1; all ranks
   *                        have to say the same
   *   pacing=BYTES         per second, the most that the kernel sends to one peer; no limit
   *   zero_copy=BYTES      frames of so many bytes or more leave without a copy where kernel and
   *                        device can; none do
   *   congestion=NAME      the kernel's congestion control; the system's, reno within a host
   * Key of all:
   *   busy_poll=TIME       a wait looks so long again and again before it sleeps, at most 60s; 0
   * BYTES may end with K, M, G (powers of 1000) or Ki, Mi, Gi (of 1024), TIME ends with us, ms or
   * s. WEIR_NOT_FOUND: no such name or key; WEIR_INVALID_ARGUMENT: not such a value; the text says
   * what is valid. */
  const char* transport;
  const char* listen;         /* "host:port", port 0: any; NULL: "127.0.0.1:0"; for transport
                                 "verbs" also "device:port" or "device/gid-index:port" */
  const char* agent;          /* "unix:/path" or "tcp:host:port"; NULL or "": no agent */
  const char* agent_token;    /* for tcp agents; may be NULL */
  const char* plan_file;      /* static plan (JSON of weir.v1.Plan); NULL: none */
  double operation_timeout_s; /* per collective; 0: 60 */
  double connect_timeout_s;   /* 0: 60 */
  /* The deadline of an operation is ten times what this bucket's operations and steps took lately
   * (smoothed, plus four deviations), but at least this, 0: 10, and at most operation_timeout_s.
   * operation_timeout_s alone counts until eight of each were measured, after each change of plan,
   * and for the first operation of every step, which waits for ranks that are late for it:
   * checkpoints, evaluations. Over tcp a host that gives no sign of life, while its kernel would,
   * is given up after ten of its usual round trips, but at least this, in every operation. At or
   * above operation_timeout_s: nothing is adapted. */
  double operation_timeout_floor_s;
  uint64_t epoch; /* of the mesh to join: 0, or that of weir_session_reform for a replacement */
  int32_t encode_workers; /* threads that encode, each another bucket, at most 16; 0: one. More pay
                             where cores are free and steps wait for encoding */
  /* Ranks compare hashes of what was delivered to them in every step whose number this divides,
   * while they run the next step: a difference fails the session on every rank, WEIR_DATA_LOSS with
   * the bucket and the ranks on each side. Equal on all ranks; 0: 64; negative: never. */
  int32_t compare_every_steps;
  /* The key of the job: 32 random bytes, the same on all ranks and nobody else's. Ranks prove to
   * each other that they hold it, and every frame but those in shared memory is authenticated, so
   * that only they can take part in the job or change what travels. Copied. NULL with size 0: none;
   * then ranks connect over loopback and shared memory only, and connect fails where another is
   * farther away. */
  const void* job_key;
  size_t job_key_size;
  int32_t encrypt;         /* with a key: 1: nobody else can read payloads; equal on all ranks */
  int32_t unauthenticated; /* without a key: 1: connects over a network all the same. Whoever
                              reaches it can take part in the job and change what it computes */
} weir_options;

/* One contiguous parameter range of a bucket. */
typedef struct weir_parameter {
  const char* name; /* stable over the job's life */
  uint64_t elements;
  uint64_t columns; /* of a matrix, row-major, for codecs that look at rows; 0: a vector */
} weir_parameter;

typedef struct weir_stats {
  size_t struct_size;
  uint64_t step;
  uint64_t plan_version;
  uint64_t bytes_sent; /* in messages; not what ranks of one host show each other in memory */
  uint64_t steps_skipped;
  int32_t agent_connected; /* 0 or 1 */
  double last_step_s;
  double last_exposed_s;
  int32_t peers_shared_memory; /* peers reached through memory instead of the network */
  int32_t model_source;        /* see weir_session_reform; -1: none */
  uint64_t epoch;
  uint64_t next_step;            /* number of the next step to begin */
  uint64_t replicas_compared;    /* steps in which all ranks were found to hold the same */
  int32_t unauthenticated_peers; /* reached over a network without having proven anything */
} weir_stats;

/* The mesh to form, see weir_session_reform. */
typedef struct weir_mesh {
  size_t struct_size;
  uint64_t epoch; /* above that of the session */
  int32_t rank;   /* of this process in it */
  int32_t world;
  const char* listen; /* NULL: as before */
} weir_mesh;

/* Completion of one all-reduce: called on a session thread, must not call into the session. */
typedef void (*weir_callback)(void* context, weir_status status);

/* Creates a session and starts listening. On error *session is NULL and `error` (may be NULL) holds
 * up to error_size bytes of the reason. */
WEIR_EXPORT weir_status weir_session_create(const weir_options* options, weir_session** session,
                                            char* error, size_t error_size);
/* Where peers reach this rank: "host:port". Valid until weir_session_reform or close. */
WEIR_EXPORT const char* weir_session_address(const weir_session* session);
/* Connects to all ranks; addresses[r] is rank r's weir_session_address. Collective call. */
WEIR_EXPORT weir_status weir_session_connect(weir_session* session, const char* const* addresses,
                                             int32_t count);
/* After a failure, or between steps: leaves the mesh, whatever its state, within 5 s and listens
 * for another, of the survivors (numbered anew) or with replacements in the places of those who are
 * gone. The caller sees to it that all of them name the same epoch, another rank each and the same
 * world (a store, a scheduler). As after weir_session_create the address is new and
 * weir_session_connect follows, by survivors and replacements alike; those come from
 * weir_session_create with that epoch. Should connect fail, reform again with the next epoch:
 * nothing is lost. On an error the session is closed but keeps all, for another attempt.
 *
 * Buckets stay defined. A step that is not complete on every survivor is void on all: connect
 * agrees on the step to go on with (weir_stats.next_step), and residuals and momenta of ranks that
 * completed it are what they were before. Before the next step every rank, replacements too, takes
 * the model and optimiser of weir_stats.model_source, a survivor that has not completed that step,
 * by the caller's means. The gradients of the void step are to be computed anew. All go on with
 * that rank's plan if the new world may run it, else dense. Lost are the residuals of ranks that
 * are gone; replacements begin with none. */
WEIR_EXPORT weir_status weir_session_reform(weir_session* session, const weir_mesh* mesh);
/* Ends every operation, joins every thread, frees the session and its requests. Bounded by 5 s.
 * NULL is allowed. Threads that wait for a request of it are woken with WEIR_ABORTED. */
WEIR_EXPORT void weir_session_close(weir_session* session);

/* Declares a bucket of consecutive parameters; equal order on all ranks. The key is a hash of the
 * dtype and of the parameters' names and shapes. Residuals follow parameters across redefinitions:
 * a bucket that held one of them is dissolved. Within a step WEIR_FAILED_PRECONDITION when it would
 * dissolve a bucket that was submitted in it; then nothing changes. The same declaration again is
 * free. Needs no network. */
WEIR_EXPORT weir_status weir_define_bucket(weir_session* session, const weir_parameter* parameters,
                                           size_t count, int32_t dtype, uint64_t* key);

/* A step is one optimiser step: begin, one all-reduce per bucket in the same order on all ranks,
 * end. Begin swaps to an announced plan; end waits for all operations and reports telemetry.
 * *skipped (may be NULL): 1 when some rank met NaN or infinity: every bucket's residual is as
 * before the step, and each bucket that held one was delivered as NaN on all ranks. */
WEIR_EXPORT weir_status weir_step_begin(weir_session* session);
WEIR_EXPORT weir_status weir_step_end(weir_session* session, int32_t* skipped);

/* Sums the bucket over all ranks, times `scale` (1/world for the mean; equal on all ranks), in
 * place. `data` holds the
 * bucket's elements in its dtype and stays untouched until completion. Asynchronous: returns when
 * queued. Either callback or request may be NULL; a request is released by weir_request_release. */
WEIR_EXPORT weir_status weir_all_reduce(weir_session* session, uint64_t bucket, void* data,
                                        double scale, weir_callback callback, void* context,
                                        weir_request** request);

/* ---- Requests: operations under way, of sessions and communicators alike. All three functions are
 * thread-safe, for any number of threads on one request. A request that was released, or whose
 * session or communicator was closed, is WEIR_INVALID_ARGUMENT. Failures are found by
 * weir_last_error of the session or weir_communicator_last_error of the communicator. */

/* Waits until the operation is done, at most timeout_s seconds: WEIR_DEADLINE_EXCEEDED, and it goes
 * on. 0: for as long as it takes, which the operation's own deadline bounds; its error names the
 * rank at fault, which a shorter wait of the caller's may not know. Returns the operation's
 * outcome; *peer (may be NULL): the other rank of a message, else WEIR_ANY_RANK. Frees nothing. */
WEIR_EXPORT weir_status weir_request_wait(weir_request* request, double timeout_s, int32_t* peer);
/* *done: 1 when the operation has ended, 0 while it is under way. */
WEIR_EXPORT weir_status weir_request_test(weir_request* request, int32_t* done);
/* Frees a request that is done; threads that wait for it keep its outcome.
 * WEIR_FAILED_PRECONDITION while it is under way. */
WEIR_EXPORT weir_status weir_request_release(weir_request* request);

/* Optional, within a step: where the model's parameters lie, bytes[i] of them at data[i], which is
 * only read. In steps whose replicas are compared (compare_every_steps) they are hashed, at some
 * 10 GB/s, and compared with those of the other ranks that report theirs; in other steps nothing is
 * done. For models that are equal bit for bit on all ranks: replicas on unlike hardware may differ
 * in their last bits. */
WEIR_EXPORT weir_status weir_report_parameters(weir_session* session, const void* const* data,
                                               const uint64_t* bytes, size_t count);

/* Optional: the loss of the current step, for the controller's view. */
WEIR_EXPORT weir_status weir_report_loss(weir_session* session, double loss);

/* What must be checkpointed, between steps: error-feedback residuals and momenta of all parameters,
 * and what codecs keep of the buckets. Export with buffer NULL gives the size. Import replaces it
 * all; residuals are matched by parameter name, codecs' states by bucket key; unknown ones are kept
 * for later, sizes must match. On error nothing changes. */
WEIR_EXPORT weir_status weir_export_state(weir_session* session, void* buffer, size_t* size);
WEIR_EXPORT weir_status weir_import_state(weir_session* session, const void* buffer, size_t size);

/* Gradients come `factor` times as large from the next step on: residuals, momenta and thresholds
 * follow. For a loss scale that changes (its new value over the old one) and, where the learning
 * rate is applied after the all-reduce and what was left behind shall count at the rate of its own
 * step, for the rate (the old one over the new). Between steps, on every rank alike.
 * WEIR_INVALID_ARGUMENT: factor is not finite and above 0, or an element would overflow; then
 * nothing changes. */
WEIR_EXPORT weir_status weir_scale_state(weir_session* session, double factor);

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

/* ---- Communicators: exact point-to-point and collective operations between ranks, with neither
 * plans nor agents, beside sessions or alone. All functions are thread-safe but create, connect and
 * close. Operations are asynchronous: they return when queued, with a request. Buffers stay alive
 * and untouched until it is done. Every rank calls the same collectives in the same order with the
 * same sizes; they run one after another, and an operation that meets an unlike one fails on both
 * sides. Messages progress whatever a collective waits for, and the other way round. A failed
 * collective ends the communicator's collectives, a message that missed its deadline or whose peer
 * died its messages; errors name the rank. */
typedef struct weir_communicator weir_communicator;

typedef struct weir_communicator_options {
  size_t struct_size;
  const char* job; /* equal on all ranks; other communicators between the same ranks have others */
  int32_t rank;
  int32_t world;              /* at most 1024 */
  const char* transport;      /* as weir_options.transport */
  const char* listen;         /* as weir_options.listen; messages take any port of the same host */
  double operation_timeout_s; /* per operation, from when it runs; 0: 60 */
  double connect_timeout_s;   /* 0: 60 */
  const void* job_key;        /* this and the following as in weir_options */
  size_t job_key_size;
  int32_t encrypt;
  int32_t unauthenticated;
} weir_communicator_options;

/* Passed as int32_t. Integers wrap around; 16-bit floats are rounded after every step; minima and
 * maxima with NaN are NaN. */
typedef enum weir_reduction {
  WEIR_SUM = 0,
  WEIR_PRODUCT = 1,
  WEIR_MIN = 2,
  WEIR_MAX = 3,
  WEIR_AVERAGE = 4 /* of floating-point elements */
} weir_reduction;

#define WEIR_ANY_RANK (-1)

/* As weir_session_create, weir_session_address, weir_session_connect and weir_session_close. Close
 * ends what is under way with WEIR_ABORTED and frees the requests that were not released. */
WEIR_EXPORT weir_status weir_communicator_create(const weir_communicator_options* options,
                                                 weir_communicator** communicator, char* error,
                                                 size_t error_size);
WEIR_EXPORT const char* weir_communicator_address(const weir_communicator* communicator);
WEIR_EXPORT weir_status weir_communicator_connect(weir_communicator* communicator,
                                                  const char* const* addresses, int32_t count);
WEIR_EXPORT void weir_communicator_close(weir_communicator* communicator);
/* Ends what is under way with WEIR_ABORTED, as weir_communicator_close does, and frees nothing. For
 * closing while other threads wait: shut down, let them return, close. */
WEIR_EXPORT weir_status weir_communicator_shutdown(weir_communicator* communicator);

/* In place; the same bits on every rank. `count` elements, `dtype` a weir_dtype, `reduction` a
 * weir_reduction. Of reduce only the root's data change. */
WEIR_EXPORT weir_status weir_communicator_all_reduce(weir_communicator* communicator, void* data,
                                                     uint64_t count, int32_t dtype,
                                                     int32_t reduction, weir_request** request);
WEIR_EXPORT weir_status weir_communicator_reduce(weir_communicator* communicator, void* data,
                                                 uint64_t count, int32_t dtype, int32_t reduction,
                                                 int32_t root, weir_request** request);
/* `input` holds world runs of `count` elements; `output` receives the reduction of run `rank`. */
WEIR_EXPORT weir_status weir_communicator_reduce_scatter(weir_communicator* communicator,
                                                         const void* input, void* output,
                                                         uint64_t count, int32_t dtype,
                                                         int32_t reduction, weir_request** request);
/* `output` receives world runs of `bytes` bytes in rank order; `input` may be the own one. */
WEIR_EXPORT weir_status weir_communicator_all_gather(weir_communicator* communicator,
                                                     const void* input, void* output,
                                                     uint64_t bytes, weir_request** request);
WEIR_EXPORT weir_status weir_communicator_broadcast(weir_communicator* communicator, void* data,
                                                    uint64_t bytes, int32_t root,
                                                    weir_request** request);
/* outgoing[r], of outgoing_bytes[r] bytes, goes to rank r, incoming[r] comes from it. Sizes agree
 * pairwise; the arrays have world entries and are copied. Gather: all but outgoing[root] and, on
 * the root, incoming are empty. Scatter: the other way round. */
WEIR_EXPORT weir_status weir_communicator_all_to_all(
    weir_communicator* communicator, const void* const* outgoing, const uint64_t* outgoing_bytes,
    void* const* incoming, const uint64_t* incoming_bytes, weir_request** request);
WEIR_EXPORT weir_status weir_communicator_barrier(weir_communicator* communicator,
                                                  weir_request** request);

/* Messages match by rank and tag, in order, with equal sizes (WEIR_INVALID_ARGUMENT on both sides
 * otherwise). A send is done when the receiver has taken it. peer of receive: or WEIR_ANY_RANK. */
WEIR_EXPORT weir_status weir_communicator_send(weir_communicator* communicator, const void* data,
                                               uint64_t bytes, int32_t peer, uint64_t tag,
                                               weir_request** request);
WEIR_EXPORT weir_status weir_communicator_receive(weir_communicator* communicator, void* data,
                                                  uint64_t bytes, int32_t peer, uint64_t tag,
                                                  weir_request** request);

/* The last error of the calling thread on this communicator. Never NULL. */
WEIR_EXPORT const char* weir_communicator_last_error(const weir_communicator* communicator);

#ifdef __cplusplus
}
#endif
#endif /* WEIR_H_ */
