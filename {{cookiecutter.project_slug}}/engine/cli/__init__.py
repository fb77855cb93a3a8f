"""The command line of a settings dataclass. Standard library only; imports no other package."""
