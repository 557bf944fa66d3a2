"""A silent command must outlive every client's idea of a dead connection: the SDK gives up on a pong after 45 s.

It takes the longest of all by the clock, so conftest.py moves it to the front.
"""

import asyncio

import pytest
import sprites

from http_exec import http_exec

SILENT_SECONDS = 70


@pytest.mark.slow
async def test_silent_commands_survive(base_url, token, fresh_name):
    async with (
        sprites.AsyncSpritesClient(token, base_url) as direct,
        sprites.AsyncSpritesClient(token, base_url, control_mode=True) as control,
    ):
        sprite = await direct.create_sprite(fresh_name("idle"))
        over_control = control.sprite(sprite.name)
        argv = ["sh", "-c", f"echo before; sleep {SILENT_SECONDS}; echo after; exit 9"]
        answers = await asyncio.gather(
            sprite.run(*argv, capture_output=True),
            over_control.run(*argv, capture_output=True),
            sprite.run(*argv, capture_output=True, tty=True),
            asyncio.to_thread(http_exec, base_url, token, sprite.name, argv, timeout=120),
        )
        plain, controlled, terminal, http = answers
        assert (plain.stdout, plain.returncode) == (b"before\nafter\n", 9)
        assert (controlled.stdout, controlled.returncode) == (b"before\nafter\n", 9)
        assert (terminal.stdout, terminal.returncode) == (b"before\r\nafter\r\n", 9)
        assert (http.stdout, http.code) == (b"before\nafter\n", 9)
        await over_control.close_control_connection()
        await sprite.destroy()
