"""Weir for PyTorch: adaptive gradient compression for DistributedDataParallel.

    model = torch.nn.parallel.DistributedDataParallel(model)
    import weir
    state = weir.attach(model)

That is all: gradients now travel through libweir, the node's agent (WEIR_AGENT) steers codec and
collective, and without an agent or a plan file training runs dense.
"""
from weir._lib import LibraryNotFound, WeirError, capabilities, library_path, version
from weir.ddp import DDPState, attach, ddp_hook, report_loss
from weir.session import Session, Stats

__all__ = [
    "DDPState", "LibraryNotFound", "Session", "Stats", "WeirError", "attach", "capabilities",
    "ddp_hook", "library_path", "report_loss", "version",
]
