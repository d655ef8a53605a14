// SPDX-License-Identifier: Apache-2.0
/* weir.h: the C interface of libweir, the datapath that runs inside a training process.
 *
 * Conventions: handles are opaque. `struct_size` is the first member of every public struct, set to
 * sizeof by the caller. Every function that can fail returns a weir_status and never throws. Every
 * wait has a deadline. A session belongs to one rank of one job. Only one thread may call functions
 * of a session at a time, except weir_last_error, weir_get_stats, weir_session_interrupt_connect,
 * weir_caller_sum_end and all functions of requests, which are thread-safe. Handles belong to the
 * process that made them: in a forked child functions return WEIR_FAILED_PRECONDITION for them, and
 * closing them has no effect. */
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
  WEIR_FAILED_PRECONDITION = 3, /* the call is not allowed in this state */
  WEIR_DATA_LOSS = 4,           /* malformed or corrupt bytes from a peer, file or agent */
  WEIR_PEER_UNAVAILABLE = 5,    /* a rank is gone; weir_last_error names it */
  WEIR_DEADLINE_EXCEEDED = 6,   /* names the awaited rank */
  WEIR_RESOURCE_EXHAUSTED = 7,
  WEIR_ABORTED = 8, /* another rank or weir_session_close ended the operation */
  WEIR_INTERNAL = 9
} weir_status;

/* Passed as int32_t, because a parameter of an enum type could not hold an unknown value, which
 * must be refused. */
typedef enum weir_dtype {
  WEIR_FLOAT32 = 0,
  WEIR_FLOAT16 = 1,
  WEIR_BFLOAT16 = 2,
  /* only for communicators, not for buckets: */
  WEIR_FLOAT64 = 3,
  WEIR_INT8 = 4,
  WEIR_UINT8 = 5,
  WEIR_INT32 = 6,
  WEIR_INT64 = 7
} weir_dtype;

typedef struct weir_session weir_session;
/* An operation queued by weir_all_reduce or a function of a communicator. */
typedef struct weir_request weir_request;

