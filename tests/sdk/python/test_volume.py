"""Large data, byte for byte, in both directions. Sums are made on both sides; `seq` makes data in which every line differs."""

import hashlib
import io
import subprocess

import pytest
import sprites

from conftest import open_client

MEGABYTE = 1_000_000
LARGE = 256 * 1024 * 1024


def numbered(size: int) -> str:
    """A pipeline that prints `size` bytes of rising numbers."""
    return f"seq 1 100000000 | head -c {size}"


def local_sum(size: int) -> str:
    """What `sha256sum` says about `numbered(size)` on this side."""
    return subprocess.check_output(["sh", "-c", f"{numbered(size)} | sha256sum"], text=True).split()[0]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_twenty_megabytes_down(box):
    size = 20 * MEGABYTE
    got = box.command("sh", "-c", numbered(size)).output()
    assert (len(got), sha256(got)) == (size, local_sum(size))


def test_twenty_megabytes_up(box):
    sent = hashlib.shake_256(b"up").digest(20 * MEGABYTE)
    got = box.command("sha256sum", stdin=io.BytesIO(sent)).output()
    assert got == f"{sha256(sent)}  -\n".encode()


def test_twenty_megabytes_up_and_down_at_once(box):
    sent = hashlib.shake_256(b"round").digest(20 * MEGABYTE)
    got = box.command("cat", stdin=io.BytesIO(sent)).output()
    assert (len(got), sha256(got)) == (len(sent), sha256(sent))


def test_twenty_megabytes_on_each_of_two_streams(box):
    size = 20 * MEGABYTE
    done = box.run("sh", "-c", f"{numbered(size)} & {numbered(size)} >&2; wait", capture_output=True)
    expected = local_sum(size)
    assert (len(done.stdout), sha256(done.stdout)) == (size, expected)
    assert (len(done.stderr), sha256(done.stderr)) == (size, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync-direct", "async-control"])
def test_a_quarter_gigabyte_down(base_url, fresh_name, kind):
    with open_client(base_url, kind) as client:
        sprite = client.create_sprite(fresh_name("down"))
        got = sprite.command("sh", "-c", numbered(LARGE)).output()
        assert (len(got), sha256(got)) == (LARGE, local_sum(LARGE))
        sprite.destroy()


@pytest.mark.slow
def test_a_quarter_gigabyte_up(base_url, fresh_name):
    with open_client(base_url, "async-direct") as client:
        sprite = client.create_sprite(fresh_name("up"))
        data = subprocess.check_output(["sh", "-c", numbered(LARGE)])
        got = sprite.command("sha256sum", stdin=io.BytesIO(data)).output()
        assert got == f"{sha256(data)}  -\n".encode()
        sprite.destroy()


@pytest.mark.slow
def test_a_quarter_gigabyte_as_a_file_both_ways(base_url, fresh_name):
    with sprites.SpritesClient("sdk-suite-token", base_url, timeout=120) as client:
        sprite = client.create_sprite(fresh_name("file"))
        path = sprite.filesystem("/home/sprite") / "large"
        data = subprocess.check_output(["sh", "-c", numbered(LARGE)])
        path.write_bytes(data)
        assert sprite.command("sha256sum", "large").output() == f"{sha256(data)}  large\n".encode()
        assert sha256(path.read_bytes()) == sha256(data)
        sprite.destroy()
