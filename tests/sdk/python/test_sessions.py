"""Leave a session, find it, join it again with everything it ever printed, end it (wire/exec.md §4, §5)."""

import hashlib
import asyncio
from datetime import datetime, timedelta, timezone

import pytest
import sprites
from sprites.exceptions import APIError, ExecError
from sprites.session import kill_session

from live import Live

# The command waits at a named pipe, so a test decides when it goes on: no clocks.
GATED = "mkfifo gate; echo one; echo uno >&2; read line < gate; echo two $line; echo due >&2; exit 7"


async def open_gate(sprite):
    done = await sprite.run("sh", "-c", "echo open > gate")
    assert done.returncode == 0


async def test_the_list_shows_what_runs(async_sprite):
    assert await async_sprite.list_sessions() == []
    async with Live(async_sprite, "sh", "-c", "echo up; exec cat", cwd="/tmp") as live:
        await live.stdout.until(b"up\n")
        (session,) = await async_sprite.list_sessions()
        assert session.id == live.info["session_id"]
        assert (session.command, session.workdir, session.tty) == ("sh -c echo up; exec cat", "/tmp", False)
        assert session.is_active is True
        assert abs(datetime.now(timezone.utc) - session.created) < timedelta(minutes=1)
        assert session.last_activity >= session.created - timedelta(seconds=1)
        live.end_input()
        assert await live.exit_code() == 0
    assert await async_sprite.list_sessions() == []


async def test_ids_rise_and_never_come_back(async_sprite):
    numbers = []
    for _ in range(5):
        async with Live(async_sprite, "true") as live:
            assert await live.exit_code() == 0
            numbers.append(int(live.info["session_id"].removeprefix("s")))
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("goodbye", ["leave", "drop"])
async def test_a_terminal_outlives_its_client_and_replays_from_byte_zero(async_sprite, goodbye):
    async with Live(async_sprite, "sh", "-c", GATED, tty=True) as first:
        await first.stdout.until(b"uno\r\n")
        await getattr(first, goodbye)()
    session = first.info["session_id"]
    assert [entry.id for entry in await async_sprite.list_sessions()] == [session]

    async with Live(async_sprite, session=session) as second:
        assert second.info["session_id"] == session
        assert second.info["tty"] is True
        await second.stdout.until(b"one\r\nuno\r\n")
        await open_gate(async_sprite)
        assert await second.exit_code() == 7
    assert second.stdout.data == b"one\r\nuno\r\ntwo open\r\ndue\r\n"
    assert await async_sprite.list_sessions() == []


async def test_a_plain_command_replays_each_stream(async_sprite):
    async with Live(async_sprite, "sh", "-c", GATED) as first:
        await first.stderr.until(b"uno\n")
        await first.drop()
    session = first.info["session_id"]
    async with Live(async_sprite, session=session) as second:
        assert second.info["tty"] is False
        await open_gate(async_sprite)
        assert await second.exit_code() == 7
    assert second.stdout.data == b"one\ntwo open\n"
    assert second.stderr.data == b"uno\ndue\n"


async def test_an_attaching_client_sends_no_end_of_input(async_sprite):
    """The SDK's first frame on an attach is a stray end of input (wire/exec.md §2.4): `cat` must live on."""
    async with Live(async_sprite, "sh", "-c", "echo up; cat; exit 4") as first:
        await first.stdout.until(b"up\n")
        async with Live(async_sprite, session=first.info["session_id"]) as second:
            await second.stdout.until(b"up\n")
            first.send(b"still here\n")
            await second.stdout.until(b"still here\n")
            first.end_input()
            assert await first.exit_code() == 4
            assert await second.exit_code() == 4
    assert first.stdout.data == second.stdout.data == b"up\nstill here\n"


async def test_five_clients_see_the_same(async_sprite):
    async with Live(async_sprite, "sh", "-c", GATED) as first:
        await first.stderr.until(b"uno\n")
        session = first.info["session_id"]
        others = [Live(async_sprite, session=session) for _ in range(4)]
        for other in others:
            await other.__aenter__()
        await open_gate(async_sprite)
        assert await asyncio.gather(*(live.exit_code() for live in [first, *others])) == [7] * 5
        for live in [first, *others]:
            assert (live.stdout.data, live.stderr.data) == (b"one\ntwo open\n", b"uno\ndue\n")
            await live.leave()


async def test_a_finished_session_can_still_be_read(async_sprite):
    async with Live(async_sprite, "sh", "-c", "echo out; echo err >&2; exit 42") as live:
        assert await live.exit_code() == 42
    session = live.info["session_id"]
    assert await async_sprite.list_sessions() == []
    for _ in range(2):
        with pytest.raises(ExecError) as raised:
            await async_sprite.attach_session(session).combined_output()
        assert raised.value.exit_code() == 42
        assert raised.value.stdout == b"out\nerr\n"


