"""Commands that need no terminal: exit codes, streams, input, environment, folder (wire/exec.md §2, §3, §8)."""

import asyncio
import io
import json
import re

import pytest
import sprites
from sprites.exceptions import APIError, ExecError
from sprites.exceptions import TimeoutError as CommandTimeout

CODES = [0, 1, 2, 42, 126, 127, 128, 130, 137, 143, 255]


@pytest.mark.parametrize("code", CODES)
def test_exit_code(box, code):
    assert box.run("sh", "-c", f"exit {code}").returncode == code


@pytest.mark.parametrize("code", CODES)
def test_exit_code_after_output(box, code):
    done = box.run("sh", "-c", f"echo out; echo err >&2; exit {code}", capture_output=True)
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", code)


@pytest.mark.parametrize("signal, code", [("HUP", 129), ("INT", 130), ("KILL", 137), ("TERM", 143)])
def test_a_death_by_signal_is_128_plus_its_number(box, signal, code):
    assert box.run("sh", "-c", f"kill -{signal} $$").returncode == code


def test_an_unknown_program_is_127_and_says_so(box):
    done = box.run("no-such-program", "x", capture_output=True)
    assert done.returncode == 127
    assert done.stdout == b""
    assert b"no-such-program" in done.stderr and done.stderr.endswith(b"\n")


def test_a_file_that_may_not_run_is_126(box):
    box.run("sh", "-c", "echo true > plain; chmod 644 plain", check=True)
    done = box.run("./plain", capture_output=True)
    assert done.returncode == 126
    assert b"plain" in done.stderr


def test_a_missing_folder_is_named(box):
    done = box.run("true", cwd="/no/such/folder", capture_output=True)
    assert done.returncode == 1
    assert b"/no/such/folder" in done.stderr
    assert b"no such file or directory" in done.stderr.lower()


def test_check_raises_with_all_that_is_known(box):
    with pytest.raises(ExecError) as raised:
        box.run("sh", "-c", "echo out; echo err >&2; exit 42", capture_output=True, check=True)
    assert raised.value.exit_code() == 42
    assert (raised.value.stdout, raised.value.stderr) == (b"out\n", b"err\n")


def test_output_and_combined_output(box):
    assert box.command("sh", "-c", "echo out; echo err >&2").output() == b"out\n"
    assert box.command("sh", "-c", "echo out; echo err >&2").combined_output() == b"out\nerr\n"


def test_streams_stay_apart_and_whole(box):
    script = "for i in $(seq 2000); do echo out $i; echo err $i >&2; done"
    done = box.run("sh", "-c", script, capture_output=True)
    assert done.stdout == b"".join(b"out %d\n" % i for i in range(1, 2001))
    assert done.stderr == b"".join(b"err %d\n" % i for i in range(1, 2001))


def test_output_is_never_decoded(box):
    every_byte = bytes(range(256))
    script = "".join(f"\\{byte:03o}" for byte in every_byte)
    assert box.command("printf", script).output() == every_byte


def test_input_reaches_the_command_and_ends(box):
    sent = bytes(range(256)) * 100
    assert box.command("cat", stdin=io.BytesIO(sent)).output() == sent


def test_no_input_is_end_of_file_at_once(box):
    assert box.command("cat").output() == b""
    assert box.command("wc", "-c", stdin=io.BytesIO(b"")).output().strip() == b"0"


def test_a_command_that_reads_nothing_ends_all_the_same(box):
    assert box.command("echo", "done", stdin=io.BytesIO(bytes(3_000_000))).output() == b"done\n"


def test_arguments_arrive_as_they_were_sent(box):
    sent = ["a b", "", "+", "%20", "a&b=c;d", "'\"\\$`", "zwölf→", "line\nbreak", "-n", "*", "~"]
    echo = "for arg in \"$@\"; do printf '%s\\0' \"$arg\"; done"
    got = box.command("sh", "-c", echo, "sh", *sent).output()
    assert got.decode().split("\0")[:-1] == sent


def test_environment_arrives_as_it_was_sent(box):
    sent = {"PLUS": "a+b c", "PERCENT": "100%20", "EQUALS": "a=b=c", "EMPTY": "", "UNI": "zwölf→", "low_er": "&;'\""}
    got = box.command("env", "-0", env=sent).output().decode()
    seen = dict(entry.split("=", 1) for entry in got.split("\0") if entry)
    assert {key: seen.get(key) for key in sent} == sent