typedef struct weir_options {
  size_t struct_size;
  const char* job; /* name of the training run, equal on all ranks */
  int32_t rank;
  int32_t world;
  /* NAME[:KEY=VALUE[,KEY=VALUE...]], as "tcp:connections=4,pacing=100M". NULL: "auto". Names:
   *   "auto"   shared memory within a node, else TCP
   *   "shm", "tcp"; "verbs" where it was built
   * Keys of "auto" and "tcp", for connections over TCP:
   *   connections=1..16    for each pair of ranks, for paths that one does not fill; the same on
   *                        all ranks; default 1
   *   pacing=BYTES         most bytes per second that the kernel sends to one peer; default none
   *   zero_copy=BYTES      frames of at least so many bytes are sent without a copy, where kernel
   *                        and device support it; default none
   *   congestion=NAME      the kernel's congestion control; default the system's, or reno within a
   *                        host
   * Key of "auto", for sessions:
   *   nccl=on|off          ranks of a node move what is in the memory of their GPUs by NCCL, where
   *                        the plan sums nodes; needs gradient_device; the same on all ranks of a
   *                        node; default off
   * Key of all transports:
   *   busy_poll=TIME       how long a wait polls before it sleeps, at most 60s; default 0
   * BYTES may end with K, M, G (powers of 1000) or Ki, Mi, Gi (of 1024); TIME ends with us, ms or
   * s. WEIR_NOT_FOUND: there is no such name or key; WEIR_INVALID_ARGUMENT: the value is not valid;
   * the message says what is valid. */
  const char* transport;
  const char* listen;         /* "host:port", port 0: any; NULL: "127.0.0.1:0"; for transport
                                 "verbs" also "device:port" or "device/gid-index:port" */
  const char* agent;          /* "unix:/path" or "tcp:host:port"; NULL or "": no agent */
  const char* agent_token;    /* for tcp agents; may be NULL */
  const char* plan_file;      /* static plan (JSON of weir.v1.Plan); NULL: none */
  double operation_timeout_s; /* per collective; 0: 60 */
  double connect_timeout_s;   /* 0: 60 */
  /* The deadline of an operation is ten times the recent duration of this bucket's operations and
   * steps (smoothed, plus four deviations), but at least this value (0: 10) and at most
   * operation_timeout_s. Only operation_timeout_s applies until eight of each were measured, which
   * starts over with each change of plan, and to the first operation of every step, which waits for
   * ranks that are late (checkpoints, evaluations). Over TCP, a host whose kernel does not respond
   * counts as lost after ten of its usual round trips, but not before this time, in every
   * operation. A value of at least operation_timeout_s switches the adaptation off. */
  double operation_timeout_floor_s;
  uint64_t epoch; /* of the mesh to join: 0, or that of weir_session_reform for a replacement */
  int32_t encode_workers; /* threads that encode different buckets, at most 16; 0: one. More help
                             if cores are free and steps wait for encoding */
  /* In every step whose number is divisible by this, ranks hash what was delivered to them, and
   * compare the hashes while they run the next step. A difference fails the session on every rank
   * with WEIR_DATA_LOSS, naming the bucket and the ranks on each side. Where a step spans several
   * of the optimiser (local_steps), every step counts. Equal on all ranks; 0: 64; negative: never.
   */
  int32_t compare_every_steps;
  /* The key of the job: 32 random bytes, which only the ranks of the job know and which are equal
   * on all of them. Ranks prove to each other that they hold it, and every frame except those in
   * shared memory is authenticated, so that only they can take part in the job or change its
   * frames. Copied. NULL with size 0: none; then ranks connect over loopback and shared memory
   * only, and connecting fails if a rank is reached over a network. */
  const void* job_key;
  size_t job_key_size;
  int32_t encrypt;         /* with a key: 1: only the ranks can read payloads; equal on all ranks */
  int32_t unauthenticated; /* without a key: 1: permits connections over a network. Anybody on that
                              network can take part in the job and change its results */
  /* CUDA's number of the device in whose memory the gradients will be; NULL: the host's. The
   * controller is told what codecs take there, and with the copies to the host and back, and the
   * transport's option nccl=on needs it. */
  const int32_t* gradient_device;
  /* 1: the caller does what `sync` of the active plan (weir_get_plan) says: with `every` above 1, a
   * step of the session spans that many steps of the optimiser, and what its buckets sum is the
   * change of the parameters. Deadlines then grow by eight times what this rank needed from the
   * step's begin to its first all-reduce, since others may be slower. 0: plans with `every` above 1
   * are refused. Equal on all ranks. */
  int32_t local_steps;
  /* KEY=VALUE[,KEY=VALUE...], at most 32, by which policies of the controller select jobs; equal on
   * all ranks. Key "namespace" is what Policy.namespaces selects. NULL: none. */
  const char* labels;
  /* 1: the caller has a process group of its own that sums buckets where the gradients are, such as
   * NCCL's, over the same ranks, and does so where a plan says it (weir_caller_sum_needs). Where
   * all ranks say 1, plans may use the collective "framework", and without a plan all buckets are
   * summed so. */
  int32_t caller_sums;
} weir_options;

/* One contiguous parameter range of a bucket. */
typedef struct weir_parameter {
  const char* name; /* stable for the life of the job */
  uint64_t elements;
  uint64_t columns; /* of a row-major matrix, for codecs that use rows; 0: a vector */
} weir_parameter;

typedef struct weir_stats {
  size_t struct_size;
  uint64_t step;
  uint64_t plan_version;
  uint64_t bytes_sent; /* in messages, without data that ranks share in memory */
  uint64_t steps_skipped;
  int32_t agent_connected; /* 0 or 1 */
  double last_step_s;
  double last_exposed_s;
  int32_t peers_shared_memory; /* peers reached through memory instead of the network */
  int32_t model_source;        /* see weir_session_reform; -1: none */
  uint64_t epoch;
  uint64_t next_step;            /* number of the next step to begin */
  uint64_t replicas_compared;    /* steps in which the replicas of all ranks were equal */
  int32_t unauthenticated_peers; /* reached over a network without having proven anything */
} weir_stats;

/* The new mesh, see weir_session_reform. */
typedef struct weir_mesh {
  size_t struct_size;
  uint64_t epoch; /* higher than that of the session */
  int32_t rank;   /* of this process in it */
  int32_t world;
  const char* listen; /* NULL: as before */
} weir_mesh;

/* Called when an all-reduce has ended, on a thread of the session. Must not call the session. */
typedef void (*weir_callback)(void* context, weir_status status);

/* Creates a session and starts listening. On error *session is NULL, and `error` (may be NULL)
 * gets up to error_size bytes of the reason. */
WEIR_EXPORT weir_status weir_session_create(const weir_options* options, weir_session** session,
                                            char* error, size_t error_size);
/* The address at which peers reach this rank: "host:port". Valid until weir_session_reform or
 * close. */
