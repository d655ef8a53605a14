# SPDX-License-Identifier: Apache-2.0
"""The tasks of convergence_bench: well-known models, on data that every Debian machine can have."""
import gzip
import pathlib

import torch
from torch import nn
from torch.nn import functional

from demo_job import recipe
from demo_job.model import ByteModel

IMAGES = pathlib.Path("/usr/share/datasets/fashion-mnist")   # Debian's dataset-fashion-mnist
BATCH = 32
VALIDATION_IMAGES = 512
CLASSES = 10


class PlainTransformer(recipe.ByteTask):
    """The demo's language model without hashed n-grams, which compress better than other layers."""

    def model(self):
        return ByteModel(800_000, recipe.CONTEXT, ngrams=())


class Residual(nn.Module):
    """Two convolutions and a shortcut. Groups instead of batches are normalised, so that ranks share no statistics."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(8, outputs) for _ in range(2))
        self.shortcut = nn.Identity() if inputs == outputs and stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x):
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + self.shortcut(x))


class ResidualNetwork(nn.Module):
    """A small ResNet: 0.7 M parameters."""

    def __init__(self):
        super().__init__()
        widths = (32, 64, 128)
        self.stem = nn.Conv2d(1, widths[0], 3, 2, 1)
        layers, inputs = [], widths[0]
        for stage, width in enumerate(widths):
            layers += [Residual(inputs, width, 1 if stage == 0 else 2), Residual(width, width, 1)]
            inputs = width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, CLASSES)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


class VisionTransformer(nn.Module):
    """Patches of 4 x 4 pixels, four layers: 0.8 M parameters."""

    def __init__(self, width=128, depth=4, heads=4, patch=4):
        super().__init__()
        self.patches = nn.Conv2d(1, width, patch, patch)
        self.position = nn.Parameter(torch.randn(1, (28 // patch) ** 2, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True,
                                           activation="gelu")
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.norm(self.layers(x)).mean(1))


def _read(name, header):
    with gzip.open(IMAGES / name) as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


class Images:
    """Fashion-MNIST with one of the models above."""

    def __init__(self, make_model):
        self._make_model = make_model
        self._train = self._load("train")
        self._test = self._load("t10k")

    @staticmethod
    def _load(part):
        labels = _read(f"{part}-labels-idx1-ubyte.gz", 8).long()
        images = _read(f"{part}-images-idx3-ubyte.gz", 16).view(len(labels), 1, 28, 28)
        return images, labels

    @staticmethod
    def _scaled(images):
        return images.float() / 255 - 0.286   # the mean of the training images

    def model(self):
        """A new model, from torch's seed."""
        return self._make_model()

    def optimizer(self, model, steps):
        """Optimiser and learning-rate schedule: the demo's."""
        return recipe.optimizer_for(model, steps)

    def loss(self, model, step, rank, world, seed):
        """The loss of one rank's batch of one step: a pure function of its arguments."""
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 4099 + rank)
        images, labels = self._train
        chosen = torch.randint(0, len(labels), (BATCH,), generator=generator)
        return functional.cross_entropy(model(self._scaled(images[chosen])), labels[chosen])

    def clip(self, model):
        """Applied to the mean gradient before the optimiser's step."""
        recipe.clip(model)

    @torch.no_grad()
    def validation(self, model, rank, world):
        """(sum of losses, number of them) over the rank's share of the first test images."""
        model.eval()
        images, labels = (part[rank:VALIDATION_IMAGES:world] for part in self._test)
        total = float(functional.cross_entropy(model(self._scaled(images)), labels, reduction="sum"))
        model.train()
        return total, len(labels)


TASKS = {"transformer": lambda: PlainTransformer(0), "cnn": lambda: Images(ResidualNetwork),
         "vit": lambda: Images(VisionTransformer)}
