//! Getting in: TLS, addresses that are not loopback, the first token, and requests that hyper itself refuses.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::Runner;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

const BINARY: &str = env!("CARGO_BIN_EXE_fountain");

/// `fountain runner` in a folder of its own, with nothing in its environment but these.
fn runner(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command
        .args(["runner", "--state"])
        .arg(folder.join("state"))
        .args(args)
        .env_clear()
        .env("HOME", folder)
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("XDG_RUNTIME_DIR", folder)
        .stdin(Stdio::null());
    command
}

fn stop(folder: &Path) {
    let status = Command::new(BINARY)
        .args(["stop", "--all", "--state"])
        .arg(folder.join("state"))
        .env("XDG_RUNTIME_DIR", folder)
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn tls_serves_the_api() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (cert_arg, key_arg) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let mut child = runner(folder.path(), &["--listen", "127.0.0.1:0", "--tls-cert", cert_arg, "--tls-key", key_arg])
        .env("FOUNTAIN_RUNNER_TOKEN", "tls-test-token")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("fountain runner listening on https://").unwrap().to_owned();

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&cert).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let session = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, TcpStream::connect(&address).unwrap());
    stream
        .write_all(b"GET /v1/organization HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer tls-test-token\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    assert!(text.contains(r#""name":"default""#), "{text}");
    stop(folder.path());
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_would_show_tokens_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (args, wanted) in [
        (&["--listen", "0.0.0.0:0"][..], "--plain-http"),
        (&["--tls-cert", "/nowhere"], "tls_key"),
        (&["--listen", "127.0.0.1:0", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"], "/nowhere"),
        (&["--isolation", "root"], "isolation root"),
        (&["--isolation", "jail"], "isolation jail"),
        (&["--replay", "some"], "replay"),
    ] {
        let output = runner(folder.path(), args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && text.contains(wanted), "{args:?}: {text}");
    }
}

/// To a terminal the first start shows a token, once; to anything else it shows none and says how to make one.
#[test]
fn the_first_token_goes_to_a_terminal_only() {
    let folder = tempfile::tempdir().unwrap();
    let quiet = |line: &str, args: &[&str]| {
        let mut child = runner(folder.path(), args).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        while !text.contains(line) {
            assert!(out.read_line(&mut text).unwrap() > 0, "{text}");
        }
        stop(folder.path());
        child.wait().unwrap();
        out.read_to_string(&mut text).unwrap();
        text
    };
    let args = ["--listen", "127.0.0.1:0"];
    let text = quiet("fountain token create", &args);
    assert!(!text.contains("SPRITES_TOKEN"), "{text}");

    // A terminal, by way of util-linux' script.
    let command =
        format!("exec {BINARY} runner --listen 127.0.0.1:0 --state {}", folder.path().join("state").display());
    let log = folder.path().join("stderr.log");
    let mut child = Command::new("script")
        .args(["-qfec", &format!("{command} 2>{}", log.display()), "/dev/null"])
        .env_remove("FOUNTAIN_RUNNER_TOKEN")
        .env("XDG_RUNTIME_DIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("SPRITES_TOKEN=") || !text.ends_with('\n') {
        assert!(out.read_line(&mut text).unwrap() > 0, "{text}");
    }
    let find = |name: &str| {
        let line = text.lines().find(|line| line.contains(name)).unwrap();
        line.trim().rsplit_once('=').unwrap().1.to_owned()
    };
    let (url, token) = (find("SPRITES_BASE_URL"), find("SPRITES_TOKEN"));
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /v1/sprites HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(!std::fs::read_to_string(&log).unwrap().contains(&token), "a token in the log");
    stop(folder.path());
    child.wait().unwrap();

    // It is stored now, so no later start shows another.
    let text = quiet("listening", &args);
    assert!(!text.contains("token"), "{text}");
}

/// A target that is too long is refused in JSON on a fresh connection and on a used one; bytes that only look like
/// such a refusal pass untouched.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_the_http_library_are_json() {
    let runner = Runner::start();
    runner.create("s").await;
    let refusal = "HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    runner.call("PUT", "/v1/sprites/s/fs/write?path=x").body(refusal).send().await.expect(200);
    assert_eq!(runner.get("/v1/sprites/s/fs/read?path=x").await.expect(200).body, refusal.as_bytes());

    let address = runner.addr;
    let check = move || {
        let mut stream = TcpStream::connect(address).unwrap();
        for used in [false, true] {
            if used {
                write!(stream, "GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
                let mut head = [0; 12];
                stream.read_exact(&mut head).unwrap();
                assert_eq!(&head, b"HTTP/1.1 401");
                let mut rest = [0; 4096];
                let _ = stream.read(&mut rest).unwrap();
            }
            write!(stream, "GET /v1/sprites/s/exec?cmd={} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(70_000)).unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("HTTP/1.1 414 "), "{text}");
            assert!(
                text.contains("content-type: application/json") && text.contains(r#""error":"uri_too_long""#),
                "{text}"
            );
            stream = TcpStream::connect(address).unwrap();
        }
    };
    tokio::task::spawn_blocking(check).await.unwrap();
}
