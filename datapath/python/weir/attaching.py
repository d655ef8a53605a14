# SPDX-License-Identifier: Apache-2.0
"""weir.attach, which finds the hooks for whatever wraps a model."""
from typing import Any, Dict, Optional, Protocol, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from weir import _lib
from weir import ddp
from weir import fsdp
from weir import keys
from weir._lib import WeirError
from weir.steps import attached


class Scaler(Protocol):
    """torch.cuda.amp.GradScaler, or whatever else knows the loss scale."""

    def get_scale(self) -> float:
        """The scale of the next step's loss."""


def _is_wrapped(model: torch.nn.Module) -> bool:
    return (isinstance(model, DistributedDataParallel) or fsdp.is_fsdp1(model)
            or fsdp.is_fsdp2(model))


_KINDS = {
    **dict.fromkeys(("job", "agent", "agent_token", "plan_file", "listen", "transport"), (str, "a str")),
    **dict.fromkeys(("rank", "world", "encode_workers", "compare_every_steps"), (int, "an int")),
    **dict.fromkeys(("compare_parameters", "encrypt", "unauthenticated"), (bool, "a bool")),
    "operation_timeout_s": ((int, float), "a number of seconds"),
    "job_key": (bytes, f"{keys.KEY_BYTES} bytes"),
    "optimizer": (torch.optim.Optimizer, "a torch.optim.Optimizer"),
}


def _check_kinds(options: Dict[str, Any]) -> None:
    """Raises InvalidArgument for an option of a type that it cannot have."""
    def refuse(name, expected):
        raise WeirError(f"weir.attach({name}=...): expected {expected}, found "
                        f"{type(options[name]).__name__}", _lib.INVALID_ARGUMENT)
    for name, (kind, expected) in _KINDS.items():
        value = options[name]
        is_flag = isinstance(value, bool) and kind is not bool  # which is an int, too
        if value is not None and (is_flag or not isinstance(value, kind)):
            refuse(name, expected)
    peers = options["peers"]
    if peers is not None and (isinstance(peers, (str, bytes))
                              or not all(isinstance(p, str) for p in peers)):
        refuse("peers", "a list with a str for each rank")
    if options["scaler"] is not None and not hasattr(options["scaler"], "get_scale"):
        refuse("scaler", "an object with get_scale()")


def _refuse(text: str) -> None:
    raise WeirError(text, _lib.INVALID_ARGUMENT)


def _check_model(model: torch.nn.Module) -> None:
    """Raises a WeirError for a wrapper of a kind that hides another one, or that Weir has."""
    if isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
        _refuse("found the result of torch.compile: attach before torch.compile, as in "
                "weir.attach(model); compiled = torch.compile(model)")
    if any(".replicate" in kind.__module__ or "_replicate" in kind.__module__
           for kind in type(model).__mro__):
        _refuse("weir.attach takes no model of replicate(): wrap it in DistributedDataParallel, "
                "which does the same")
    module = getattr(model, "module", model)
    if any(state._module() is module for state in attached):
        raise WeirError("weir.attach was called for this model before (with `weir run --auto`, at "
                        "its first training step): call it once, and close() ends it for good",
                        _lib.FAILED_PRECONDITION)


