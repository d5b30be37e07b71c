"""The private signals by which a round ends inside a handler. No errors; no client sees them."""


class Suspended(BaseException):
    """The round ended at this ask; let it pass.

    You see this because a handler asked for something: its frame is unwound so that `finally` and
    context managers run, and the handler is run again when the answer has come. Catch `Exception`
    or the errors you mean, never `BaseException`.
    """

    def __init__(self, run: object) -> None:
        super().__init__("the round ended at this ask; let it pass")
        self.run = run
        """Whose round ended: each frame takes only its own."""


class Abandoned(BaseException):
    """Another process has taken this round over; whatever this run does no longer counts."""
