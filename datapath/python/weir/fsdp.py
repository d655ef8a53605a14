# SPDX-License-Identifier: Apache-2.0
"""Hooks for FullyShardedDataParallel (FSDP1) and fully_shard() (FSDP2).

FSDP reduces the gradients of one unit (a wrapped module) at a time. Every unit is a bucket, whose
ranges are named after its parameters: "layer.weight", and with shards that are cut parameter by
parameter (FSDP2) "layer.weight[1/4]" for the second of four shards. Plan, telemetry and residuals
are those of weir.ddp. A hook returns when its unit is reduced, since FSDP uses the result at once.

Where the plan compresses a unit, a reduce-scatter is done as an all-reduce of the whole unit, of
which each rank keeps its shard, so such a plan pays off where its codec sends less than half of the
bytes. Where the plan says "framework", and as long as there is no plan, the reduce-scatter is FSDP's
own, over its own process group, and Weir does around it what weir.framework says. Between replicas of
a sharded model (HSDP), Weir all-reduces the shards.
"""
import sys
import weakref
from typing import Any

import torch
import torch.distributed as dist

from weir import _lib
from weir import versions
from weir._lib import InvalidArgument, WeirError
from weir.ddp import DDPState, ranks_of, say_once
from weir.framework import FrameworkGroup
from weir.staging import tensors_in
from weir.steps import ModuleHook, begin_with_forward, columns, in_backward
from weir.unreduced import FSDPWatch
from weir.versions import is_compiling

_PADDING = "padding"


def _is_a(model, class_name):
    # A model of these classes exists only where somebody has imported them. PyTorch 1.13 cannot
    # import them under Python 3.11.
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), class_name, None)
    return kind is not None and isinstance(model, kind)


def is_fsdp1(model):
    """Whether `model` is a FullyShardedDataParallel module."""
    return _is_a(model, "FullyShardedDataParallel")


def is_fsdp2(model):
    """Whether fully_shard() was applied to `model`."""
    return _is_a(model, "FSDPModule")


class Unsuitable(InvalidArgument):
    """weir.attach cannot take this model, on no rank, and has not touched it."""


def _refuse(text):
    raise Unsuitable(text, _lib.INVALID_ARGUMENT)