def attach(model: torch.nn.Module, *, job: Optional[str] = None, rank: Optional[int] = None,
           world: Optional[int] = None, agent: Optional[str] = None,
           agent_token: Optional[str] = None, plan_file: Optional[str] = None,
           peers: Optional[Sequence[str]] = None, listen: Optional[str] = None,
           operation_timeout_s: Optional[float] = None, transport: Optional[str] = None,
           scaler: Optional[Scaler] = None, encode_workers: Optional[int] = None,
           compare_every_steps: Optional[int] = None, compare_parameters: Optional[bool] = None,
           job_key: Optional[bytes] = None, encrypt: Optional[bool] = None,
           unauthenticated: Optional[bool] = None,
           process_group: Optional[dist.ProcessGroup] = None,
           optimizer: Optional[torch.optim.Optimizer] = None) -> ddp.DDPState:
    """Lets Weir exchange the gradients of a wrapped model. All ranks must call it, in the same order.

    model: one of these, before its first forward pass:
      DistributedDataParallel;
      FullyShardedDataParallel (PyTorch 2), unless its strategy is hybrid;
      a module after fully_shard() over a mesh of one dimension (where PyTorch has the hooks, as
      2.14). With process_group=, Weir sums over that group, the replicas of a shard (HSDP);
      without, over the mesh.
    For FSDP a line on standard error says what may be compressed.

    Options that are None come from the environment:
      job                  WEIR_JOB, else TORCHELASTIC_RUN_ID: name of the run
      agent, agent_token   WEIR_AGENT, WEIR_AGENT_TOKEN: agent of this node, unix:/path or
                           tcp:host:port with a token; "": none
      plan_file            WEIR_PLAN_FILE: plan until a controller sends one; "": none
      peers                WEIR_PEERS: "host:port" of all ranks, in place of the framework's store
      listen               WEIR_LISTEN: "host:port" of this rank; port 0: any; see weir.addresses
                           (WEIR_INTERFACE names the interface whose addresses are tried)
      transport            WEIR_TRANSPORT: "auto" (shared memory within a node, else TCP), "tcp" or
                           "shm", with options, as auto:connections=4,pacing=100M (see weir.h)
      operation_timeout_s  WEIR_TIMEOUT_S: deadline of one collective, by default 60
      encode_workers       WEIR_ENCODE_WORKERS: threads that encode, at most 16, by default 1
      compare_every_steps  WEIR_COMPARE_EVERY_STEPS: steps between comparisons of sums, by default
                           64; -1: never
      compare_parameters   WEIR_COMPARE_PARAMETERS: compares the model's parameters, too (on the
                           CPU; replicas on equal hardware only)
      job_key              WEIR_JOB_KEY_FILE, which names a file: 32 bytes, equal on all ranks
      encrypt              WEIR_ENCRYPT: whether payloads are encrypted, equal on all ranks
      unauthenticated      WEIR_UNAUTHENTICATED: allows any network without a key
      (no option)          WEIR_LABELS: KEY=VALUE,... by which policies select the job
      (no option)          WEIR_FRAMEWORK_DENSE: 1 lets the process group sum dense buckets whatever
                           its backend is, 0 never; by default NCCL's does; see weir.framework
    or from the process group: rank and world. process_group is the ranks that sum, by default those
    of the wrapper. scaler: the GradScaler of the training loop; see weir.ddp.
    optimizer: that of the training loop. With it, plans may let ranks step on their own and
    synchronise every few steps (weir.local); call state.synchronise(now=True) when training ends.
    DistributedDataParallel only.

    Returns the state, for FSDP an FSDPState. Steps begin at the forward pass, so that Weir can tell
    computing from waiting; with register_comm_hook alone, a step begins at its first bucket.
    InvalidArgument: the model is none of these, an option or a variable has a wrong value, the rank
    is not in the world, `peers` are more or fewer than its ranks, or the ranks attach different
    models. FailedPrecondition: the model has a hook. DeadlineExceeded: a rank did not call it within
    the process group's timeout. The messages say what to do. Other WeirErrors: the ranks did not
    connect within 60 s.
    """
    options = {name: value for name, value in locals().items() if name != "model"}
    _check_kinds(options)
    _check_model(model)
    if isinstance(model, DistributedDataParallel):
        if _is_wrapped(model.module):
            raise WeirError("the module inside DistributedDataParallel is wrapped, too, and would "
                            "reduce its gradients a second time: wrap it once",
                            _lib.INVALID_ARGUMENT)
        return ddp.attach_ddp(model, options)
    if optimizer is not None and _is_wrapped(model):
        raise WeirError("weir.attach(optimizer=...) takes DistributedDataParallel only: leave "
                        "`optimizer` out", _lib.INVALID_ARGUMENT)
    del options["optimizer"]
    if fsdp.is_fsdp1(model):
        return fsdp.attach_fsdp1(model, options)
    if fsdp.is_fsdp2(model):
        return fsdp.attach_fsdp2(model, options)
    raise WeirError("weir.attach takes a model in DistributedDataParallel, "
                    "FullyShardedDataParallel or fully_shard(), found "
                    f"{type(model).__name__}: wrap it first",
                    _lib.INVALID_ARGUMENT)
