//! The life of one Fountain conversation, request by request and in its order (fountain.md §2), with the strictness of
//! its adapter: what it would count as a failure fails here.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::collections::HashSet;
use std::process::Command;

use common::query::encode;
use common::socket::text;
use common::{Frame, Pidfd, Query, Reply, Runner, Socket};
use serde_json::{Value, json};

const NAME: &str = "fountain-tenant01-0a1b2c3d";
const CONVERSATION: &str = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff";

/// A stand-in for an ACP adapter: one JSON line in, updates and a response out, noise on stderr.
const ADAPTER: &str = r#"
while IFS= read -r line; do
  id=${line##*\"id\":}; id=${id%%[,\}]*}
  echo "serving $id as $$" >&2
  i=0; while [ $i -lt 5 ]; do echo "{\"method\":\"session/update\",\"turn\":$id,\"n\":$i}"; i=$((i+1)); done
  echo "{\"id\":$id,\"result\":{\"conversation\":\"$FOUNTAIN_CONVERSATION_ID\"}}"
done
echo bye >&2
exit 0
"#;

/// One conversation's calls, as the SDK below Fountain makes them.
struct Conversation {
    runner: Runner,
}

impl Conversation {
    fn path(&self, rest: &str) -> String {
        format!("/v1/sprites/{NAME}{rest}")
    }

    /// `W`: a file by `PUT …/fs/write`, raw body, no Content-Type, octal mode without a leading zero.
    async fn write(&self, path: &str, mode: &str, body: impl Into<bytes::Bytes>) -> Reply {
        let target = self
            .path(&format!("/fs/write?path={}&workingDir=%2F&mode={mode}&mkdirParents=true", encode(path.as_bytes())));
        let reply = self.runner.call("PUT", &target).body(body).send().await;
        assert!((200..300).contains(&reply.status), "{reply:?}");
        reply
    }

    /// `E`: a blocking exec, `stdin=false`, parameters in the SDK's order.
    async fn exec(&self, argv: &[&str], env: &[(&str, &str)], dir: Option<&str>) -> (u8, String) {
        let mut query = Query::default();
        for (key, value) in env {
            query = query.env(&format!("{key}={value}"));
        }
        if let Some(dir) = dir {
            query = query.dir(dir);
        }
        query = query.no_stdin().with("path", argv[0]);
        for element in argv {
            query = query.with("cmd", element);
        }
        let all = self.open(&format!("/exec?{}", query.as_str())).await.finish().await;
        (all.code(), all.out())
    }

    async fn bash(&self, script: &str) -> (u8, String) {
        self.exec(&["bash", "-lc", script], &[], None).await
    }

    async fn open(&self, rest: &str) -> Socket {
        Socket::open(&self.runner, &self.path(rest), &[("user-agent", "sprites-ex/0.2.2 fountain")]).await
    }

    /// The sessions as Fountain reads them: string ids, the tag in `command`.
    async fn tagged(&self) -> Vec<String> {
        let reply = self.runner.get(&self.path("/exec")).await.expect(200);
        let body = reply.json();
        let tag = format!("FOUNTAIN_CONVERSATION_ID={CONVERSATION}");
        let tagged = body["sessions"].as_array().unwrap().iter().filter(|session| {
            let command = session["command"].as_str().unwrap();
            command.split(' ').any(|word| word == tag)
        });
        tagged
            .map(|session| {
                let id = session["id"].as_str().expect("a JSON string").to_owned();
                assert!(id.chars().any(|c| !c.is_ascii_digit()), "digits alone would be taken for a pid: {id}");
                assert!(session["created"].as_str().unwrap().ends_with('Z'));
                id
            })
            .collect()
    }

    /// One prompt: a line in, updates until the response.
    async fn prompt(&self, socket: &mut Socket, turn: u32) -> Vec<Value> {
        let line = json!({"jsonrpc": "2.0", "method": "session/prompt", "params": {"text": "hi"}, "id": turn});
        // serde_json sorts keys; the stand-in finds the id wherever it stands.
        socket.stdin(format!("{line}\n")).await;
        let mut updates = Vec::new();
        loop {
            let message: Value = serde_json::from_str(&socket.line().await).unwrap();
            if message["id"] == turn {
                assert_eq!(message["result"]["conversation"], CONVERSATION);
                return updates;
            }
            updates.push(message);
        }
    }

    /// What Fountain accepts of a kill (fountain.md §4.8).
    async fn kill(&self, id: &str) -> u16 {
        let target = self.path(&format!("/exec/{id}/kill?signal=SIGTERM&timeout=10000ms"));
        let reply = self.runner.call("POST", &target).send().await;
        if reply.status == 200 {
            assert!(reply.body.len() <= 16_384);
            let lines = reply.lines();
            let (last, front) = lines.split_last().unwrap();
            assert_eq!(last["type"], "complete");
            let kinds: HashSet<&str> = front.iter().map(|l| l["type"].as_str().unwrap()).collect();
            assert!(kinds.is_subset(&HashSet::from(["signal", "timeout", "exited", "killed"])), "{kinds:?}");
            assert!(kinds.contains("exited") || kinds.contains("killed"), "{kinds:?}");
        }
        reply.status
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_in_order() {
    let talk = Conversation { runner: Runner::start() };
    let runner = &talk.runner;

    // Create, adopt on a repeated create, url settings.
    let created = runner.post("/v1/sprites", json!({"name": NAME})).await.expect(201).json();
    runner.post("/v1/sprites", json!({"name": NAME})).await.expect(409);
    runner.put(&talk.path(""), json!({"url_settings": {"auth": "public"}})).await.expect(200);

    // Files: an inline skill, the url, the environment file, its mode.
    talk.write("/home/sprite/.claude/skills/fountain/SKILL.md", "644", "# skill\n").await;
    let got = runner.get(&talk.path("")).await.expect(200).json();
    assert!(got["url"].as_str().unwrap().starts_with("http"));
    assert_eq!(got["id"], created["id"]);
    let secret = "sk-ant-it's a \"secret\"\nsecond line";
    let env_file = format!("API_KEY='{}'\nexport API_KEY\n", secret.replace('\'', "'\\''"));
    talk.write("/home/sprite/.env", "600", env_file).await;
    assert_eq!(talk.exec(&["chmod", "600", "/home/sprite/.env"], &[], None).await.0, 0);
    let (code, out) = talk
        .bash("stat -c %a .env .claude/skills/fountain/SKILL.md .claude/skills; source .env; printf %s \"$API_KEY\"")
        .await;
    assert_eq!((code, out), (0, format!("600\n644\n755\n{secret}")));

    // Provisioning by `bash -lc`: the script's own code, the last of equal keys, a daemon that keeps the pipe.
    let (code, out) = talk.bash("echo provisioning; cd /tmp; exit 3").await;
    assert_eq!((code, out.as_str()), (3, "provisioning\n"));
    let env = [("HTTP_PROXY", "user"), ("OTHER", "x"), ("HTTP_PROXY", "broker")];
    assert_eq!(talk.exec(&["bash", "-lc", "echo $HTTP_PROXY"], &env, None).await, (0, "broker\n".into()));
    let (code, out) = talk.bash("sleep 300 & echo started").await;
    assert_eq!((code, out.as_str()), (0, "started\n"));

    // A clone of a local repository.
    let origin = runner.folder().join("origin");
    git(&["init", "-q", "-b", "main", origin.to_str().unwrap()]);
    std::fs::write(origin.join("file.txt"), "from the repository\n").unwrap();
    git(&["-C", origin.to_str().unwrap(), "add", "."]);
    let author = ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "first"];
    git(&[&["-C", origin.to_str().unwrap()], &author[..]].concat());
    let clone = format!(
        "mkdir -p /home/sprite/work && git clone --depth 50 file://{} /home/sprite/work/repo 2>&1 && cat /home/sprite/work/repo/file.txt",
        origin.display()
    );
    let (code, out) = talk.bash(&clone).await;
    assert!(code == 0 && out.ends_with("from the repository\n"), "{code}: {out}");

    // The adapter's files, then the turn's process.
    talk.write("/home/sprite/.local/share/managoat/acp/pkg@1.0.0.tsv", "644", "a\tb\n").await;
    talk.write("/home/sprite/.local/bin/stand-in-acp", "755", format!("#!/bin/sh{ADAPTER}")).await;
    let tag = format!("FOUNTAIN_CONVERSATION_ID={CONVERSATION}");
    let spawn = Query::raw("detachable=true").env("FOUNTAIN_TOKEN=t").dir("/home/sprite").stdin();
    let spawn = ["env", &tag, "stand-in-acp"].iter().fold(spawn.with("path", "env"), |q, e| q.with("cmd", e));
    let mut socket = talk.open(&format!("/exec?{}", spawn.as_str())).await;
    for turn in 1..=2 {
        assert_eq!(talk.prompt(&mut socket, turn).await.len(), 5);
    }
    let seen = (socket.stdout(), socket.stderr());
    let id = socket.id().await;

    // A deploy of Fountain: the socket drops, the process stays; probe, policy-less wake, list, attach.
    socket.vanish();
    for _ in 0..3 {
        runner.get(&talk.path("")).await.expect(200);
    }
    assert_eq!(talk.tagged().await, std::slice::from_ref(&id));
    let mut socket = talk.open(&format!("/exec/{id}?stdin=true")).await;
    assert_eq!(socket.id().await, id);
    // Byte-skip arithmetic: per stream, as many bytes as are known already are dropped from the head of the replay.
    assert_eq!(talk.prompt_after(&mut socket, 3, &seen.0).await, 5);
    assert!(socket.stdout().starts_with(&seen.0) && socket.stderr().starts_with(&seen.1));

    // The end of the old adapter: attach, EOF, gone.
    socket.vanish();
    let pid = text(&seen.1).split_whitespace().nth(3).unwrap().parse().unwrap();
    let adapter = Pidfd::alive(pid);
    let mut last = talk.open(&format!("/exec/{id}?stdin=true")).await;
    last.eof().await;
    last.reset();
    adapter.gone().await;
    common::until("the adapter's end", || async { talk.tagged().await.is_empty().then_some(()) }).await;
    let end = talk.open(&format!("/exec/{id}?stdin=true")).await.finish().await.expect(0);
    assert!(end.err().ends_with("bye\n"), "{:?}", end.err());

    // Kill twice; other sessions and the sprite stay.
    let mut stay =
        talk.open(&format!("/exec?{}", Query::of(&["bash", "-c", "echo ready; exec cat"]).stdin().as_str())).await;
    stay.until_stdout("ready\n").await;
    let stay_id = stay.id().await;
    stay.vanish();
    assert_eq!(runner.session_ids(NAME).await, std::slice::from_ref(&stay_id));
    assert_eq!(talk.kill(&stay_id).await, 200);
    assert!(matches!(talk.kill(&stay_id).await, 200 | 404), "Fountain's second kill must succeed");
    assert_eq!(talk.bash("echo still here").await, (0, "still here\n".into()));

    // Delete, and the one GET that follows.
    runner.delete(&talk.path("")).await.expect(204);
    runner.get(&talk.path("")).await.expect(404);
}

impl Conversation {
    /// Prompts on a reattached socket, skipping what the last one had; how many updates came.
    async fn prompt_after(&self, socket: &mut Socket, turn: u32, known: &[u8]) -> usize {
        while socket.stdout().len() < known.len() {
            assert!(!socket.next().await.is_end());
        }
        assert_eq!(&socket.stdout()[..known.len()], known, "byte for byte from zero");
        let line = json!({"method": "session/prompt", "id": turn});
        socket.stdin(format!("{line}\n")).await;
        socket.until_stdout(&format!("{{\"id\":{turn},")).await;
        let fresh = text(&socket.stdout()[known.len()..]);
        let updates = fresh.lines().filter(|l| l.contains("session/update"));
        assert!(updates.clone().all(|l| l.contains(&format!("\"turn\":{turn},"))), "earlier turns again: {fresh}");
        updates.count()
    }
}

fn git(args: &[&str]) {
    let output = Command::new("git").args(args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", text(output.stderr));
}

/// The conformance suite's streaming and session parts (fountain.md §9, items 10–18).
#[tokio::test(flavor = "multi_thread")]
async fn conformance() {
    let talk = Conversation { runner: Runner::start() };
    let runner = &talk.runner;
    // 4: create_new returns an id, refuses a second, and gives a different one after a delete.
    let body = json!({"name": NAME, "wait_for_capacity": true, "url_settings": {"auth": "sprite"}});
    let first = runner.post("/v1/sprites", body.clone()).await.expect(201);
    assert!(first.body.len() <= 65_536 && first.json()["name"] == NAME);
    runner.post("/v1/sprites", body.clone()).await.expect(409);
    runner.delete(&talk.path("")).await.expect(204);
    let second = runner.post("/v1/sprites", body).await.expect(201);
    assert_ne!(first.json()["id"], second.json()["id"]);
    // 6, 7: unknown names.
    runner.get("/v1/sprites/nobody").await.expect(404);
    runner.delete("/v1/sprites/nobody").await.expect(404);
    // 8: a just created name is in the full list.
    let list = runner.get("/v1/sprites").await.json();
    assert!(list["sprites"].as_array().unwrap().iter().any(|s| s["name"] == NAME));
    // 10, 11, 12: output, codes, one stdout frame and one exit.
    assert_eq!(talk.bash("echo hello").await, (0, "hello\n".into()));
    assert_eq!(talk.bash("echo oops; exit 3").await, (3, "oops\n".into()));
    // 14: stdin on, the command ends by itself, a later write is no catastrophe.
    let mut socket = talk.open(&format!("/exec?{}", Query::of(&["bash", "-lc", "echo hello"]).stdin().as_str())).await;
    while !matches!(socket.data().await, Frame::Binary(bytes) if bytes[..] == [3, 0]) {}
    _ = socket.try_send(tokio_tungstenite::tungstenite::Message::binary(b"\0late".to_vec())).await;
    socket.finish().await.expect(0);
    // 15, 17: the stay fixture, without `detachable`; a second client sees the same first frame.
    let stay = Query::of(&["bash", "-c", "echo ready; exec cat"]).stdin();
    let mut owner = talk.open(&format!("/exec?{}", stay.as_str())).await;
    owner.until_stdout("ready\n").await;
    let ids = runner.session_ids(NAME).await;
    let mut other = talk.open(&format!("/exec/{}?stdin=true", ids[0])).await;
    other.until_stdout("ready\n").await;
    let first = |socket: &Socket| socket.seen.iter().find(|f| matches!(f, Frame::Binary(_))).cloned();
    assert_eq!(first(&other), first(&owner));
    owner.stdin("ping\n").await;
    owner.until_stdout("ping\n").await;
    other.until_stdout("ping\n").await;
    owner.eof().await;
    owner.finish().await.expect(0);
    other.finish().await.expect(0);
    // 18: exactly one session; kill, kill again, exec still works.
    let mut owner = talk.open(&format!("/exec?{}", stay.as_str())).await;
    owner.until_stdout("ready\n").await;
    let [id] = &runner.session_ids(NAME).await[..] else { panic!("exactly one") };
    owner.vanish();
    assert_eq!(talk.kill(id).await, 200);
    assert!(matches!(talk.kill(id).await, 200 | 404));
    assert_eq!(talk.bash("echo fine").await, (0, "fine\n".into()));
    // 19: plain mode cannot enforce, and says so rather than pretend.
    let limited = json!({"rules": [{"domain": "api.example.com", "action": "allow"}]});
    runner.post(&talk.path("/policy/network"), limited).await.expect(422);
    // (b): a written file is read back byte for byte.
    let bytes: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    talk.write("/home/sprite/nested/dir/blob", "644", bytes.clone()).await;
    let read = runner.get(&talk.path("/fs/read?path=%2Fhome%2Fsprite%2Fnested%2Fdir%2Fblob&workingDir=%2F")).await;
    assert!(read.expect(200).body == bytes);
    // (d) GET neither wakes nor counts as activity; destroy is final.
    runner.delete(&talk.path("")).await.expect(204);
    runner.get(&talk.path("")).await.expect(404);
    runner.call("GET", &talk.path("/exec?cmd=true")).upgrade().send().await.expect(404);
}
