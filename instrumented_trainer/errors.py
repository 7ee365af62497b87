"""What a user of the trainer can get wrong: one line that says what, one that says what to do."""


class TrainerError(Exception):
    """``message`` says what is wrong, in one line; ``hint`` says what to do about it, or is None.

    The command lines print both and exit with status 2.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def line(self) -> str:
        """Both parts as the single line that the command lines print."""
        return self.message if self.hint is None else f"{self.message}; {self.hint}"
