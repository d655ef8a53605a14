# SPDX-License-Identifier: Apache-2.0
"""The text that the demo trains on: licences that every Debian machine carries.

Order and split depend on nothing but the files, so that all ranks and all runs see the same bytes.
"""
import hashlib
import pathlib

import torch

DIRECTORY = "/usr/share/common-licenses"


class Corpus:
    """Bytes for training and for validation.

    The last `held_out` part of every document is validation text. Licences of one family share
    paragraphs, so validation measures modelling, not memory of unseen styles.
    """

    def __init__(self, directory=DIRECTORY, held_out=0.1):
        train, validation, seen = [], [], set()
        for path in sorted(pathlib.Path(directory).iterdir()):
            if not path.is_file():
                continue
            text = path.read_bytes()
            digest = hashlib.sha256(text).digest()
            if digest in seen:  # GPL is a link to GPL-3, and so on
                continue
            seen.add(digest)
            cut = int(len(text) * (1.0 - held_out))
            train.append(text[:cut])
            validation.append(text[cut:])
        if not train:
            raise FileNotFoundError(f"no text below {directory}: expected Debian's licence files")
        self.train = _tensor(b"\n".join(train))
        self.validation = _tensor(b"\n".join(validation))

    def batch(self, step, rank, world, batch, context, seed):
        """Inputs and targets of one rank in one step: a pure function of its arguments."""
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 4099 + rank)
        starts = torch.randint(0, self.train.numel() - context - 1, (batch,), generator=generator)
        return _windows(self.train, starts, context)

    def validation_batches(self, windows, context, batch):
        """The same `windows` evenly spaced windows of the validation text for every run."""
        last = self.validation.numel() - context - 1
        starts = torch.linspace(0, last, windows).long()
        for first in range(0, windows, batch):
            yield _windows(self.validation, starts[first:first + batch], context)


def _tensor(text):
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def _windows(text, starts, context):
    rows = torch.stack([text[s:s + context + 1] for s in starts.tolist()])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