WEIR_EXPORT const char* weir_session_address(const weir_session* session);
/* Connects to all ranks; addresses[r] is rank r's weir_session_address. Collective call. */
WEIR_EXPORT weir_status weir_session_connect(weir_session* session, const char* const* addresses,
                                             int32_t count);
/* Lets weir_session_connect, which runs or is still to be called, return WEIR_ABORTED soon. For a
 * caller that learns by other ways that some rank will never connect. Thread-safe, but must not be
 * called at the same time as weir_session_reform or weir_session_close. */
WEIR_EXPORT weir_status weir_session_interrupt_connect(weir_session* session);
/* To be called after a failure, or between steps: leaves the mesh, whatever its state, within 5 s,
 * and listens for a new one, of the survivors (with new numbers) or with replacements in the places
 * of lost ranks. The caller (a store, a scheduler) must make sure that all of them pass the same
 * epoch, different ranks and the same world. As after weir_session_create, the address is new, and
 * survivors and replacements must call weir_session_connect; replacements call weir_session_create
 * with that epoch before. If connect fails, reform again with the next epoch: nothing is lost. On
 * an error the session is closed but keeps its state for another attempt.
 *
 * Buckets stay defined. A step that is not complete on every survivor is void on all: connect
 * agrees on the next step (weir_stats.next_step), and residuals and momenta of ranks that had
 * completed it are reset to those before it. Before the next step every rank, including
 * replacements, must copy the model and optimiser from weir_stats.model_source, a survivor that has
 * not completed that step. The gradients of the void step must be computed again. All ranks
 * continue with that rank's plan if the new world can run it, or else dense. The residuals of lost
 * ranks are lost; replacements begin without any. From then on libweir sums all buckets, because a
 * process group of the caller (caller_sums) is one of the former ranks. */
WEIR_EXPORT weir_status weir_session_reform(weir_session* session, const weir_mesh* mesh);
/* Ends every operation, joins every thread, and frees the session and its requests, within 5 s.
 * NULL is allowed. Threads that wait for one of its requests return WEIR_ABORTED. */
WEIR_EXPORT void weir_session_close(weir_session* session);

/* Declares a bucket of consecutive parameters, in the same order on all ranks. The key is a hash
 * of the dtype and of the parameters' names and shapes. Residuals follow parameters when buckets
 * are redefined: a bucket that contained one of them is dissolved. WEIR_FAILED_PRECONDITION within
 * a step if it would dissolve a bucket that was submitted in the step; nothing changes then.
 * Repeating a declaration costs nothing. Needs no network. */
WEIR_EXPORT weir_status weir_define_bucket(weir_session* session, const weir_parameter* parameters,
                                           size_t count, int32_t dtype, uint64_t* key);

/* A step is one optimiser step: begin, one all-reduce per bucket in the same order on all ranks,
 * end. Begin swaps to an announced plan; end waits for all operations and reports telemetry.
 * *skipped (may be NULL) becomes 1 when some rank met NaN or infinity. Then every bucket's
 * residual is as before the step, and each bucket with such a value was delivered as NaN on all
 * ranks. */
WEIR_EXPORT weir_status weir_step_begin(weir_session* session);
WEIR_EXPORT weir_status weir_step_end(weir_session* session, int32_t* skipped);

/* Sums the bucket over all ranks, times `scale` (1/world for the mean; equal on all ranks), in
 * place. `data` has the bucket's elements in its dtype and must not be used until completion.
 * Asynchronous: returns when queued. Callback or request may be NULL. A request must be
 * released by weir_request_release. */
WEIR_EXPORT weir_status weir_all_reduce(weir_session* session, uint64_t bucket, void* data,
                                        double scale, weir_callback callback, void* context,
                                        weir_request** request);

/* A bucket's elements in the memory of a CUDA device. */
typedef struct weir_device_data {
  size_t struct_size;
  int32_t device; /* CUDA's number of it in this process */
  void* data;
  void* stream; /* cudaStream_t: the elements are complete when it has done what it has been given
                   by now; NULL: the default stream */
} weir_device_data;
/* How many devices weir_all_reduce_device knows: those that CUDA shows to this process, or 0 where
 * libweir was built without CUDA or there is no driver. Thread-safe. */
