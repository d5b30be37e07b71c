"""What the five tellings share: the forms, and the cloud in which something happens."""

from pydantic import BaseModel


class Placement(BaseModel):
    region: str


class Size(BaseModel):
    gb: int


class Confirm(BaseModel):
    go: bool


class Cloud:
    """Where databases are made. It knows a request again by its idempotency key."""

    def __init__(self) -> None:
        self.made: dict[str, str] = {}
        self.calls = 0

    async def create(self, name: str, region: str, gb: int, *, idempotency_key: str) -> str:
        self.calls += 1
        return self.made.setdefault(idempotency_key, f"{name}@{region}/{gb}GB")
