"""Little pictures without any library: a corner of the Mandelbrot set, written as PNG."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

ROUNDS: Final = 48
_PLACES: Final = (
    (-0.7435, 0.1314, 0.012),
    (-0.1011, 0.9563, 0.05),
    (-1.2500, 0.0200, 0.08),
    (0.2750, 0.0075, 0.02),
    (-0.5500, 0.6250, 0.15),
)


@dataclass(frozen=True, slots=True)
class Picture:
    """What to draw: a place in the plane, how much of it, and in which colours."""

    x: float
    y: float
    span: float
    tint: tuple[int, int, int]
    width: int = 288
    height: int = 192

    @classmethod
    def of(cls, name: str) -> Picture:
        """The picture that belongs to a name."""
        chance = Random(name)
        x, y, span = chance.choice(_PLACES)
        tint = (chance.randrange(3, 9), chance.randrange(3, 9), chance.randrange(3, 9))
        return cls(x, y, span * chance.uniform(0.7, 1.3), tint)

    def row(self, number: int) -> bytes:
        """The colours of one row, three bytes a point."""
        red, green, blue = self.tint
        step = self.span / self.width
        y = self.y + (number - self.height / 2) * step
        points = bytearray()
        for column in range(self.width):
            depth = _depth(complex(self.x + (column - self.width / 2) * step, y))
            points += bytes((depth * red % 256, depth * green % 256, depth * blue % 256))
        return bytes(points)

    def png(self, rows: Sequence[bytes]) -> bytes:
        """The rows as a file that every viewer can show."""
        head = struct.pack("!IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        body = zlib.compress(b"".join(b"\0" + row for row in rows))
        parts = ((b"IHDR", head), (b"IDAT", body), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _depth(point: complex) -> int:
    """How long it takes to run away from a point; 0: it does not."""
    z = 0j
    for count in range(1, ROUNDS):
        z = z * z + point
        if z.real * z.real + z.imag * z.imag > 4.0:
            return count
    return 0


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data)
    return struct.pack("!I", len(data)) + kind + data + struct.pack("!I", checksum)
