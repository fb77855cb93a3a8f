"""A length of training, in optimizer steps or in epochs."""

import re

from labjobs.errors import SettingsError

PATTERN = re.compile(r"0*([0-9]{1,12})|0*([0-9]{1,12})(?:\.([0-9]{1,12}))?e")


class Span(str):
    """A number of optimizer steps, such as "500", or of epochs, such as "2e" or "0.5e".

    The text is kept in canonical form ("2.0e" is "2e"). A span of 0 is false. Raises ValueError
    for any other text; a number such as 1e3 is refused, since it looks like epochs.
    """

    def __new__(cls, text: str) -> "Span":
        """Return the span of a text in canonical form."""
        found = PATTERN.fullmatch(text)
        if not found:
            raise ValueError(
                "must be a number of steps such as 500, or of epochs such as 2e or 0.5e"
            )
        steps, epochs, decimals = found.groups(default="")
        fraction = f".{decimals}".rstrip("0").rstrip(".")
        number = f"{epochs}{fraction}"
        return super().__new__(cls, steps or (f"{number}e" if number != "0" else "0"))

    def __bool__(self) -> bool:
        return self.number > 0

    @property
    def number(self) -> float:
        """The number, of steps or of epochs."""
        return float(self.removesuffix("e"))

    def steps(self, steps_per_epoch: int | None) -> int:
        """Return the span in whole optimizer steps.

        Raises SettingsError for epochs of training data without a length (None).
        """
        if not self.endswith("e"):
            return int(self)
        if steps_per_epoch is None:
            raise SettingsError(f"{self}: this training data has no epochs; give a number of steps")
        return round(self.number * steps_per_epoch)
