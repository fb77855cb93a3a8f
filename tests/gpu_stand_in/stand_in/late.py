"""GPUs that work asynchronously: the host goes on, and the work is done later, in random order.

Within `running_late(seed)` the stand-in queues each operation on the current stream of the tensors'
GPU, and the host goes on; what is queued is done by and by, in an order drawn from the seed, at the
latest when the host waits for it. The rules are those of docs/devices.md, by their numbers there:

2  Each thread of the host has a current device, and events are recorded there.
4  Streams are queues. Only an event orders one after another.
5  A copy between a GPU and pinned memory reads and writes that memory when its turn comes.
6  Other copies between host and GPU wait for the current stream, and for no other.
7  Freed memory belongs at once to what its stream does next: here, that writes 0xFF over it, which
   no number survives. What `record_stream` named holds it back until then.
8  Freed pinned memory stays until the copies that it took part in are done.

A tensor has 0xFF in it until the operation that makes it has its turn. Random numbers are drawn
when an operation is queued, as on a GPU.
"""

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._pytree import tree_flatten, tree_unflatten

from stand_in import graphs
from stand_in.driver import driver
from stand_in.rules import WAITS

GARBAGE = 0xFF

Task = Callable[[], None]

Stream = tuple[int, int]
"""A GPU's number, and the number of one of its streams; the default stream of each is 0."""


@dataclass(eq=False)
class Mark:
    """A place in a stream, which an event is recorded at."""

    done: bool = False
    then: list[Task] = field(default_factory=list)

    def reached(self) -> None:
        self.done = True
        for task in self.then:
            task()


class Late:
    """The queues of the GPUs, and the order in which they do what is in them."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.lock = threading.RLock()
        """Of the thread that speaks with a GPU."""
        self._streams: defaultdict[Stream, deque[Task | Mark]] = defaultdict(deque)
        self._pace = self._chance.choice((0.0, 0.1, 0.5, 0.9))
        self._weights: defaultdict[Stream, float] = defaultdict(
            lambda: self._chance.choice((1e-4, 1.0, 1e4))
        )
        self.done = 0
        """Tasks that were done."""
        self.ahead = 0
        """The most tasks that the host was ahead."""
        self.error: Exception | None = None
        """What went wrong on the GPU, as an index that is none."""

    def draw(self) -> float:
        """Return a number from 0 to 1, for what else is left to chance."""
        with self.lock:
            return self._chance.random()

    def put(self, task: Task, stream: Stream) -> None:
        with self.lock:
            self._streams[stream].append(task)
            self.ahead = max(self.ahead, sum(len(self._streams[name]) for name in self._known()))

    def mark(self, stream: Stream) -> Mark:
        mark = Mark()
        self.put(mark.reached, stream)
        return mark

    def bar(self, stream: Stream, mark: Mark) -> None:
        """Have what is queued on a stream from now on wait for a mark."""
        with self.lock:
            self._streams[stream].append(mark)

    def some(self) -> None:
        """Do some of what is queued, or nothing."""
        with self.lock:
            while self._chance.random() < self._pace and self._step():
                pass

    def until(self, mark: Mark) -> None:
        with self.lock:
            while not mark.done:
                assert self._step(), "the GPU waits for itself"
            self._raise()

    def drain(self, stream: Stream) -> None:
        self.until(self.mark(stream))

    def drain_gpu(self, gpu: int) -> None:
        with self.lock:
            for stream in self._known():
                if stream[0] == gpu:
                    self.drain(stream)

    def drain_all(self) -> None:
        with self.lock:
            while self._step():
                pass
            self._raise()

    def _known(self) -> list[Stream]:
        """The streams so far: Python may collect garbage at any time, and memory that is freed by
        that can be of a new one."""
        return list(self._streams)

    def _raise(self) -> None:
        if self.error:
            raise RuntimeError("CUDA error: device-side assert triggered") from self.error

    def _step(self) -> bool:
        ready = [name for name in self._known() if self._is_ready(self._streams[name])]
        if not ready:
            return False
        (stream,) = self._chance.choices(ready, [self._weights[name] for name in ready])
        task = self._streams[stream].popleft()
        assert not isinstance(task, Mark)
        try:
            task()
        except Exception as error:
            self.error = error
        self.done += 1
        return True

    @staticmethod
    def _is_ready(queue: "deque[Task | Mark]") -> bool:
        while queue and isinstance(first := queue[0], Mark) and first.done:
            queue.popleft()
        return bool(queue) and not isinstance(queue[0], Mark)


@contextmanager
def running_late(seed: int) -> Iterator[Late]:
    """GPUs that run late, in an order drawn from a seed. Raises what went wrong on them."""
    driver.late = Late(seed)
    try:
        yield driver.late
        driver.late.drain_all()
    finally:
        graphs.memory.clear()
        driver.late = None


def current(gpu: int) -> Stream:
    return gpu, driver.streams_now.get(gpu, 0)


class Block:
    """Memory of a GPU, which lives as long as a tensor on the GPU is in it."""

    def __init__(self, of: Tensor, gpu: int) -> None:
        storage = of.untyped_storage()
        self._bytes = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._stream, self._used_by = current(gpu), set[Stream]()

    def used_by(self, stream: Stream) -> None:
        """Keep it, once it is freed, until a stream has done what it was told by then."""
        self._used_by.add(stream)

    def __del__(self) -> None:
        queue, stream, memory = driver.late, self._stream, self._bytes
        if queue is None:
            return
        left = {queue.mark(other) for other in self._used_by - {stream}}

        def free(mark: Mark | None = None) -> None:
            left.discard(mark)  # type: ignore[arg-type]
            if not left:
                queue.put(partial(memory.fill_, GARBAGE), stream)

        for mark in [*left]:
            mark.then.append(partial(free, mark))
        if not left:
            free()


_BLOCKS: WeakValueDictionary[int, Block] = WeakValueDictionary()


def block(host: Tensor, gpu: int) -> Block | None:
    """Return the block of a GPU that a tensor's numbers are in; None while it is traced."""
    address = host.untyped_storage().data_ptr() if type(host) in (Tensor, Parameter) else 0
    if not address:
        return None
    found = _BLOCKS.get(address)
    if found is None and driver.recording:
        return None  # memory of a graph is used for nothing else
    if found is None:
        found = _BLOCKS[address] = Block(host, gpu)
    return found


