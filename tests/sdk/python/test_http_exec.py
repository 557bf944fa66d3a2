"""`POST /exec`, read chunk by chunk (wire/exec.md §6)."""

import hashlib

import pytest

from http_exec import http_exec
from test_exec import CODES


@pytest.fixture(scope="module")
def run(base_url, token, api, fresh_name):
    name = fresh_name("http")
    assert api("POST", "/v1/sprites", {"name": name})[0] == 201
    yield lambda *argv, **options: http_exec(base_url, token, name, list(argv), **options)
    assert api("DELETE", f"/v1/sprites/{name}")[0] == 204


@pytest.mark.parametrize("code", CODES)
def test_exit_code(run, code):
    answer = run("sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert (answer.stdout, answer.stderr, answer.code) == (b"out\n", b"err\n", code)


def test_nothing_printed_is_one_chunk(run):
    assert run("sh", "-c", "exit 3").frames == [b"\x03\x03"]


@pytest.mark.parametrize("signal, code", [("INT", 130), ("KILL", 137), ("TERM", 143)])
def test_a_death_by_signal(run, signal, code):
    assert run("sh", "-c", f"kill -{signal} $$").code == code


def test_start_failures_are_frames(run):
    missing = run("no-such-program")
    assert (missing.code, missing.stdout) == (127, b"")
    assert b"no-such-program" in missing.stderr
    folder = run("true", dir="/no/such/folder")
    assert folder.code == 1
    assert b"/no/such/folder" in folder.stderr


def test_input_is_the_body_and_ends_with_it(run):
    sent = bytes(range(256)) * 1000
    assert run("cat", stdin=sent).stdout == sent
    assert run("cat", stdin=b"").stdout == b""


def test_without_stdin_the_body_is_ignored(run, base_url, token, api):
    assert run("cat").stdout == b""


def test_the_last_duplicate_of_a_variable_wins(run):
    answer = run("sh", "-c", 'echo "$A|$B"; env | grep -c "^A="', env=["A=1", "B=x", "A=2", "A=a+b=c d", "ignored"])
    assert answer.stdout == b"a+b=c d|x\n1\n"


def test_folder(run):
    assert run("pwd", dir="/tmp").stdout == b"/tmp\n"
    assert run("pwd").stdout.strip().endswith(b"/home/sprite")


def test_bytes_that_are_not_utf8_pass_in_arguments(run):
    assert run("printf", "%s", b"\xff\xfe\x80").stdout == b"\xff\xfe\x80"


def test_twenty_megabytes_both_ways(run):
    sent = hashlib.shake_256(b"http").digest(20_000_000)
    answer = run("cat", stdin=sent, timeout=200)
    assert hashlib.sha256(answer.stdout).hexdigest() == hashlib.sha256(sent).hexdigest()
    assert max(map(len, answer.frames)) <= 64 * 1024 + 1


def test_statuses(api, fresh_name):
    status, _, body = api("POST", f"/v1/sprites/{fresh_name('ghost')}/exec?cmd=true")
    assert status == 404
    assert isinstance(body["error"], str)
    assert api("POST", "/v1/sprites/any/exec?cmd=true", token="wrong")[0] == 401
