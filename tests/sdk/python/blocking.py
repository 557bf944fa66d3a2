"""The async SDK behind blocking calls, so that one test body holds the sync and the async API to the same answers.

Only what crosses the SDK's border is wrapped: coroutines are run to their end on one event loop, asynchronous iterators
become lists, and handles that have coroutines of their own (sprites, commands, paths) are wrapped again.
"""

import asyncio
import inspect
from typing import Any

import sprites

_HANDLES = (
    sprites.AsyncSpritesClient,
    sprites.AsyncSprite,
    sprites.AsyncCmd,
    sprites.AsyncSpriteFilesystem,
    sprites.AsyncSpritePath,
)


class Blocking:
    """`target`, an object of the async SDK, as if it were its sync twin."""

    def __init__(self, target: Any, loop: asyncio.Runner) -> None:
        self.target = target
        self.loop = loop

    def __getattr__(self, name: str) -> Any:
        return self._cross(getattr(self.target, name))

    def __truediv__(self, other: Any) -> "Blocking":
        return Blocking(self.target / _bare(other), self.loop)

    def __str__(self) -> str:
        return str(self.target)

    def _cross(self, value: Any) -> Any:
        if inspect.iscoroutine(value):
            return self._cross(self.loop.run(value))
        if inspect.isasyncgen(value):
            return self._cross(self.loop.run(_collect(value)))
        if inspect.ismethod(value):
            return lambda *args, **named: self._cross(value(*map(_bare, args), **named))
        if isinstance(value, _HANDLES):
            return Blocking(value, self.loop)
        if isinstance(value, list):
            return [self._cross(item) for item in value]
        return value


def _bare(value: Any) -> Any:
    return value.target if isinstance(value, Blocking) else value


async def _collect(values: Any) -> list[Any]:
    return [value async for value in values]
