"""TensorBoard: a folder for each attempt in `tensorboard/` of the project, with a file of events.

The file has the journal line by line, and like it only grows: its length says how much it has.
"""

import struct
from io import BytesIO
from typing import Any

from labjobs import files, layout
from labjobs.files import PROJECT
from labjobs.tracking.copies import Copy

SIZE = slice(16, 24)  # the width and height in a PNG file (w3.org/TR/png, IHDR)


def write(copy: Copy) -> None:
    """Bring the file of an attempt up to its journal. Raises OSError."""
    root, whole = PROJECT / layout.TENSORBOARD, _encoded(copy)
    folder = next(root.glob(f"* {copy.end}"), root / copy.title)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"events.out.tfevents.{copy.journal}"
    for other in {*folder.iterdir()} - {file}:  # of a try that --force has replaced
        other.unlink()
    there = file.read_bytes() if file.exists() else b""
    if whole.startswith(there):
        with file.open("ab") as end:
            end.write(whole[len(there) :])
    else:  # an image has changed since
        files.write(file, lambda new: new.write(whole))


def _encoded(copy: Copy) -> bytes:
    """The events as the file has them: always the same bytes for the same journal."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.plugins.text.summary import text_pb
    from tensorboard.summary.writer.record_writer import RecordWriter

    writer = RecordWriter(stream := BytesIO())
    for row in copy.rows():

        def add(at: float = row["time"], step: int = row["step"], **what: Any) -> None:
            event = Event(wall_time=at, step=step, **what)
            writer.write(event.SerializeToString(deterministic=True))

        if row["line"] == 1:
            add(file_version="brain.Event:2")  # from which on steps may decrease
            settings = copy.about["settings"].items()
            plain = {k: v if isinstance(v, bool | int | float) else str(v) for k, v in settings}
            add(summary=hparams_pb(plain, start_time_secs=row["time"]))
        for name, text in row["texts"].items():
            add(summary=text_pb(name, text))
        values = [Summary.Value(tag=k, simple_value=v) for k, v in row["metrics"].items()]
        for name, path in row["images"].items():
            png = path.read_bytes()
            width, height = struct.unpack(">II", png[SIZE])
            image = Summary.Image(width=width, height=height, encoded_image_string=png)
            values.append(Summary.Value(tag=name, image=image))
        if values:
            add(summary=Summary(value=values))
    return stream.getvalue()
