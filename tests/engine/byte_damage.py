"""Random damage to the bytes of a file, given the same file of another job."""

import random
from collections.abc import Callable, Sequence


def flipped(data: bytearray, chance: random.Random, other: bytes) -> bytes:
    """One to eight bits turned over."""
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def zeroed(data: bytearray, chance: random.Random, other: bytes) -> bytes:
    """Some NUL bytes, as after a power cut."""
    place, count = chance.randrange(len(data)), chance.choice((1, 4, 64, 4096))
    return bytes(data[:place] + bytes(min(count, len(data) - place)) + data[place + count :])


def cut(data: bytearray, chance: random.Random, other: bytes) -> bytes:
    """Only a part from the beginning, perhaps nothing."""
    return bytes(data[: chance.choice((0, chance.randrange(len(data))))])


def garbage(data: bytearray, chance: random.Random, other: bytes) -> bytes:
    """Random bytes in the middle, or in the place of all."""
    place, new = chance.randrange(len(data)), chance.randbytes(chance.choice((1, 20, 600)))
    return chance.choice((bytes(data[:place] + new + data[place:]), new))


def typed(data: bytearray, chance: random.Random, other: bytes) -> bytes:
    """Other JSON."""
    return chance.choice((b"[]", b"{}", b"3\n", b"null", b'{"status": []}', b"[" * 5000))


def foreign(data: bytearray, chance: random.Random, other: bytes) -> bytes:
    """Another job's file, or a line of it."""
    own, others = (bytes(each).splitlines(keepends=True) for each in (data, other))
    own[chance.randrange(len(own))] = chance.choice(others)
    return chance.choice((other, b"".join(own)))


def gone(data: bytearray, chance: random.Random, other: bytes) -> bytes:
    """Some lines less."""
    own = bytes(data).splitlines(keepends=True)
    first, count = chance.randrange(len(own)), chance.choice((1, 1, 2, 9))
    return b"".join(own[:first] + own[first + count :])


def twice(data: bytearray, chance: random.Random, other: bytes) -> bytes:
    """A line once more, somewhere else."""
    own = bytes(data).splitlines(keepends=True)
    own.insert(chance.randrange(len(own) + 1), chance.choice(own))
    return b"".join(own)


MUTATIONS: Sequence[Callable[[bytearray, random.Random, bytes], bytes]] = (
    flipped, flipped, zeroed, cut, garbage, typed, foreign, gone, twice,
)  # fmt: skip
