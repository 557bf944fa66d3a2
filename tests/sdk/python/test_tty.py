"""Terminals: size, resize, control characters, exit codes (wire/exec.md §2.2, §8.5)."""

import asyncio
import io

import pytest

from live import Live
from test_exec import CODES


@pytest.mark.parametrize("code", CODES)
def test_exit_code(box, code):
    done = box.run("sh", "-c", f"echo out; exit {code}", tty=True, capture_output=True)
    assert (done.stdout, done.returncode) == (b"out\r\n", code)


@pytest.mark.parametrize("signal, code", [("HUP", 129), ("INT", 130), ("KILL", 137), ("TERM", 143)])
def test_a_death_by_signal_is_128_plus_its_number(box, signal, code):
    assert box.run("sh", "-c", f"kill -{signal} $$", tty=True).returncode == code


@pytest.mark.parametrize("rows, cols", [(24, 80), (1, 1), (50, 200), (1000, 999)])
def test_the_size_is_there_before_the_command_starts(box, rows, cols):
    done = box.run("stty", "size", tty=True, tty_rows=rows, tty_cols=cols, capture_output=True)
    assert (done.stdout, done.returncode) == (b"%d %d\r\n" % (rows, cols), 0)


def test_it_is_a_terminal(box):
    done = box.run("tty", tty=True, capture_output=True)
    assert done.stdout.startswith(b"/dev/") and done.returncode == 0


def test_both_streams_are_one(box):
    assert box.run("sh", "-c", "echo a; echo b >&2", tty=True, capture_output=True).stdout == b"a\r\nb\r\n"


def test_environment_of_a_terminal(box):
    done = box.run("sh", "-c", 'echo "$TERM $LANG"', tty=True, capture_output=True)
    assert done.stdout == b"xterm-256color C.UTF-8\r\n"
    done = box.run("sh", "-c", 'echo "$TERM"', tty=True, env={"TERM": "dumb"}, capture_output=True)
    assert done.stdout == b"dumb\r\n"


def test_an_unknown_program(box):
    done = box.run("no-such-program", tty=True, capture_output=True)
    assert done.returncode == 127
    assert b"no-such-program" in done.stdout and done.stdout.endswith(b"\r\n")


def test_typed_input_is_echoed_and_a_typed_end_ends(box):
    got = box.command("cat", tty=True, stdin=io.BytesIO(b"hello\n\x04")).output()
    assert got == b"hello\r\nhello\r\n"


def test_a_megabyte_of_raw_output(box):
    got = box.command("sh", "-c", "stty raw; seq 1 1000000 | head -c 1000000", tty=True).output()
    expected = b"".join(b"%d\n" % number for number in range(1, 200_000))[:1_000_000]
    assert got == expected


async def test_resize_changes_the_size_and_tells_the_command(async_sprite):
    script = "trap 'echo winch; stty size; exit 5' WINCH; echo ready; while :; do sleep 600 & wait; done"
    async with Live(async_sprite, "sh", "-c", script, tty=True, tty_rows=24, tty_cols=80) as live:
        await live.stdout.until(b"ready\r\n")
        assert (live.info["rows"], live.info["cols"], live.info["tty"]) == (24, 80, True)
        await live.socket.resize(cols=132, rows=43)
        assert await live.exit_code() == 5
        assert live.stdout.data == b"ready\r\nwinch\r\n43 132\r\n"


async def test_resize_over_control(async_sprite):
    connection = await async_sprite.get_control_connection()
    op = await connection.start_op("exec", cmd=["sh", "-c", "echo ready; read line; stty size"], tty=True, stdin=True)
    ready = asyncio.Event()
    op.on_stdout = lambda data: ready.set() if b"ready" in op.get_stdout() else None
    await asyncio.wait_for(ready.wait(), 20)
    await op.resize(cols=100, rows=30)
    await op.write(b"\n")
    assert await asyncio.wait_for(op.wait(), 20) == 0
    assert op.get_stdout() == b"ready\r\n\r\n30 100\r\n"


async def test_the_interrupt_key(async_sprite):
    async with Live(async_sprite, "sh", "-c", "echo ready; exec sleep 600", tty=True) as live:
        await live.stdout.until(b"ready\r\n")
        live.send(b"\x03")
        assert await live.exit_code() == 130
        assert live.stdout.data == b"ready\r\n^C"
        assert live.messages[-1] == {"type": "exit", "exit_code": 130, "code": 130}


async def test_an_interactive_shell_serves_turn_by_turn(async_sprite):
    environment = {"PS1": "", "HISTFILE": ""}
    async with Live(async_sprite, "bash", "--norc", "--noediting", "-i", tty=True, env=environment) as live:
        live.send(b"stty -echo\n")
        for turn in range(5):
            live.send(b"echo answer-$((%d * 7)).\n" % turn)
            await live.stdout.until(b"answer-%d.\r\n" % (turn * 7))
        live.send(b"exit 9\n")
        assert await live.exit_code() == 9
