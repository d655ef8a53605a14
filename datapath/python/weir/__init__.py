# SPDX-License-Identifier: Apache-2.0
"""Weir for PyTorch: adaptive gradient compression for DistributedDataParallel.

    model = torch.nn.parallel.DistributedDataParallel(model)
    import weir
    state = weir.attach(model)

No more is needed: gradients are exchanged by libweir, and the node's agent (WEIR_AGENT) selects
codec and collective. Without an agent or a plan file training runs dense.

After `import weir`, torch.distributed.init_process_group("weir") runs every collective and message
of torch.distributed on CPU tensors through libweir, with exact results.
"""
from weir import keys
from weir._lib import (DataLoss, DeadlineExceeded, FailedPrecondition, InvalidArgument,
                       LibraryNotFound, RankLost, WeirError, capabilities, library_path, version)
from weir.attaching import attach
from weir.communicator import Communicator
from weir.ddp import DDPState, attach_replacement, ddp_hook
from weir.fsdp import FSDPState
from weir.non_finite import SkippedStep
from weir.process_group import WeirProcessGroup, register_process_group
from weir.regroup import Regrouped, reform, rejoin
from weir.session import Session, Stats
from weir.steps import report_loss, share

__all__ = [
    "Communicator", "DDPState", "DataLoss", "DeadlineExceeded", "FSDPState", "FailedPrecondition",
    "InvalidArgument", "LibraryNotFound", "RankLost", "Regrouped", "Session", "SkippedStep",
    "Stats", "WeirError", "WeirProcessGroup", "attach", "attach_replacement", "capabilities",
    "ddp_hook", "keys", "library_path", "reform", "register_process_group", "rejoin",
    "report_loss", "share", "version",
]

# Tracebacks and documentation name them as they are imported.
for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__

register_process_group()