async def test_twenty_megabytes_printed_while_nobody_looks(async_sprite):
    script = "mkfifo gate; echo up; read line < gate; seq 1 100000000 | head -c 20000000"
    async with Live(async_sprite, "sh", "-c", script) as first:
        await first.stdout.until(b"up\n")
        await first.drop()
    await open_gate(async_sprite)
    got = await async_sprite.attach_session(first.info["session_id"]).output()
    expected = await async_sprite.command("sh", "-c", "echo up; seq 1 100000000 | head -c 20000000").output()
    assert len(got) == 20_000_003
    assert hashlib.sha256(got).hexdigest() == hashlib.sha256(expected).hexdigest()


async def test_output_that_a_client_already_has_comes_again_on_attach(async_sprite):
    async with Live(async_sprite, "sh", "-c", "seq 1 100000; exec cat") as first:
        await first.stdout.until(b"\n100000\n")
        for _ in range(3):
            async with Live(async_sprite, session=first.info["session_id"]) as again:
                await again.stdout.until(b"\n100000\n")
            assert again.stdout.data == first.stdout.data
        first.end_input()
        assert await first.exit_code() == 0


def kill(base_url, name, session, **options):
    """The SDK's kill helper exists only in its sync half."""
    with sprites.SpritesClient("sdk-suite-token", base_url) as client:
        return [message.type for message in kill_session(client.sprite(name), session, **options)]


@pytest.mark.parametrize("tty", [False, True], ids=["plain", "tty"])
async def test_kill_ends_the_whole_group(async_sprite, base_url, tty):
    script = "sleep 600 & echo $! > child; echo up; wait"
    async with Live(async_sprite, "sh", "-c", script, tty=tty) as live:
        await live.stdout.until(b"up")
        session = live.info["session_id"]
        types = await asyncio.to_thread(kill, base_url, async_sprite.name, session)
        assert (types[0], types[-1]) == ("signal", "complete")
        assert "exited" in types and "killed" not in types
        assert await live.exit_code() == 143
    assert await async_sprite.list_sessions() == []
    child = (await async_sprite.command("cat", "child").output()).decode().strip()
    # `tail --pid` ends when that process does.
    await async_sprite.run("tail", "--pid", child, "-f", "/dev/null", timeout=20, check=True)
    # A second kill gets the full answer again (wire/fountain.md §4.8).
    assert await asyncio.to_thread(kill, base_url, async_sprite.name, session) == ["signal", "exited", "complete"]


async def test_kill_escalates_when_term_is_ignored(async_sprite, base_url):
    async with Live(async_sprite, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done") as live:
        await live.stdout.until(b"up\n")
        types = await asyncio.to_thread(kill, base_url, async_sprite.name, live.info["session_id"], timeout=1)
        assert types == ["signal", "timeout", "killed", "complete"]
        assert await live.exit_code() == 137


async def test_a_signal_without_timeout_is_only_delivered(async_sprite, base_url):
    script = "trap 'echo caught' USR1; echo up; while :; do sleep 600 & wait; done"
    async with Live(async_sprite, "sh", "-c", script) as live:
        await live.stdout.until(b"up\n")
        session = live.info["session_id"]
        types = await asyncio.to_thread(kill, base_url, async_sprite.name, session, signal="SIGUSR1", timeout=0)
        assert types == ["signal", "complete"]
        # The group got the signal, so the background sleeps end too and the loop starts a new one.
        await live.stdout.until(b"caught\n")
        types = await asyncio.to_thread(kill, base_url, async_sprite.name, session, signal="KILL")
        assert types[-1] == "complete"
        assert await live.exit_code() == 137


async def test_kill_refuses_what_does_not_exist(async_sprite, base_url):
    with pytest.raises(APIError) as raised:
        await asyncio.to_thread(kill, base_url, async_sprite.name, "s999999")
    assert raised.value.status_code == 404
    async with Live(async_sprite, "sh", "-c", "echo up; exec cat") as live:
        await live.stdout.until(b"up\n")
        with pytest.raises(APIError) as raised:
            await asyncio.to_thread(kill, base_url, async_sprite.name, live.info["session_id"], signal="NOPE")
        assert raised.value.status_code == 400
        live.end_input()
        assert await live.exit_code() == 0


async def test_deleting_a_sprite_ends_its_sessions_with_an_exit(base_url, fresh_name):
    async with sprites.AsyncSpritesClient("sdk-suite-token", base_url) as client:
        sprite = await client.create_sprite(fresh_name("doomed"))
        async with Live(sprite, "sh", "-c", "echo $$; exec sleep 600") as live:
            await live.stdout.until(b"\n")
            await sprite.destroy()
            assert await live.exit_code() in (137, 143)
        with pytest.raises(APIError) as raised:
            await sprite.run("true")
        assert raised.value.status_code == 404
