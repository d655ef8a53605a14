"""weir.attach, which finds the hooks for whatever wraps a model."""
from torch.nn.parallel import DistributedDataParallel

from weir import _lib
from weir import ddp
from weir import fsdp
from weir._lib import WeirError


def _is_wrapped(model):
    return (isinstance(model, DistributedDataParallel) or fsdp.is_fsdp1(model)
            or fsdp.is_fsdp2(model))


def attach(model, **options):
    """Lets Weir exchange the gradients of a wrapped model. Options are those of DDPState.

    model: one of these, before its first forward pass:
      DistributedDataParallel;
      FullyShardedDataParallel (PyTorch 2), unless its strategy is hybrid;
      a module after fully_shard() over a mesh of one dimension (where PyTorch has the hooks, as
      2.14). With process_group=, Weir sums over that group, the replicas of a shard (HSDP);
      without, over the mesh.
    For FSDP a line on standard error says what may be compressed.

    Returns the state, a DDPState or FSDPState. Steps begin at the forward pass. WeirError (its
    status INVALID_ARGUMENT): the model is none of these; the message says what to do.
    """
    if isinstance(model, DistributedDataParallel):
        if _is_wrapped(model.module):
            raise WeirError("the module inside DistributedDataParallel is wrapped, too, and would "
                            "reduce its gradients a second time: wrap it once",
                            _lib.INVALID_ARGUMENT)
        return ddp.attach_ddp(model, options)
    if fsdp.is_fsdp1(model):
        return fsdp.attach_fsdp1(model, options)
    if fsdp.is_fsdp2(model):
        return fsdp.attach_fsdp2(model, options)
    raise WeirError("weir.attach takes a model in DistributedDataParallel, "
                    "FullyShardedDataParallel or fully_shard(), found "
                    f"{type(model).__name__}: wrap it first",
                    _lib.INVALID_ARGUMENT)
