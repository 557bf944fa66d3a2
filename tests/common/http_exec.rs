//! `POST /exec` over a raw socket: the chunk borders are the frame borders, so no HTTP library may stand in between.

use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Query, Runner, TOKEN, decoders, within};

/// One answer, chunk by chunk.
#[derive(Debug)]
pub struct HttpExec {
    pub status: u16,
    /// Header lines in lower case.
    pub headers: Vec<(String, String)>,
    pub chunks: Vec<Vec<u8>>,
    /// When each chunk was complete.
    pub times: Vec<Instant>,
}

impl HttpExec {
    /// Posts a command and reads it to its end.
    pub async fn post(runner: &Runner, sprite: &str, query: &Query, body: &[u8]) -> Self {
        let mut connection = Connection::open(runner, sprite, query, body.len()).await;
        within("the body", connection.stream.write_all(body)).await.unwrap();
        connection.finish().await
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v)
    }

    pub fn stream(&self, id: u8) -> Vec<u8> {
        self.chunks.iter().filter(|c| c[0] == id).flat_map(|c| c[1..].to_vec()).collect()
    }

    pub fn code(&self) -> u8 {
        self.chunks.last().expect("an exit chunk")[1]
    }
}

/// A posted command whose answer is still to be read.
pub struct Connection {
    pub stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Sends the head with a Content-Length and no body yet.
    pub async fn open(runner: &Runner, sprite: &str, query: &Query, length: usize) -> Self {
        let mut stream = within("connect", TcpStream::connect(runner.addr)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let head = format!(
            "POST /v1/sprites/{sprite}/exec?{} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: {length}\r\n\r\n",
            query.as_str(),
            runner.addr
        );
        within("the head", stream.write_all(head.as_bytes())).await.unwrap();
        Self { stream, buffer: Vec::new() }
    }

    /// Reads the head and every chunk; the answer must be 200 and chunked, and every reader must agree on the code.
    pub async fn finish(mut self) -> HttpExec {
        let mut answer = self.head().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("transfer-encoding"), "chunked", "{answer:?}");
        assert_eq!(answer.header("content-encoding"), "", "{answer:?}");
        while let Some(chunk) = self.chunk().await {
            answer.times.push(Instant::now());
            answer.chunks.push(chunk);
        }
        decoders::check_http(&answer.chunks, answer.code());
        answer
    }

    /// Reads the status line and the headers.
    pub async fn head(&mut self) -> HttpExec {
        let end = loop {
            if let Some(at) = self.buffer.windows(4).position(|w| w == b"\r\n\r\n") {
                break at;
            }
            self.more().await;
        };
        let head: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        HttpExec { status, headers, chunks: Vec::new(), times: Vec::new() }
    }

    /// The next chunk; none at the end chunk.
    pub async fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = loop {
            if let Some(at) = self.buffer.windows(2).position(|w| w == b"\r\n") {
                break self.buffer.drain(..at + 2).collect::<Vec<u8>>();
            }
            self.more().await;
        };
        let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).expect("a chunk size");
        while self.buffer.len() < size + 2 {
            self.more().await;
        }
        let chunk: Vec<u8> = self.buffer.drain(..size).collect();
        assert_eq!(self.buffer.drain(..2).collect::<Vec<u8>>(), b"\r\n");
        (size > 0).then_some(chunk)
    }

    async fn more(&mut self) {
        let read = within("the answer", self.stream.read_buf(&mut self.buffer)).await.unwrap();
        assert!(read > 0, "the connection ended early, after {:?}", String::from_utf8_lossy(&self.buffer));
    }
}