def test_base_environment(box):
    got = box.command("env", "-0", env={"EXTRA": "1"}).output().decode()
    seen = dict(entry.split("=", 1) for entry in got.split("\0") if entry)
    assert (seen["USER"], seen["LOGNAME"], seen["SHELL"], seen["LANG"]) == ("sprite", "sprite", "/bin/bash", "C.UTF-8")
    assert seen["HOME"].endswith("/home/sprite")
    assert seen["PATH"].split(":")[0] == seen["HOME"] + "/.local/bin"
    assert {"/usr/local/bin", "/usr/bin", "/bin"} <= set(seen["PATH"].split(":"))
    assert "TERM" not in seen
    leaked = [key for key in seen if key.startswith("FOUNTAIN")]
    assert leaked == [] or all("TOKEN" not in key for key in leaked)


def test_a_given_variable_beats_the_base(box):
    got = box.command("sh", "-c", 'echo "$LANG $USER"', env={"LANG": "C", "USER": "me"}).output()
    assert got == b"C me\n"


def test_the_program_is_found_on_the_given_path(box):
    box.run("sh", "-c", "mkdir -p bin && printf '#!/bin/sh\\necho mine\\n' > bin/mine && chmod +x bin/mine", check=True)
    home = box.command("pwd").output().decode().strip()
    assert box.command("mine", env={"PATH": f"{home}/bin:/usr/bin:/bin"}).output() == b"mine\n"


def test_the_folder(box):
    assert box.command("pwd").output().strip().endswith(b"/home/sprite")
    assert box.command("sh", "-c", '[ "$PWD" = "$HOME" ] && echo home').output() == b"home\n"
    assert box.command("pwd", cwd="/tmp").output() == b"/tmp\n"
    assert box.command("sh", "-c", "mkdir -p deep/er && pwd").output() == box.command("pwd", cwd="/home/sprite").output()
    assert box.command("pwd", cwd="/home/sprite/deep/er").output().strip().endswith(b"/home/sprite/deep/er")


def test_the_home_is_one_place_in_arguments_variables_and_folder(box):
    box.run("sh", "-c", "echo here > marker", check=True)
    assert box.command("cat", "/home/sprite/marker").output() == b"here\n"
    assert box.command("sh", "-c", 'cat "$WHERE"', env={"WHERE": "/home/sprite/marker"}).output() == b"here\n"


def test_no_terminal_is_no_terminal(box):
    done = box.run("tty", capture_output=True)
    assert (done.stdout, done.returncode) == (b"not a tty\n", 1)


def test_a_child_that_keeps_the_pipe_does_not_hold_the_exit(box):
    done = box.run("sh", "-c", "sleep 600 & echo hi; exit 3", capture_output=True, timeout=30)
    assert (done.stdout, done.returncode) == (b"hi\n", 3)


def test_commands_start_with_nothing_inherited(box):
    got = box.command("sh", "-c", "ls /proc/self/fd; grep -E '^Sig(Blk|Ign):' /proc/self/status").output().decode()
    descriptors, signals = got.split("Sig", 1)
    assert descriptors.split() == ["0", "1", "2", "3"]  # 3 is ls reading the folder
    assert re.findall(r"(?:Blk|Ign):\s*(\w+)", signals) == ["0" * 16, "0" * 16]


@pytest.mark.parametrize("round", range(3))
def test_fast_commands_lose_nothing(box, round):
    for number in range(40):
        done = box.run("echo", str(number), capture_output=True)
        assert (done.stdout, done.returncode) == (b"%d\n" % number, 0)


def test_a_timeout_of_the_client_ends_the_command_after_its_grace(base_url, fresh_name):
    """wire/exec.md §4.4: the SDK only drops its socket; ten seconds later the command must be gone."""
    with sprites.SpritesClient("sdk-suite-token", base_url) as client:
        sprite = client.create_sprite(fresh_name("grace"))
        with pytest.raises(CommandTimeout):
            sprite.run("sh", "-c", "echo $$ > pid; exec sleep 600", timeout=1)
        pid = sprite.command("cat", "pid").output().decode().strip()
        assert [session.command for session in sprite.list_sessions()] == ["sh -c echo $$ > pid; exec sleep 600"]
        # `tail --pid` ends when the process does, so nothing here has to ask again and again.
        sprite.run("tail", "--pid", pid, "-f", "/dev/null", timeout=60, check=True)
        assert sprite.list_sessions() == []
        sprite.destroy()


