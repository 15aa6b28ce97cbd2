"""What aiormq reads frames from, without the timestamps that would end its connection."""

import asyncio
from collections.abc import Iterator

from pamqp import decode
from pamqp.constants import FRAME_HEADER, FRAME_HEADER_SIZE

NOT_IN_ANY_CALENDAR = ValueError, OverflowError, OSError
NOT_A_HEADER = IndexError, KeyError

FLAGS_AT = 12  # after the class, the weight and the size of the body
PROPERTIES = "$$Foo$$$$T$$$$"
"""What kind each property is, in their order; `$` is a short string, `o` an octet."""

TIMESTAMP = 0x8000 >> PROPERTIES.index("T")

SIZES = {"D": 5} | {
    kind: size
    for size, kinds in {0: "V\0", 1: "otbB", 2: "su", 4: "Iif", 8: "lLdT"}.items()
    for kind in kinds
}
"""How many bytes a value of each kind has, of those that do not say so themselves."""


class FrameReader(asyncio.StreamReader):
    """A stream of frames, read as aiormq does: first what a frame is, then all the rest of it.

    pamqp raises on a timestamp that no calendar has, inside aiormq's reader: one message of
    somebody else would cost us the connection, again and again
    (https://github.com/mosquito/aiormq/issues/186).
    """

    _frame = b""

    async def readexactly(self, n: int) -> bytes:
        data = await super().readexactly(n)
        if len(self._frame) < FRAME_HEADER_SIZE:
            self._frame += data
            return data
        kind, self._frame = self._frame[0], b""
        return without_impossible_timestamps(data) if kind == FRAME_HEADER else data


def without_impossible_timestamps(header: bytes) -> bytes:
    """A message's header with 1970 for each timestamp that no calendar has."""
    try:
        impossible = [at for at in _timestamps(header) if not _is_possible(header[at : at + 8])]
    except NOT_A_HEADER:
        return header  # pamqp says what is wrong with it
    if not impossible:
        return header
    mended = bytearray(header)
    for at in impossible:
        mended[at : at + 8] = bytes(8)
    return bytes(mended)


def _is_possible(timestamp: bytes) -> bool:
    try:
        decode.timestamp(timestamp)
    except NOT_IN_ANY_CALENDAR:
        return False
    return True


def _timestamps(header: bytes) -> Iterator[int]:
    flags = int.from_bytes(header[FLAGS_AT : FLAGS_AT + 2])
    if not flags & TIMESTAMP and b"T" not in header:
        return  # as in most
    at = FLAGS_AT + 2
    for position, kind in enumerate(PROPERTIES):
        if flags & (0x8000 >> position):
            if kind in "TF":
                yield from _timestamps_in_value(header, kind, at)
            at += _size(header, kind, at)


def _timestamps_in_value(header: bytes, kind: str, at: int) -> Iterator[int]:
    if kind == "T":
        yield at
        return
    end, at = at + _size(header, kind, at), at + 4
    while at < end:
        if kind == "F":
            at += _size(header, "$", at)
        each, at = chr(header[at]), at + 1
        if each in "TAF":
            yield from _timestamps_in_value(header, each, at)
        at += _size(header, each, at)


def _size(header: bytes, kind: str, at: int) -> int:
    if kind == "$":
        return 1 + header[at]
    if kind in "SxAF":
        return 4 + int.from_bytes(header[at : at + 4])
    return SIZES[kind]
