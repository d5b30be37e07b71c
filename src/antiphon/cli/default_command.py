"""A group of commands of which one may be left out: `antiphon calls STORE` lists calls."""

from typing import Any

from typer.core import TyperGroup


def default_command(name: str) -> type[TyperGroup]:
    """Return a group that runs the command of this name where none of its commands is named."""

    class WithDefault(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in {*self.commands, "--help"}:
                args = [name, *args]
            return super().parse_args(ctx, args)

    return WithDefault
