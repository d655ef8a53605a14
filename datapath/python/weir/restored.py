# SPDX-License-Identifier: Apache-2.0
"""The first steps after a restart: DDP's first buckets are not those of the checkpoint.

DDP makes its buckets in the order of the parameters, and makes them again after the first backward
pass (with a static graph: the second), in the order in which gradients became ready. A codec that
selects or scales by bucket gives other results in other buckets. So the state of a hook lists the
buckets of the last step, and steps after load_state_dict() reduce in these, from and into copies,
until DDP has made its buckets again.
"""
import torch

from weir.staging import future_of

_STEPS_MAX = 2  # where DDP does not make its buckets again


class RestoredBuckets:
    """Holds DDP's buckets of a step until all are there, and reduces the restored ones.

    buckets: lists of parameters' names, in the order of the step.
    """

    def __init__(self, buckets):
        self._buckets = buckets
        self._held = []
        self._first = None  # DDP's buckets in the first step
        self._steps = 0

    def hold(self, bucket, names):
        """Returns the future of a bucket of DDP, whose parameters have these names."""
        if bucket.index() == 0:
            self._held = []  # an earlier pass may have raised an error
        pieces = bucket.buffer().split([p.numel() for p in bucket.parameters()])
        future = future_of(bucket.buffer())
        self._held.append((bucket.buffer(), dict(zip(names, pieces)), future))
        return future

    def reduce(self, submit):
        """Reduces what is held and completes the futures. Waits, as long as the deadlines allow.

        submit: a function of (names, flat tensor) that returns a weir.steps.Delivery. Returns
        whether the next step should be held, too. All ranks find the same, as their buckets are
        equal.
        """
        pieces = {name: piece for _, named, _ in self._held for name, piece in named.items()}
        buckets = self._choose(list(pieces))
        flats = [torch.cat([pieces[name] for name in names]) for names in buckets]
        deliveries = [submit(names, flat) for names, flat in zip(buckets, flats)]
        for names, flat, delivery in zip(buckets, flats, deliveries):
            delivery.done.wait()
            if delivery.error is None:
                delivery.future.wait()  # lets the stream of an accelerator wait for the result
            sizes = [pieces[name].numel() for name in names]
            for name, piece in zip(names, flat.split(sizes)):
                pieces[name].copy_(piece)
        failure = next((d.error for d in deliveries if d.error is not None and d.raises), None)
        for buffer, _, future in self._held:
            if failure is None:
                future.set_result(buffer)
            else:
                future.set_exception(failure)
        self._steps += 1
        return buckets is self._buckets and self._steps < _STEPS_MAX

    def _choose(self, names):
        """The restored buckets, unless DDP has its own by now or the model has other parameters."""
        own = [list(named) for _, named, _ in self._held]
        self._first = self._first or own
        restored = sorted(name for names in self._buckets for name in names)
        if own == self._buckets or own != self._first or restored != sorted(names):
            return own
        return self._buckets
