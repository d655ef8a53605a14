# SPDX-License-Identifier: Apache-2.0
"""A small byte-level transformer language model, sized by its number of parameters.

Bytes say little by themselves, so each position also carries embeddings of the hashed 2-, 3- and
4-byte sequences that end there, as byte-level models without a tokenizer do (BLT, arXiv:2412.09871,
section 3.2.1). They hold about two thirds of the parameters, and a step touches few of their rows:
the gradient has dense and nearly empty regions, as in any model with large embeddings.
"""
import math

import torch
from torch import nn
from torch.nn import functional

NGRAMS = (2, 3, 4)
ROWS_PER_NGRAM = 4096
HASH_FACTOR = 1_000_003


class Block(nn.Module):
    """Pre-norm self-attention and feed-forward layer."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = nn.Linear(width, 4 * width)
        self.feed_out = nn.Linear(4 * width, width)

    def forward(self, x, mask):
        rows, length, width = x.shape
        q, k, v = self.query_key_value(self.attention_norm(x)).split(width, dim=2)
        q, k, v = (t.view(rows, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        weights = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)) + mask
        mixed = (weights.softmax(-1) @ v).transpose(1, 2).reshape(rows, length, width)
        x = x + self.attention_out(mixed)
        return x + self.feed_out(functional.gelu(self.feed_in(self.feed_norm(x))))


class ByteModel(nn.Module):
    """Predicts each next byte of `context`-byte windows. ngrams: lengths of the hashed sequences; none: a plain
    transformer."""

    def __init__(self, parameters_min, context, layers=3, heads=4, ngrams=NGRAMS):
        super().__init__()
        width = width_for(parameters_min, context, layers, heads, ngrams)
        self.byte_embedding = nn.Embedding(256, width)
        self.ngram_embeddings = nn.ModuleList(nn.Embedding(ROWS_PER_NGRAM, width) for _ in ngrams)
        self.position_embedding = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", torch.full((context, context), -1e9).triu(1))
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and name != "position_embedding":
                nn.init.normal_(parameter, std=0.02 if "embedding" in name else width ** -0.5)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        for block in self.blocks:  # residual branches start small
            for layer in (block.attention_out, block.feed_out):
                layer.weight.data /= math.sqrt(2 * layers)

    def forward(self, text):
        x = self.byte_embedding(text) + self.position_embedding
        code = text
        for distance, table in enumerate(self.ngram_embeddings, start=1):
            earlier = functional.pad(text, (distance, 0))[:, :text.size(1)]
            code = (code * HASH_FACTOR + earlier + 1) % 2147483647
            x = x + table(code % ROWS_PER_NGRAM)
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


def parameter_count(width, context, layers, ngrams=NGRAMS):
    """Trainable parameters of a ByteModel."""
    block = 12 * width * width + 13 * width
    embeddings = (256 + context + len(ngrams) * ROWS_PER_NGRAM) * width
    return layers * block + embeddings + 2 * width + 256 * width + 256


def width_for(parameters_min, context, layers, heads, ngrams=NGRAMS):
    """The smallest width, a multiple of 4 per head, with at least `parameters_min` parameters."""
    step = 4 * heads
    width = step
    while parameter_count(width, context, layers, ngrams) < parameters_min:
        width += step
    return width


def loss_of(logits, targets):
    """Mean cross entropy in nats per byte."""
    return functional.cross_entropy(logits.view(-1, 256), targets.view(-1))