WEIR_EXPORT int32_t weir_device_count(void);
/* As weir_all_reduce, for elements in the memory of a device. Returns when queued and keeps neither
 * the calling thread nor a stream waiting. Where the plan's codec works on the device, what is sent
 * is made there, with the same bytes as on the host; otherwise the elements are copied to the host
 * and back. So ranks with and without a device may take part in one operation. When the request has
 * ended or the callback is called, the elements are complete for every stream, and libweir does not
 * use them any more. The operation fails if the stream needs longer than operation_timeout_s.
 * WEIR_INVALID_ARGUMENT: there is no such device, or the elements are not aligned to their size;
 * WEIR_FAILED_PRECONDITION: the stream records a CUDA graph. */
WEIR_EXPORT weir_status weir_all_reduce_device(weir_session* session, uint64_t bucket,
                                               const weir_device_data* data, double scale,
                                               weir_callback callback, void* context,
                                               weir_request** request);

/* ---- Sums over a process group of the caller. Where the active plan says "framework", the caller
 * sums the bucket itself, as it would without libweir. Around it libweir does what it does around
 * its own sums: residuals, plan switches, telemetry, skipped steps, the comparison of replicas. */

/* Says of a bucket that each rank needs another part of its sum, so that the caller makes a
 * reduce-scatter where it sums. Plans then compare its cost and not that of an all-reduce. At the
 * end of a step the ranks tell each other whether all parts are finite. weir_all_reduce still
 * delivers the whole sum. To be called on all ranks, before the first step in which the bucket is
 * used. */
WEIR_EXPORT weir_status weir_set_sharded(weir_session* session, uint64_t bucket);

/* *needs gets what the open step wants of a bucket: 0, or a sum of WEIR_CALLER_SUMS and others.
 * WEIR_CALLER_SUMS is equal on all ranks. Costs no message. WEIR_FAILED_PRECONDITION: no step is
 * open. */
enum {
  WEIR_CALLER_SUMS = 1,    /* use the following functions in place of weir_all_reduce */
  WEIR_NEEDS_RESIDUAL = 2, /* give weir_caller_sum_begin the elements, to add a residual to them */
  WEIR_NEEDS_SAMPLE = 4,   /* give it the elements, or a copy of them, to be measured */
  WEIR_NEEDS_SUM = 8       /* give weir_caller_sum_end the sum, to be compared */
};
WEIR_EXPORT weir_status weir_caller_sum_needs(weir_session* session, uint64_t bucket,
                                              int32_t* needs);
/* Takes the place of weir_all_reduce among the step's operations, in the same order on all ranks.
 * `data`: the elements in the memory of the host, or NULL where they are not needed. When it
 * returns, they are what has to be summed: with WEIR_NEEDS_RESIDUAL they have changed. libweir does
 * not keep `data`. The request ends with weir_caller_sum_end, or when the session fails. */
WEIR_EXPORT weir_status weir_caller_sum_begin(weir_session* session, uint64_t bucket, void* data,
                                              weir_request** request);

/* How the caller's sum ended. */
typedef struct weir_caller_sum {
  size_t struct_size;
  const char* error;    /* why the process group failed; NULL: it has not */
  int32_t finite;       /* 0: an element of the sum, or of this rank's part, is NaN or infinite */
  const void* sum;      /* the elements of the sum in the memory of the host; may be NULL without
                           WEIR_NEEDS_SUM */
  double network_s;     /* from when the group could begin with this bucket until the end */
  double since_ready_s; /* from when the elements were complete until the end; 0: from begin */
  double ended_ago_s;   /* since the end: an accelerator's sum may be looked at long after it */
} weir_caller_sum;
/* Ends the sum of the bucket. An error fails the session on all ranks, with the text. Thread-safe.
 * WEIR_FAILED_PRECONDITION: no sum of this bucket is in progress. */
WEIR_EXPORT weir_status weir_caller_sum_end(weir_session* session, uint64_t bucket,
                                            const weir_caller_sum* sum);

/* ---- Requests: operations in progress, of sessions and communicators. All three functions are
 * thread-safe, for any number of threads on one request. WEIR_INVALID_ARGUMENT: the request was
 * released, or its session or communicator was closed. weir_last_error of the session or
 * weir_communicator_last_error of the communicator returns the message of a failure. */

/* Waits until the operation has ended and returns its outcome. After timeout_s seconds it returns
 * WEIR_DEADLINE_EXCEEDED, and the operation continues. 0: waits as long as the operation takes,
 * which its own deadline limits; its error names the rank at fault, which a shorter wait may not
 * know. *peer (may be NULL): the other rank of a message, else WEIR_ANY_RANK. Frees nothing. */
