"""A running command that a test can watch, write to, resize, leave and join again.

The SDK's public methods only return when a command has ended, so these tests hold its socket object themselves.
"""

import asyncio
import json
import queue

import sprites
from sprites.websocket import WSCommand

WAIT_SECONDS = 30


class Sink:
    """Collects a stream and wakes whoever waits for a text in it."""

    def __init__(self) -> None:
        self.data = b""
        self.changed = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.data += data
        self.changed.set()

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while text not in self.data:
                self.changed.clear()
                await self.changed.wait()


class Feed:
    """Standard input as the SDK wants it: a file whose `read` waits for what the test sends next."""

    def __init__(self) -> None:
        self.pieces: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.read = lambda size: self.pieces.get()


class Live:
    """One open socket on a session: a new command, or an attachment when `session` is given.

    An attachment has no input; the SDK offers none.
    """

    def __init__(self, sprite: sprites.AsyncSprite, *args: str, session: str | None = None, **options) -> None:
        self.stdout, self.stderr, self.messages = Sink(), Sink(), []
        self.stdin = Feed()
        if session:
            self.command = sprite.attach_session(session)
        else:
            self.command = sprite.command(*args, stdin=self.stdin, **options)
        self.command.stdout, self.command.stderr = self.stdout, self.stderr
        self.socket = WSCommand(self.command)
        self.socket.text_message_handler = lambda raw: self.messages.append(json.loads(raw))

    async def __aenter__(self) -> "Live":
        await self.socket.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Closes the socket and nothing else."""
        await self.socket.close()
        self.end_input()  # frees the thread in which the SDK waited for input
        await asyncio.gather(self.socket._io_task, return_exceptions=True)

    async def drop(self) -> None:
        """Cuts the connection without a goodbye."""
        self.socket.ws.transport.abort()
        await asyncio.gather(self.socket._io_task, return_exceptions=True)
        self.end_input()

    def send(self, data: bytes) -> None:
        self.stdin.pieces.put(data)

    def end_input(self) -> None:
        self.stdin.pieces.put(b"")

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.socket.wait(), WAIT_SECONDS)

    @property
    def info(self) -> dict:
        """The `session_info` of this socket, which must have been its first message."""
        assert self.messages and self.messages[0]["type"] == "session_info", self.messages
        return self.messages[0]
