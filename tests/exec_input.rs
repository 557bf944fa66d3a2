//! What a query may hold: argv and env as bytes, the base environment, folders, and commands that cannot start.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use common::socket::text;
use common::{Control, HttpExec, Query, Runner, TOKEN, within};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn argv_is_bytes() {
    let runner = Runner::start();
    runner.create("s").await;
    let out = runner.run("s", &Query::raw("cmd=echo&cmd=a+b%2Bc&path=echo&stdin=false")).await;
    assert_eq!(out.out(), "a b+c\n");
    let out = runner.run("s", &Query::of(&["printf", "[%s]", "", "x", "", "*", "$HOME", "~"])).await;
    assert_eq!(out.out(), "[][x][][*][$HOME][~]");
    let query = Query::raw("path=printf&cmd=printf&cmd=%25s").bytes("cmd", b"\xff\xfe\x80").with("stdin", "false");
    assert_eq!(runner.run("s", &query).await.stdout(), b"\xff\xfe\x80");
    let query = Query::of(&["sh", "-c", "printf %s \"$RAW\""]).bytes("env", b"RAW=\xc3\x28\n\t=");
    assert_eq!(runner.run("s", &query).await.stdout(), b"\xc3\x28\n\t=");
    let out = HttpExec::post(&runner, "s", &Query::of(&["printf", "%s"]).bytes("cmd", b"\xf0\x9f"), b"").await;
    assert_eq!(out.stream(1), b"\xf0\x9f");
    // Unknown parameters and the control flag are ignored, booleans come in all spellings.
    let out = runner.run("s", &Query::raw("cc=true&args=x&cmd=echo&cmd=ok&stdin=F&tty=0")).await;
    assert_eq!(out.out(), "ok\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn path_and_argv0_are_two_things() {
    let runner = Runner::start();
    runner.create("s").await;
    let out = runner.run("s", &Query::raw("path=%2Fbin%2Fsh&cmd=renamed&cmd=-c&cmd=echo+%240")).await;
    assert_eq!(out.out(), "renamed\n");
    let out = runner.run("s", &Query::raw("path=pwd")).await;
    assert!(out.out().contains("/home"), "{}", out.out());
    // Nothing at all means bash (exec.md §8.3).
    let mut socket = runner.exec("s", &Query::raw("stdin=true")).await;
    assert_eq!(socket.info().await["command"], "bash");
    socket.stdin("echo $0\n").await;
    socket.eof().await;
    assert_eq!(socket.finish().await.expect(0).out(), "bash\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn nul_is_refused() {
    let runner = Runner::start();
    runner.create("s").await;
    for bad in ["cmd=a%00b&path=a", "cmd=true&env=A%3D%00", "cmd=true&dir=%2Ftmp%00", "path=%00"] {
        let target = format!("/v1/sprites/s/exec?{bad}");
        runner.call("GET", &target).upgrade().send().await.expect(400);
        runner.call("POST", &target).send().await.expect(400);
    }
    for bad in ["cmd=true&max_run_after_disconnect=soon", "cmd=true&tty=perhaps", "cmd=true&tty=true&rows=many"] {
        runner.call("GET", &format!("/v1/sprites/s/exec?{bad}")).upgrade().send().await.expect(400);
    }
    assert!(runner.sessions("s").await.is_empty());
    // On a control socket an exec's faults are frames, because Go hears nothing else (exec.md §7.3).
    let mut control = Control::open(&runner, "s", "sprites-py/0.7.2").await;
    let done = control.run(json!({"cmd": ["echo", "a\u{0}b"]})).await;
    assert_ne!(done.code(), 0);
    assert!(!done.stream(2).is_empty());
    assert_eq!(control.run(json!({"cmd": ["true"]})).await.code(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn long_targets() {
    let runner = Runner::start();
    runner.create("s").await;
    let base = Query::sh("echo ${#BIG}").no_stdin();
    let fixed = "/v1/sprites/s/exec?".len() + base.as_str().len() + "&env=BIG%3D".len();
    // The longest that is served, and one byte more (DESIGN.md §11).
    let fits = "x".repeat(65_534 - fixed);
    let query = base.clone().env(&format!("BIG={fits}"));
    assert_eq!("/v1/sprites/s/exec?".len() + query.as_str().len(), 65_534);
    let answer = HttpExec::post(&runner, "s", &query, b"").await;
    assert_eq!(text(answer.stream(1)), format!("{}\n", fits.len()));
    // `ws://host` and the target share the client library's limit, so the socket gets a little less.
    let some = "y".repeat(65_000 - fixed);
    assert_eq!(runner.run("s", &base.clone().env(&format!("BIG={some}"))).await.out(), format!("{}\n", some.len()));

    for length in [65_535, 70_000, 300_000] {
        let target = format!("/v1/sprites/s/exec?{}&env=BIG%3D", base.as_str());
        let target = format!("{target}{}", "z".repeat(length - target.len()));
        let mut stream = TcpStream::connect(runner.addr).await.unwrap();
        let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        within("a 414", stream.read_to_end(&mut answer)).await.unwrap();
        let answer = text(answer);
        assert!(answer.starts_with("HTTP/1.1 414 "), "{length}: {answer:?}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{head}");
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert!(body["error"].is_string(), "{body}");
        assert!(body["message"].as_str().unwrap().contains("65534"), "names the limit: {body}");
        assert!(body["message"].as_str().unwrap().contains("POST"), "names the way out: {body}");
    }
    runner.run("s", &Query::of(&["true"])).await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn base_environment() {
    let runner = Runner::start();
    runner.create("s").await;
    let env = runner.run("s", &Query::of(&["env"]).no_stdin()).await.expect(0).out();
    let get = |name: &str| {
        let lines: Vec<_> = env.lines().filter_map(|l| l.strip_prefix(&format!("{name}="))).collect();
        assert!(lines.len() <= 1, "{name} stands twice:\n{env}");
        lines.first().map(|v| (*v).to_owned())
    };
    let home = get("HOME").unwrap();
    assert!(home.ends_with("/home/sprite"), "{home}");
    assert_eq!(get("USER").as_deref(), Some("sprite"));
    let path = get("PATH").unwrap();
    assert!(path.split(':').next().unwrap().ends_with("/.local/bin"), "{path}");
    assert!(path.split(':').any(|p| p == "/usr/bin"), "{path}");
    assert!(get("LANG").unwrap().to_ascii_lowercase().contains("utf"), "{env}");
    assert_eq!(get("TERM"), None);
    // Nothing of the runner's own surroundings, its token least of all; the mark that finds strays is ours.
    let ours = |line: &&str| line.contains("FOUNTAIN_") && !line.starts_with("FOUNTAIN_RUNNER_SPRITE=");
    assert!(env.lines().find(ours).is_none() && !env.contains(TOKEN), "{env}");
    let tty = runner.run("s", &Query::sh("echo $TERM; tty; pwd").tty(24, 80).stdin()).await.out();
    assert!(tty.starts_with("xterm-256color\r\n/dev/"), "{tty:?}");
    let not = runner.run("s", &Query::of(&["tty"]).no_stdin()).await.expect(1);
    assert_eq!(not.out(), "not a tty\n");

    // Each entry overrides, the last wins, empty is a value, no `=` is ignored.
    let query = Query::sh("echo \"$A|$B|${C-unset}|$USER|$D\"").no_stdin();
    let query = query.env("A=1").env("A=2").env("B=").env("C").env("USER=me").env("D=x=y").env("A=3");
    assert_eq!(runner.run("s", &query).await.out(), "3||unset|me|x=y\n");
    let query = Query::of(&["env"]).env("PATH=/usr/bin:/bin").env("A=1").env("A=2").no_stdin();
    let env = runner.run("s", &query).await.out();
    assert_eq!(env.lines().filter(|l| l.starts_with("A=")).collect::<Vec<_>>(), ["A=2"]);
    assert!(env.lines().any(|l| l == "PATH=/usr/bin:/bin") && env.contains("HOME="), "{env}");
}

#[tokio::test(flavor = "multi_thread")]
async fn folders() {
    let runner = Runner::start();
    runner.create("s").await;
    let pwd = Query::of(&["pwd"]).no_stdin();
    let home = runner.run("s", &pwd).await.out();
    assert!(home.trim_end().ends_with("/home/sprite"), "{home}");
    assert_eq!(runner.run("s", &pwd.clone().dir("/home/sprite")).await.out(), home);
    assert_eq!(runner.run("s", &pwd.clone().dir("/tmp")).await.out(), "/tmp\n");
    runner.run("s", &Query::of(&["mkdir", "work"])).await.expect(0);
    let inside = runner.run("s", &pwd.clone().dir("/home/sprite/work")).await.out();
    assert!(inside.trim_end().ends_with("/home/sprite/work"), "{inside}");
    // `/home/sprite` in arguments and values means the sprite's folder, `/home/spriteX` is another name (DESIGN.md §5).
    runner.run("s", &Query::of(&["touch", "/home/sprite/here"])).await.expect(0);
    assert_eq!(runner.run("s", &Query::of(&["ls"])).await.out(), "here\nwork\n");
    let out = runner.run("s", &Query::of(&["echo", "/home/spriteX"])).await.out();
    assert_eq!(out, "/home/spriteX\n");
    // A program is found relative to `dir`, with the final PATH.
    let script = "printf '#!/bin/sh\\necho found\\n' > work/tool; chmod +x work/tool";
    runner.run("s", &Query::sh(script)).await.expect(0);
    let out = runner.run("s", &Query::of(&["./tool"]).dir("/home/sprite/work")).await.expect(0);
    assert_eq!(out.out(), "found\n");
    let out = runner.run("s", &Query::of(&["tool"]).env("PATH=/home/sprite/work:/usr/bin:/bin")).await.expect(0);
    assert_eq!(out.out(), "found\n");
}

/// 127, 126 and a missing folder, with a sentence on stderr, on every transport, at once (exec.md §8.3).
#[tokio::test(flavor = "multi_thread")]
async fn commands_that_cannot_start() {
    let runner = Runner::start();
    runner.create("s").await;
    runner.run("s", &Query::sh("echo text > plain; mkdir folder; chmod 644 plain")).await.expect(0);
    let cases: [(Query, u8, &str); 6] = [
        (Query::of(&["no-such-program"]), 127, "no-such-program"),
        (Query::of(&["/no/such/program"]), 127, "/no/such/program"),
        (Query::of(&["echo hi | cat"]), 127, "echo hi | cat"),
        (Query::of(&["./plain"]), 126, "plain"),
        (Query::of(&["./folder"]), 126, "folder"),
        (Query::of(&["pwd"]).dir("/no/such/dir"), 1, "chdir /no/such/dir: no such file or directory\n"),
    ];
    let mut control = Control::open(&runner, "s", "sprites-py/0.7.2").await;
    for (query, code, says) in cases {
        let all = runner.run("s", &query).await.expect(code);
        assert!(all.err().contains(says) && all.err().ends_with('\n'), "{query:?}: {:?}", all.err());
        assert_eq!(all.out(), "", "{query:?}");
        let line = all.err();

        let all = runner.run("s", &query.clone().tty(24, 80).stdin()).await.expect(code);
        assert!(all.out().contains(says.trim_end()) && all.out().ends_with("\r\n"), "{query:?}: {:?}", all.out());

        let answer = HttpExec::post(&runner, "s", &query, b"").await;
        assert_eq!((text(answer.stream(2)), answer.code()), (line.clone(), code), "{query:?}");

        let pairs: Vec<(String, String)> = form_pairs(query.as_str());
        let cmd: Vec<_> = pairs.iter().filter(|(k, _)| k == "cmd").map(|(_, v)| v).collect();
        let mut args = json!({"cmd": cmd});
        if let Some((_, dir)) = pairs.iter().find(|(k, _)| k == "dir") {
            args["dir"] = json!(dir);
        }
        let done = control.run(args).await;
        assert_eq!((text(done.stream(2)), done.code()), (line, i64::from(code)), "{query:?}");
    }
    let all = runner.run("s", &Query::of(&["pwd"]).dir("/no/such/dir")).await;
    assert!(all.err().starts_with("chdir "), "{:?}", all.err());
}

fn form_pairs(query: &str) -> Vec<(String, String)> {
    let decode = |part: &str| {
        let mut bytes = Vec::new();
        let mut rest = part.as_bytes();
        while let Some((&first, tail)) = rest.split_first() {
            rest = tail;
            match first {
                b'+' => bytes.push(b' '),
                b'%' => {
                    bytes.push(u8::from_str_radix(std::str::from_utf8(&tail[..2]).unwrap(), 16).unwrap());
                    rest = &tail[2..];
                }
                other => bytes.push(other),
            }
        }
        text(bytes)
    };
    query.split('&').filter_map(|p| p.split_once('=')).map(|(k, v)| (decode(k), decode(v))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_and_unknown_sprites() {
    let runner = Runner::start();
    runner.create("s").await;
    runner.call("GET", "/v1/sprites/nobody/exec?cmd=true").upgrade().send().await.expect(404);
    runner.call("POST", "/v1/sprites/nobody/exec?cmd=true").send().await.expect(404);
    runner.get("/v1/sprites/nobody/exec").await.expect(404);
    runner.call("GET", "/v1/sprites/nobody/control").upgrade().send().await.expect(404);
    runner.call("POST", "/v1/sprites/nobody/exec/s1/kill").send().await.expect(404);
    runner.get("/v1/sprites/s/exec/s99").await.expect(404);
    let mut socket = runner.exec("s", &Query::of(&["cat"]).stdin()).await;
    let id = socket.id().await;
    runner.get(&format!("/v1/sprites/s/exec/{id}")).await.expect(400);
    let head = runner.call("HEAD", "/v1/sprites/s/exec").send().await.expect(200);
    assert!(head.body.is_empty() && !head.header("sprite-version").is_empty());
    socket.eof().await;
    socket.finish().await.expect(0);
}