WEIR_EXPORT weir_status weir_request_wait(weir_request* request, double timeout_s, int32_t* peer);
/* *done: 1 when the operation has ended, 0 while it is in progress. */
WEIR_EXPORT weir_status weir_request_test(weir_request* request, int32_t* done);
/* Frees a request that has ended; threads that wait for it still get its outcome.
 * WEIR_FAILED_PRECONDITION while it is in progress. */
WEIR_EXPORT weir_status weir_request_release(weir_request* request);

/* Optional, within a step: passes the model's parameters, of which bytes[i] are at data[i]; they
 * are only read. In steps that compare replicas (compare_every_steps) they are hashed, at some 10
 * GB/s, and compared with those of other ranks that pass theirs; in other steps the call does
 * nothing. For models that are equal bit by bit on all ranks: replicas on different hardware may
 * differ in their last bits. */
WEIR_EXPORT weir_status weir_report_parameters(weir_session* session, const void* const* data,
                                               const uint64_t* bytes, size_t count);

/* Optional: the loss of the current step, for the controller's view. */
WEIR_EXPORT weir_status weir_report_loss(weir_session* session, double loss);

/* What a step of the session spans, where the plan's `sync` has ranks synchronise every few steps
 * of the optimiser. D is what this rank's parameters moved since the last synchronisation, as far
 * as they take part in this one. */
typedef struct weir_period {
  size_t struct_size;
  uint32_t steps;         /* of the optimiser */
  uint32_t overlap_steps; /* of these made beside the synchronisation */
  double waited_s;        /* for its end, when that was due */
  double moved_square;    /* |D|^2; 0: not measured */
  double mean_square;     /* that of the mean over ranks */
} weir_period;
/* Optional, before weir_step_end: tells the controller of a period of local steps. Without it the
 * controller takes the step for one of the optimiser and chooses no local steps.
 * WEIR_INVALID_ARGUMENT: no steps, more overlapped ones, a negative number or NaN;
 * WEIR_FAILED_PRECONDITION: no step is open. */
WEIR_EXPORT weir_status weir_report_period(weir_session* session, const weir_period* period);

/* Optional, after a step that was skipped and before the next one: tells the controller that this
 * rank's gradient of `parameter` held NaN or infinity. One rank should call it: the first that met
 * it. libweir knows the rank and the bucket itself where a codec encodes, but not where gradients
 * are summed as they are. At most 256 bytes of the name are sent. WEIR_FAILED_PRECONDITION: the
 * last step was not skipped, or another one has begun. */
WEIR_EXPORT weir_status weir_report_non_finite(weir_session* session, const char* parameter);

/* The state for checkpoints, between steps or before the first all-reduce of one: error-feedback
 * residuals and momenta of all parameters, and the states of codecs. Export with a NULL buffer
 * gives the size. Import replaces everything: residuals are matched by parameter name, states of
 * codecs by bucket key. Unknown ones are kept for later, and sizes must match. On error nothing
 * changes. */
WEIR_EXPORT weir_status weir_export_state(weir_session* session, void* buffer, size_t* size);
WEIR_EXPORT weir_status weir_import_state(weir_session* session, const void* buffer, size_t size);

/* Scales residuals, momenta and thresholds for gradients that are `factor` times as large from the
 * next step on. Use it for a loss scale that changes (its new value over the old one). If the
 * learning rate is applied after the all-reduce, and residuals should count at the rate of the
 * step that they come from, use it also for the rate (its old value over the new one). To be
 * called between steps or before the first all-reduce of one, on every rank with the same factor.
 * WEIR_INVALID_ARGUMENT: factor is not finite and positive, or an element would overflow; nothing
 * changes then. */
WEIR_EXPORT weir_status weir_scale_state(weir_session* session, double factor);

WEIR_EXPORT weir_status weir_get_stats(weir_session* session, weir_stats* stats);
/* Writes the active plan as JSON (weir.v1.Plan) with a terminating zero. *size: in, the capacity;
 * out, the length without the zero. WEIR_RESOURCE_EXHAUSTED when the capacity is too small; then
 * *size is the length of the text. */
WEIR_EXPORT weir_status weir_get_plan(weir_session* session, char* buffer, size_t* size);

/* Static text for a status. Never NULL. */
WEIR_EXPORT const char* weir_strerror(int32_t status);
/* The last error on this session, with rank, peer and numbers. Valid until the next failing call
 * of the calling thread. Never NULL. */
