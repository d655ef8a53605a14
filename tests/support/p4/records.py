# SPDX-License-Identifier: Apache-2.0
"""Headers, structs and externs of a running program.

What P4 leaves undefined is made random here, so that a program which relies on it gives random answers: fields
of invalid headers, metadata and variables that nothing was assigned to, and registers that nothing was written
to (BMv2 clears those; a switch that has served other jobs does not).
"""
import random


class TooShort(Exception):
    """The frame ends before the header that is extracted does."""


class Undefined:
    """A source of values that mean nothing."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def bits(self, width):
        return self.random.getrandbits(width)


class Header:
    """A header of a declared type; fields are attributes."""

    def __init__(self, fields, undefined):
        self.fields_ = fields
        self.undefined_ = undefined
        self.valid_ = False
        self.scramble()

    def scramble(self):
        for name, width in self.fields_:
            setattr(self, name, self.undefined_.bits(width))

    def set_valid(self):
        if not self.valid_:
            self.scramble()
        self.valid_ = True

    def set_invalid(self):
        self.valid_ = False
        self.scramble()

    def copy(self):
        other = Header.__new__(Header)
        other.__dict__.update(self.__dict__)
        return other

    def width(self):
        return sum(width for _, width in self.fields_)

    def load(self, value):
        left = self.width()
        for name, width in self.fields_:
            left -= width
            setattr(self, name, value >> left & (1 << width) - 1)
        self.valid_ = True

    def bytes(self):
        value = 0
        for name, width in self.fields_:
            value = value << width | getattr(self, name)
        return value.to_bytes(self.width() // 8, "big")


class Record:
    """A struct: headers, numbers, or both."""

    def copy(self):
        other = Record()
        for name, value in self.__dict__.items():
            other.__dict__[name] = value.copy() if isinstance(value, Header) else value
        return other


class PacketIn:
    """packet_in: a frame that is read from its front."""

    def __init__(self, frame):
        self.frame = frame
        self.at = 0

    def take(self, count):
        if self.at + count > len(self.frame):
            raise TooShort()
        return int.from_bytes(self.frame[self.at:self.at + count], "big")

    def extract(self, header):
        count = header.width() // 8
        header.load(self.take(count))
        self.at += count

    def lookahead(self, width):
        return self.take(width // 8)

    def rest(self):
        return self.frame[self.at:]


class PacketOut:
    """packet_out: valid headers, one behind the other."""

    def __init__(self):
        self.parts = []

    def emit(self, header):
        if header.valid_:
            self.parts.append(header.bytes())


class Clock:
    """Counts packets, by which registers know that they are used twice for one."""

    def __init__(self):
        self.packet = 0


class Register:
    """register<bit<W>>(size). One read and one write per packet, of one entry, in this order."""

    def __init__(self, name, width, size, undefined, clock):
        self.name = name
        self.width, self.size, self.undefined = width, size, undefined
        self.values = {}
        self.clock = clock
        self.read_at = self.written_at = -1
        self.index = None

    def read(self, index):
        if self.read_at == self.clock.packet:
            raise AssertionError(f"{self.name}: read twice for one packet")
        if self.written_at == self.clock.packet:
            raise AssertionError(f"{self.name}: read after it was written for one packet")
        self.read_at, self.index = self.clock.packet, index
        if self.checked(index) not in self.values:
            self.values[index] = self.undefined.bits(self.width)
        return self.values[index]

    def write(self, index, value):
        if self.written_at == self.clock.packet:
            raise AssertionError(f"{self.name}: written twice for one packet")
        if self.read_at == self.clock.packet and self.index != index:
            raise AssertionError(f"{self.name}: entry {self.index} read, entry {index} written")
        self.written_at = self.clock.packet
        self.values[self.checked(index)] = value

    def checked(self, index):
        if index >= self.size:
            raise AssertionError(f"{self.name}: entry {index} of {self.size}")
        return index


class Counter:
    """counter(size, type); only packets are counted."""

    def __init__(self, name, size):
        self.name = name
        self.values = [0] * size

    def count(self, index):
        self.values[index] += 1


def checksum16(fields):
    """The Internet checksum of (value, width) pairs, which are whole words together."""
    value, bits = 0, 0
    for field, width in fields:
        value, bits = value << width | field, bits + width
    if bits % 16 != 0:
        raise AssertionError(f"checksum of {bits} bits")
    total = sum(value >> shift & 0xFFFF for shift in range(0, bits, 16))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
