"""Parts of a training loop that can be saved and restored."""

from typing import Any, ClassVar, Protocol


class Part(Protocol):
    """A part of the training loop with a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values and tensors."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Restore a state."""


class Stateful:
    """A part whose state is the attributes named in `kept`."""

    kept: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes' values."""
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the attributes; a tensor is filled in place, so it stays on its device."""
        for name in self.kept:
            mine, value = getattr(self, name), state[name]
            setattr(self, name, mine.copy_(value) if hasattr(mine, "copy_") else value)