class FSDPState(DDPState):
    """The state of the hooks for one FSDP model on one rank. Arguments are those of DDPState.

    sharded: whether FSDP reduce-scatters units. It has no reform(): shards of a lost rank exist
    nowhere else.
    """

    def __init__(self, model, sharded=False, **options):
        self._sharded = sharded
        super().__init__(model, **options)
        self._compare_parameters = False  # shards differ by design

    def _framework_of(self, group, parameters, timeout_s):
        """See DDPState. FSDP reduce-scatters over any group."""
        if self._sharded:
            kind = parameters[0].device.type if parameters else "cpu"
            return FrameworkGroup(group, versions.backend_of(group, kind), timeout_s)
        return super()._framework_of(group, parameters, timeout_s)

    def _key_of(self, unit, gradient, sharded=False):
        if self._watch is not None:
            self._watch.on_hook()
        key = self._keys.get((unit.name, gradient.dtype, gradient.numel()))
        if key is None:
            self.check_gradients(gradient, unit.name)
            key = self.define(unit.ranges(gradient.numel()), gradient.dtype)
            if sharded:
                self.session.set_sharded(key)
            self._keys[unit.name, gradient.dtype, gradient.numel()] = key
        return key

    def reduce_scatter(self, unit, gradient, shard, own):
        """Leaves this rank's part of the mean in `shard` and returns True, or lets own(), which is
        FSDP's reduce-scatter, write it, and returns False. All ranks do the same, since they have
        the same plan and step."""
        key = self._key_of(unit, gradient, sharded=True)
        needs = self._enter(key, gradient)
        if not needs:
            self._await_delivery(self._submit(key, gradient, needs))
            shard.copy_(gradient.chunk(self.world)[self.rank])
            return True
        self._sum_by_framework(key, gradient, needs, shard,
                               lambda group: group.scatter(own, shard))
        return False

    def reduce(self, unit, gradient):
        """Replaces `gradient` by the mean over all ranks. Raises a WeirError on failure."""
        self._await_delivery(self.submit(self._key_of(unit, gradient), gradient))

    def _await_delivery(self, delivery):
        delivery.done.wait()  # as long as its operation's deadline allows
        if delivery.error is not None:
            self._finish_step()  # the engine calls nothing at the end of a pass that raises
            raise delivery.error
        delivery.future.wait()  # lets the stream of an accelerator wait for the result

    def watch_units(self, model, reduces):
        """From now on a step with gradients that stay local is an error; see weir.unreduced."""
        self._watch = FSDPWatch(model, self.rank, reduces)
        model.register_forward_hook(ModuleHook(self.after_forward))

    def _enter(self, key, buffer):
        self.end_with_pass()  # where after_forward() saw no output
        return super()._enter(key, buffer)

    def before_forward(self, module, unused_inputs):
        """See Steps."""
        if module.training and torch.is_grad_enabled() and not in_backward():
            self.end_pass()  # one that raised an error; a checkpoint repeats forward passes in one
        super().before_forward(module, unused_inputs)

    def after_forward(self, module, unused_inputs, outputs):
        """Lets the step end with the pass that begins at the outputs. Units may be reduced in passes
        within that one, as reentrant checkpoints make them."""
        if module.training and not is_compiling():
            for tensor in tensors_in(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(lambda unused_gradient: self.end_with_pass())

    def begin_step(self):
        """See DDPState.begin_step."""
        self._await_end()
        if self._pending and not self._step_open:
            raise WeirError("the previous step did not end", _lib.FAILED_PRECONDITION, self.rank)
        if self._step_open:
            return
        super().begin_step()

    def reform(self, *unused, **unused_options):
        """Refused: see the class."""
        raise WeirError("an FSDP model cannot be reformed, since the lost rank's shards are lost: "
                        "restart from a checkpoint", _lib.FAILED_PRECONDITION, self.rank)


class _Unit:
    """The gradients that FSDP reduces in one piece.

    parameters: the (name, elements, columns) of the piece, in order.
    """

    def __init__(self, state, name, parameters):
        self.state, self.name, self._parameters = state, name, parameters

    def ranges(self, elements):
        """The parameters of a bucket of so many elements."""
        missing = elements - sum(count for _, count, _ in self._parameters)
        if missing < 0:  # FSDP2 leaves out parameters without a gradient
            return [(self.name or "model", elements, 0)]
        padding = [(f"{self.name}.{_PADDING}.end", missing, 0)] if missing else []
        return self._parameters + padding


# ---- FSDP1


def _flat_parameters(path, flat):
    """The ranges of a FlatParameter, including the padding between its parameters."""
    named, ranges = iter(zip(flat._fqns, flat._shapes)), []
    for index, (elements, padding) in enumerate(zip(flat._numels_with_padding,
                                                    flat._is_padding_mask)):
        if padding:
            ranges.append((f"{path}{_PADDING}.{index}", elements, 0))
        else:
            name, shape = next(named)
            rows = shape[0] if len(shape) > 1 else 0
            ranges.append((path + name, elements, elements // rows if rows else 0))
    return ranges


class _FlatUnit(_Unit):
    """A unit of FullyShardedDataParallel."""

    def __init__(self, state, name, parameters, module):
        super().__init__(state, name, parameters)
        self._module = weakref.ref(module)

    def scatter(self, gradient: torch.Tensor, shard: torch.Tensor) -> None:
        """Does the same as FSDP without a hook."""
        module: Any = self._module()
        gradient.div_(module._gradient_predivide_factor)
        dist.reduce_scatter_tensor(shard, gradient, group=module.process_group)
        shard.div_(module._gradient_postdivide_factor)


def _flat_hook(unit, gradient, shard=None):
    """For FullyShardedDataParallel.register_comm_hook; `shard` unless the strategy is NO_SHARD."""
    if shard is None:
        unit.state.reduce(unit, gradient)
    else:
        unit.state.reduce_scatter(unit, gradient, shard, lambda: unit.scatter(gradient, shard))


def _path(name):
    """The path of a module without FSDP's own wrappers."""
    return name.replace("_fsdp_wrapped_module", "").strip(".").replace("..", ".")


def attach_fsdp1(model, options):
    """Registers the hook on every unit of a FullyShardedDataParallel model; returns the state."""
    units = model.fsdp_modules(model)
    strategies = {unit.sharding_strategy.name for unit in units}
    if any(name.startswith(("HYBRID", "_HYBRID")) for name in strategies):
        _refuse("FullyShardedDataParallel takes no hook with a hybrid strategy: use fully_shard() "
                "over the ranks of a node and weir.attach(model, process_group=the replicas), or "
                "the process group 'weir', which does not compress")
    if not all(hasattr(unit, "_comm_hook_state") and hasattr(unit, "_handle") for unit in units):
        _refuse(f"weir.attach takes FullyShardedDataParallel from PyTorch 2.1 on, this is "
                f"{torch.__version__}: update, or use DistributedDataParallel")
    members = ranks_of(options.get("process_group") or model.process_group)
    for name, unit in model.named_modules():
        if unit in units and (own := ranks_of(unit.process_group)) != members:
            _refuse(f"the unit '{_path(name)}' is sharded over the ranks {own}, and weir.attach "
                    f"would reduce it over {members}: wrap all units with one process group, or "
                    "leave this model to the process group 'weir'")
    state = FSDPState(model, sharded=strategies != {"NO_SHARD"}, **options)
    try:
        model.register_comm_hook(state, _flat_hook)
        for name, unit in model.named_modules():
            if unit in units and unit._handle is not None:
                path = f"{_path(name)}." if _path(name) else ""
                unit._comm_hook_state = _FlatUnit(
                    state, path, _flat_parameters(path, unit._handle.flat_param), unit)
    except BaseException:
        state.close()
        raise
    whole = strategies == {"NO_SHARD"}
    _announce(state, "gradients are all-reduced and may be compressed" if whole else
              "gradients may be compressed, as an all-reduce of whole units; dense ones are "
              "reduce-scattered as without Weir; the gathering of parameters is not compressed")
    begin_with_forward(model, state)
    state.watch_units(model, lambda model: model._sync_gradients)
    return state


# ---- FSDP2


def _is_sharded(parameter):
    """False for those that fully_shard() was told to ignore."""
    return hasattr(parameter, "placements")


def _shards(path, module, nested, mesh):
    """The (name, elements of a shard, columns) of the parameters that a unit shards."""
    world, found = mesh.size(), []
    for name, parameter in module.named_parameters():
        inner = f"{path}.{name}".strip(".")
        if (not _is_sharded(parameter) or not parameter.requires_grad
                or any(inner.startswith(f"{other}.") for other in nested)):
            continue
        if parameter.placements[0].dim == 0:  # padded to equal numbers of rows
            row = columns(parameter) or 1
            found.append((inner, -(-parameter.shape[0] // world) * row if parameter.dim() else 1,
                          row if parameter.dim() > 1 else 0))
        else:
            found.append((inner, parameter.numel() // world, 0))
    return found


def _named_shards(shards, index, world):
    return [(f"{name}[{index}/{world}]", elements, row) for name, elements, row in shards]


def _parameter_groups(module):
    """FSDP2's own objects that reduce the gradients of a unit."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return groups if groups is not None else list(filter(None, [state._fsdp_param_group]))


def _reduce_scatter_of(unit):
    """A ReduceScatter; see FSDPState.reduce_scatter."""
    from torch.distributed.fsdp._fully_shard import _fsdp_api

    class Reduce(_fsdp_api.ReduceScatter):
        def allocate(self, size, *, dtype, device):
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            if not (op == dist.ReduceOp.AVG or op == dist.ReduceOp.SUM):
                raise WeirError("weir.attach takes fully_shard() without a gradient divide factor",
                                _lib.INVALID_ARGUMENT, unit.state.rank)
            averaged = unit.state.reduce_scatter(
                unit, input_tensor, output_tensor, lambda: dist.reduce_scatter_tensor(
                    output=output_tensor, input=input_tensor, group=group, op=op))
            if averaged and op == dist.ReduceOp.SUM:
                output_tensor.mul_(unit.state.world)

    return Reduce()


def _mesh_of(model):
    """The mesh over which fully_shard() shards the model, which must have one dimension."""
    sharded = [p for p in model.parameters() if _is_sharded(p)]
    if not sharded:
        _refuse("fully_shard() shards no parameter of this model")
    meshes = {p.device_mesh for p in sharded}
    mesh = meshes.pop()
    if meshes or mesh.ndim > 1 and any(not p.placements[0].is_replicate() for p in sharded):
        _refuse("weir.attach takes fully_shard() over one mesh of one dimension, and tensor "
                "parallelism adds another one: leave this model to PyTorch, or to the process group "
                "'weir', which does not compress")
    if mesh.ndim != 1:
        _refuse("fully_shard() over a mesh of several dimensions reduces over all of them itself. "
                "For HSDP call fully_shard(..., mesh=mesh['shard']), with equal parameters on all "
                "replicas, and weir.attach(model, process_group=mesh['replicate'].get_group())")
    return mesh


def attach_fsdp2(model, options):
    """Sets the hooks of every unit of a fully_shard() model; returns the state."""
    mesh = _mesh_of(model)
    shards = sorted(mesh.mesh.flatten().tolist())
    group = options.pop("process_group", None) or mesh.get_group()
    between = sorted(ranks_of(group)) != shards  # the replicas of a shard, rather than its peers
    needed = "set_all_reduce_hook" if between else "set_custom_reduce_scatter"
    if not hasattr(model, needed):
        _refuse(f"fully_shard() of PyTorch {torch.__version__} has no {needed}(), by which "
                "weir.attach works: update (2.14 has it), or use FullyShardedDataParallel")
    state = FSDPState(model, sharded=not between, process_group=group, **options)
    try:
        modules = {name: m for name, m in model.named_modules() if is_fsdp2(m)}
        for name, module in modules.items():
            nested = [n for n in modules if n != name and n.startswith(f"{name}." if name else "")]
            own = _shards(name, module, nested, mesh)
            if between:
                unit = _Unit(state, name, _named_shards(own, mesh.get_local_rank(), len(shards)))
                module.set_all_reduce_hook(lambda shard, unit=unit: state.reduce(unit, shard))
            else:
                unit = _Unit(state, name, [part for index in range(len(shards))
                                           for part in _named_shards(own, index, len(shards))])
                module.set_custom_reduce_scatter(_reduce_scatter_of(unit))
    except BaseException:
        state.close()
        raise
    _announce(state, "shards of gradients are all-reduced between replicas and may be compressed; "
              "within a replica nothing is" if between else
              "gradients may be compressed, as an all-reduce of whole units; dense ones are "
              "reduce-scattered as without Weir; the gathering of parameters is not compressed")
    begin_with_forward(model, state)
    groups = [weakref.ref(g) for module in modules.values() for g in _parameter_groups(module)]
    state.watch_units(model, lambda _: any(
        g.reduce_grads and g.all_reduce_grads for r in groups if (g := r()) is not None))
    return state


def _announce(state, text):
    if state.rank == 0:
        say_once(text, text)