async def test_many_commands_at_once(async_sprite):
    async def one(number: int):
        done = await async_sprite.run("sh", "-c", f"echo {number}; exit {number}", capture_output=True)
        return done.stdout, done.returncode

    answers = await asyncio.gather(*(one(number) for number in range(60)))
    assert answers == [(b"%d\n" % number, number) for number in range(60)]


async def test_many_control_sockets_at_once(async_sprite):
    """Sockets are taken by hand: the SDK's pool frees one before its last owner is done with it and loses operations."""
    connections = [await async_sprite.get_control_connection() for _ in range(20)]

    async def one(connection, number: int):
        op = await connection.start_op("exec", cmd=["sh", "-c", f"echo {number}; exit {number}"], stdin=False)
        return await op.wait(), op.get_stdout()

    for _ in range(3):
        answers = await asyncio.gather(*(one(connection, number) for number, connection in enumerate(connections)))
        assert answers == [(number, b"%d\n" % number) for number in range(20)]


async def test_the_messages_of_a_direct_command(async_sprite):
    """First `session_info`, then the output, then one exit in both spellings."""
    messages = []
    command = async_sprite.command("sh", "-c", "exit 7")
    command._text_message_handler = lambda raw: messages.append(json.loads(raw))
    with pytest.raises(ExecError):
        await command.run()
    info, end = messages
    assert info["type"] == "session_info"
    assert re.fullmatch(r"s\d+", info["session_id"])
    assert (info["command"], info["tty"], info["is_owner"]) == ("sh -c exit 7", False, True)
    assert isinstance(info["created"], int)
    assert end == {"type": "exit", "exit_code": 7, "code": 7}


async def test_control_signals_errors_and_reuse(async_sprite):
    connection = await async_sprite.get_control_connection()
    ready, infos = asyncio.Event(), []

    op = await connection.start_op("exec", cmd=["sh", "-c", "echo ready; exec sleep 600"], stdin=False)
    op.on_stdout, op.on_message = lambda data: ready.set(), infos.append
    await asyncio.wait_for(ready.wait(), 20)
    await op.signal("TERM")
    assert await asyncio.wait_for(op.wait(), 20) == 143
    assert [(info["type"], info["tty"]) for info in infos] == [("session_info", False)]

    op = await connection.start_op("no-such-op", stdin=False)
    await asyncio.wait_for(op.wait(), 20)
    assert op.get_stderr() == b"Error: unknown operation: no-such-op\n"
    assert not op.received_exit

    for number in range(5):
        op = await connection.start_op("exec", cmd=["sh", "-c", f"cat; exit {number}"], stdin=True)
        await op.write(b"same socket")
        await op.send_eof()
        assert await asyncio.wait_for(op.wait(), 20) == number
        assert op.get_stdout() == b"same socket"
        await op.write(b"late") if not op.closed else None


@pytest.mark.parametrize("kind", ["sync-direct", "async-direct"])
def test_refusals_before_the_upgrade_are_api_errors(base_url, fresh_name, kind):
    from conftest import open_client

    with open_client(base_url, kind) as client:
        with pytest.raises(APIError) as raised:
            client.sprite(fresh_name("ghost")).run("true")
        assert raised.value.status_code == 404
        assert raised.value.error_code and "not found" in str(raised.value)
        assert raised.value.is_rate_limit_error() is False
        sprite = client.create_sprite(fresh_name("ok"))
        with pytest.raises(APIError) as raised:
            sprite.attach_session("s999999").output()
        assert (raised.value.status_code, raised.value.error_code) == (404, "session_not_found")
        assert str(raised.value) == "session not found: s999999"
        sprite.destroy()
    with sprites.SpritesClient("wrong-token", base_url) as client:
        with pytest.raises(APIError) as raised:
            client.sprite("any").run("true")
        assert raised.value.status_code == 401


def test_control_mode_on_an_unknown_sprite_is_an_error_too(base_url, fresh_name):
    with sprites.SpritesClient("sdk-suite-token", base_url, control_mode=True) as client:
        with pytest.raises(APIError) as raised:
            client.sprite(fresh_name("ghost")).run("true")
        assert raised.value.status_code == 404
