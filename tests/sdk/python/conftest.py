"""One runner for the whole run, clients of every kind, and sprites that are gone after their test.

With pytest-xdist the controller owns the runner and the workers get its address, so all workers share one daemon.
"""

import asyncio
import http.client
import itertools
import json
import os
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import sprites
from sprites.loop import run_sync

from blocking import Blocking
from runner import TOKEN, Runner

EXEC_MODES = ["sync-direct", "sync-control", "async-direct", "async-control"]

_numbers = itertools.count(1)


def pytest_configure(config):
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.fountain = Runner()


def pytest_collection_modifyitems(items):
    # The one test that waits for a minute starts first, beside all others.
    items.sort(key=lambda item: item.path.name != "test_idle.py")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    node.workerinput["base_url"] = node.config.fountain.base_url


def pytest_sessionfinish(session):
    runner = getattr(session.config, "fountain", None)
    if runner is None:
        return
    wrong = runner.stop()
    if wrong:
        session.config.fountain_wrong = wrong
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter, config):
    wrong = getattr(config, "fountain_wrong", [])
    for line in wrong:
        terminalreporter.write_line(f"AFTER THE RUN: {line}", red=True)
    count = {kind: len(terminalreporter.stats.get(kind, [])) for kind in ("passed", "failed", "error", "skipped")}
    failed = count["failed"] + count["error"] + bool(wrong)
    # The form in which tests/run.sh adds up all suites.
    terminalreporter.write_line(f"python: {count['passed']} passed, {failed} failed, {count['skipped']} skipped")


@pytest.fixture(scope="session")
def base_url(request) -> str:
    """Where the runner listens."""
    worker = getattr(request.config, "workerinput", None)
    return worker["base_url"] if worker else request.config.fountain.base_url


@pytest.fixture(scope="session")
def token() -> str:
    """The fixed token that the runner was started with."""
    return TOKEN


@pytest.fixture(scope="session")
def fresh_name():
    """A function that makes sprite names that nothing else in this run uses."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return lambda stem="py": f"{stem}-{worker}-{next(_numbers)}"


@contextmanager
def open_client(base_url: str, kind: str):
    """A client of the SDK: `sync` or `async` (behind blocking calls), with `-control` for control mode."""
    api, _, mode = kind.partition("-")
    options = {"token": TOKEN, "base_url": base_url, "control_mode": mode == "control"}
    if api == "sync":
        with sprites.SpritesClient(**options) as client:
            yield client
    else:
        with asyncio.Runner() as loop:
            client = Blocking(sprites.AsyncSpritesClient(**options), loop)
            yield client
            client.aclose()


@pytest.fixture(scope="module", params=["sync", "async"])
def client(request, base_url):
    """Each kind of client, for everything but exec."""
    with open_client(base_url, request.param) as client:
        yield client


@pytest.fixture(scope="module", params=EXEC_MODES)
def mode(request) -> str:
    """The four ways in which the SDK runs a command."""
    return request.param


@pytest.fixture(scope="module")
def box(base_url, mode, fresh_name):
    """A sprite for the commands of one module, in each of the four modes."""
    with open_client(base_url, mode) as client:
        sprite = client.create_sprite(fresh_name("box"))
        yield sprite
        if mode.endswith("control"):
            assert sprite.use_control_mode(), "the SDK fell back to direct sockets: control was not tested"
            assert sprite.has_control_connection()
            close = sprite.close_control_connection()
            if mode == "sync-control":
                run_sync(close)
        sprite.destroy()


@pytest.fixture
def sprite(client, fresh_name):
    """A sprite of its own for one test."""
    sprite = client.create_sprite(fresh_name("own"))
    yield sprite
    sprite.destroy()


@pytest.fixture
async def async_sprite(base_url, fresh_name):
    """A sprite of its own for one test that is itself a coroutine."""
    async with sprites.AsyncSpritesClient(TOKEN, base_url) as client:
        sprite = await client.create_sprite(fresh_name("async"))
        yield sprite
        await sprite.close_control_connection()
        await sprite.destroy()


@pytest.fixture(scope="session")
def api(base_url):
    """A plain HTTP call, for what no method of the SDK reaches: returns status, headers and the decoded body."""

    def call(method, path, body=None, token=TOKEN, headers={}):
        connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=60)
        try:
            send = {"Authorization": f"Bearer {token}", **headers} if token else dict(headers)
            payload = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, payload, send)
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        is_json = (response.getheader("Content-Type") or "").startswith("application/json")
        return response.status, response.headers, json.loads(raw) if is_json else raw

    return call
