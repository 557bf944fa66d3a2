"""`POST /exec` read as the wire describes it: one HTTP chunk is one frame (wire/exec.md §6).

`http.client` joins chunks, so only its request half and its header parser are used; the chunks are read here.
"""

import http.client
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit


@dataclass
class Answer:
    """What a command printed and how it ended; `frames` are the chunks in the order they came."""

    frames: list[bytes]
    stdout: bytes
    stderr: bytes
    code: int


def http_exec(
    base_url: str,
    token: str,
    sprite: str,
    argv: list[str],
    *,
    env: list[str] = [],
    dir: str | None = None,
    stdin: bytes | None = None,
    timeout: float = 60,
) -> Answer:
    """Runs `argv` over HTTP and holds the answer to every rule of its framing."""
    query = [("cmd", arg) for arg in argv] + [("path", argv[0])] + [("env", entry) for entry in env]
    if dir is not None:
        query.append(("dir", dir))
    if stdin is not None:
        query.append(("stdin", "true"))
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=timeout)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/octet-stream"}
    try:
        connection.request("POST", f"/v1/sprites/{sprite}/exec?{urlencode(query)}", stdin, headers)
        response = connection.getresponse()
        assert response.status == 200, (response.status, response.read())
        assert response.getheader("Transfer-Encoding") == "chunked"
        assert response.getheader("Content-Encoding") is None
        frames = read_chunks(response.fp)
    finally:
        connection.close()
    assert {frame[:1] for frame in frames[:-1]} <= {b"\1", b"\2"}, "only output comes before the exit"
    assert len(frames[-1]) == 2 and frames[-1][0] == 3, f"the last frame is not an exit: {frames[-1][:40]!r}"
    return Answer(
        frames,
        b"".join(frame[1:] for frame in frames if frame[0] == 1),
        b"".join(frame[1:] for frame in frames if frame[0] == 2),
        frames[-1][1],
    )


def read_chunks(body) -> list[bytes]:
    """The chunks of a chunked body, to its end."""
    chunks = []
    while size := int(body.readline().split(b";")[0], 16):
        chunks.append(body.read(size))
        assert len(chunks[-1]) == size, "the body ended inside a chunk"
        assert body.readline() == b"\r\n"
    assert body.readline() == b"\r\n"
    return chunks