def made(values: Tensor, gpu: int) -> Tensor:
    """Return a tensor that gets these values when the GPU's turn comes."""
    memory = _memory_like(values)
    _queue(partial(memory.copy_, values), gpu)
    return memory


def operate(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seeded: Any, gpu: int) -> Any:
    """Queue an operation on tensors of the host that stand for a GPU's; returns its result, whose
    numbers come later. `seeded` is the generator that it draws from, or None."""
    if _is_view(op):
        return op(*args, **kwargs)
    if op in WAITS:
        _wait(gpu)
        return op(*args, **kwargs)
    flat, form = tree_flatten((args, kwargs))
    blanks = {id(value): _blank(value) for value in flat if isinstance(value, Tensor)}
    tried = [blanks.get(id(value), value) for value in flat]
    before = None if seeded is None else seeded.get_state()
    tried_args, tried_kwargs = tree_unflatten(tried, form)
    results, shape = tree_flatten(op(*tried_args, **tried_kwargs))
    given = {id(blanks[id(value)]): value for value in flat if id(value) in blanks}
    back = [given.get(id(value), value) for value in results]
    fresh = [n for n, value in enumerate(back) if isinstance(value, Tensor) and value is results[n]]
    for n in fresh:
        back[n] = _memory_like(results[n])

    def task() -> None:
        with torch.no_grad(), _drawing(seeded, before):
            done, _ = tree_flatten(op(*args, **kwargs))
        for n in fresh:
            back[n].copy_(done[n])

    _queue(task, gpu)
    return tree_unflatten(back, shape)


def copy(to: Tensor, source: Tensor, non_blocking: bool, gpu: int) -> None:
    """Copy within the GPU, or between it and the host, whose memory is then pinned or not."""
    if non_blocking:
        _queue(partial(to.copy_, source), gpu)
    else:
        _wait(gpu)
        to.copy_(source)


def to_host(op: Any, source: Tensor, kwargs: dict[str, Any], gpu: int) -> Tensor:
    """Return a copy on the host: with `non_blocking`, in pinned memory that is filled later."""
    if not kwargs.get("non_blocking"):
        _wait(gpu)
        return op(source, **kwargs)
    memory = _memory_like(op(_blank(source), **kwargs)).pin_memory()
    if driver.late.draw() < 0.5:  # such memory is used again, and has numbers of before in it
        memory.fill_(1)
    _queue(partial(memory.copy_, source), gpu)
    return memory


def _queue(task: Task, gpu: int) -> None:
    assert driver.late
    driver.late.put(task, current(gpu))
    driver.late.some()


def _wait(gpu: int) -> None:
    assert driver.late
    driver.late.drain(current(gpu))


def _is_view(op: Any) -> bool:
    """Whether an operation reads no numbers and makes none."""
    about = [each.alias_info for each in op._schema.returns]
    return bool(about) and all(each is not None and not each.is_write for each in about)


def _blank(like: Tensor) -> Tensor:
    """Zeros in the same form."""
    size = sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True)) + 1
    zeros = torch.zeros(size if like.numel() else 0, dtype=like.dtype)
    return zeros.as_strided(like.shape, like.stride())


def _memory_like(values: Tensor) -> Tensor:
    memory = torch.empty_like(values)
    memory.untyped_storage().fill_(GARBAGE)
    return memory


@contextmanager
def _drawing(generator: Any, state: Tensor | None) -> Iterator[None]:
    """Draw from where a generator was when the operation was queued."""
    if generator is None:
        yield
        return
    now = generator.get_state()
    generator.set_state(state)
    try:
        yield
    finally:
        generator.set_state(now)