WEIR_EXPORT const char* weir_last_error(const weir_session* session);
WEIR_EXPORT const char* weir_version(void);
/* This build's codecs and collectives as JSON (weir.v1.Capabilities). */
WEIR_EXPORT const char* weir_capabilities(void);

/* ---- Communicators: exact point-to-point and collective operations between ranks, without plans
 * or agents, with or without sessions. All functions except create, connect and close are
 * thread-safe. Operations are asynchronous: they return a request when queued. Buffers must stay
 * valid and unchanged until it has ended. Every rank must call the same collectives in the same
 * order with the same sizes. They run one after another, and an operation that meets a different
 * one fails on both sides. Messages progress while collectives wait, and the reverse. A failed
 * collective ends all collectives of the communicator; a message that missed its deadline, or whose
 * peer died, ends all messages. Errors name the rank. */
typedef struct weir_communicator weir_communicator;

typedef struct weir_communicator_options {
  size_t struct_size;
  const char* job; /* equal on all ranks; differs from other communicators of these ranks */
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
  WEIR_AVERAGE = 4 /* for floating-point elements */
} weir_reduction;

#define WEIR_ANY_RANK (-1)

/* As weir_session_create, weir_session_address, weir_session_connect and weir_session_close. Close
 * ends running operations with WEIR_ABORTED and frees the requests that were not released. */
WEIR_EXPORT weir_status weir_communicator_create(const weir_communicator_options* options,
                                                 weir_communicator** communicator, char* error,
                                                 size_t error_size);
WEIR_EXPORT const char* weir_communicator_address(const weir_communicator* communicator);
WEIR_EXPORT weir_status weir_communicator_connect(weir_communicator* communicator,
                                                  const char* const* addresses, int32_t count);
/* As weir_session_interrupt_connect. */
WEIR_EXPORT weir_status weir_communicator_interrupt_connect(weir_communicator* communicator);
WEIR_EXPORT void weir_communicator_close(weir_communicator* communicator);
/* Ends running operations with WEIR_ABORTED, as weir_communicator_close does, and frees nothing.
 * For closing while other threads wait: shut down, let them return, and then close. */
WEIR_EXPORT weir_status weir_communicator_shutdown(weir_communicator* communicator);

/* In place, with the same bits on every rank. `count` elements, `dtype` a weir_dtype, `reduction`
 * a weir_reduction. Reduce changes only the root's data. */
WEIR_EXPORT weir_status weir_communicator_all_reduce(weir_communicator* communicator, void* data,
                                                     uint64_t count, int32_t dtype,
                                                     int32_t reduction, weir_request** request);
WEIR_EXPORT weir_status weir_communicator_reduce(weir_communicator* communicator, void* data,
                                                 uint64_t count, int32_t dtype, int32_t reduction,
                                                 int32_t root, weir_request** request);
/* `input` has world parts of `count` elements; `output` gets the reduction of part `rank`. */
WEIR_EXPORT weir_status weir_communicator_reduce_scatter(weir_communicator* communicator,
                                                         const void* input, void* output,
                                                         uint64_t count, int32_t dtype,
                                                         int32_t reduction, weir_request** request);
/* `output` gets world parts of `bytes` bytes in rank order; `input` may be part `rank` of it. */
WEIR_EXPORT weir_status weir_communicator_all_gather(weir_communicator* communicator,
                                                     const void* input, void* output,
                                                     uint64_t bytes, weir_request** request);
WEIR_EXPORT weir_status weir_communicator_broadcast(weir_communicator* communicator, void* data,
                                                    uint64_t bytes, int32_t root,
                                                    weir_request** request);
/* Sends outgoing[r], of outgoing_bytes[r] bytes, to rank r and receives incoming[r] from it. Sizes
 * must agree pairwise; the arrays have world entries and are copied. For a gather, everything is
 * empty except outgoing[root] and, on the root, incoming; for a scatter, except incoming[root]
 * and, on the root, outgoing. */
WEIR_EXPORT weir_status weir_communicator_all_to_all(
    weir_communicator* communicator, const void* const* outgoing, const uint64_t* outgoing_bytes,
    void* const* incoming, const uint64_t* incoming_bytes, weir_request** request);
WEIR_EXPORT weir_status weir_communicator_barrier(weir_communicator* communicator,
                                                  weir_request** request);

/* Messages are matched by rank and tag, in order, and must have equal sizes (WEIR_INVALID_ARGUMENT
 * on both sides otherwise). A send ends when the receiver has received it. The peer of a receive
 * may be WEIR_ANY_RANK. */
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
