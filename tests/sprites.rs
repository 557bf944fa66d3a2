//! Sprites over REST: create, get, list, update, delete, organisations, tokens, refusals, and secrets that stay secret.
#![allow(clippy::unwrap_used, reason = "a test that unwraps fails, which is its purpose")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::Output;

use common::runner::walk;
use common::socket::text;
use common::{Query, Runner, Socket, TOKEN, processes, within};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const ALWAYS: [&str; 7] = ["id", "name", "organization", "url", "status", "created_at", "updated_at"];

fn assert_sprite(sprite: &Value, name: &str) {
    for field in ALWAYS {
        assert!(sprite[field].as_str().is_some_and(|v| !v.is_empty()), "{field}: {sprite}");
    }
    assert_eq!(sprite["name"], name);
    assert!(sprite["url"].as_str().unwrap().starts_with("http"), "{sprite}");
    assert!(["cold", "warm", "running"].contains(&sprite["status"].as_str().unwrap()), "{sprite}");
    assert!(sprite["url_settings"].is_object(), "{sprite}");
    // Never an explicit null where a strict client breaks on it (rest.md §1.1).
    for field in ["config", "environment", "labels", "status"] {
        assert!(sprite.get(field).is_none_or(|v| !v.is_null()), "{field}: {sprite}");
    }
    for field in ["created_at", "updated_at"] {
        let time = sprite[field].as_str().unwrap();
        let digits = time.strip_suffix('Z').unwrap().split_once('.').map_or(0, |(_, d)| d.len());
        assert!(matches!(digits, 0 | 3 | 6), "{time}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn create_get_update_delete() {
    let runner = Runner::start();
    let reply = runner.post("/v1/sprites", json!({"name": "one", "unknown": 1, "labels": null})).await.expect(201);
    assert!(reply.header("content-type").starts_with("application/json"));
    let one = reply.json();
    assert_sprite(&one, "one");
    assert_eq!(one["status"], "running", "a start costs milliseconds, so create starts");
    assert_eq!(one["url_settings"]["auth"], "sprite");
    assert!(one.get("labels").is_none_or(|l| l == &json!([])), "labels only when there are some");
    let again = runner.post("/v1/sprites", json!({"name": "one"})).await.expect(409);
    assert!(text(&again.body).contains("already exists"), "{again:?}");

    let got = runner.get("/v1/sprites/one").await.expect(200);
    assert!(!got.header("sprite-version").is_empty());
    assert_eq!(got.json()["id"], one["id"]);
    assert_eq!(runner.call("HEAD", "/v1/sprites/one").send().await.status, 200);
    assert_eq!(runner.get("/v1/sprites/%6fne").await.expect(200).json()["id"], one["id"], "split first, then decode");

    let put = runner.put("/v1/sprites/one", json!({"url_settings": {"auth": "public"}})).await.expect(200).json();
    assert_sprite(&put, "one");
    assert_eq!(put["url_settings"]["auth"], "public");
    let put = runner.put("/v1/sprites/one", json!({"labels": ["b", "a"]})).await.expect(200).json();
    assert_eq!((&put["labels"], &put["url_settings"]["auth"]), (&json!(["b", "a"]), &json!("public")));
    let put = runner
        .put("/v1/sprites/one", json!({"url_settings": {"private_access": "org_users"}}))
        .await
        .expect(200)
        .json();
    assert_eq!(put["url_settings"], json!({"auth": "public", "private_access": "org_users"}));
    let put = runner.put("/v1/sprites/one", json!({"clear_labels": true})).await.expect(200).json();
    assert!(put.get("labels").is_none_or(|l| l == &json!([])), "{put}");
    runner.put("/v1/sprites/one", json!({"labels": ["x"]})).await.expect(200);
    let put = runner.put("/v1/sprites/one", json!({"labels": []})).await.expect(200).json();
    assert!(put.get("labels").is_none_or(|l| l == &json!([])), "{put}");
    for bad in [json!({"url_settings": {"auth": "none"}}), json!({"labels": "x"}), json!([]), json!("x")] {
        runner.put("/v1/sprites/one", bad).await.expect(400);
    }
    assert_eq!(runner.get("/v1/sprites/one").await.json()["url_settings"]["auth"], "public");

    runner.run("one", &Query::of(&["touch", "left"])).await.expect(0);
    let reply = runner.delete("/v1/sprites/one").await.expect(204);
    assert!(reply.body.is_empty());
    assert!(text(&runner.get("/v1/sprites/one").await.expect(404).body).contains("not found"));
    runner.put("/v1/sprites/one", json!({"labels": []})).await.expect(404);
    runner.delete("/v1/sprites/one").await.expect(404);
    let new = runner.create("one").await;
    assert_ne!(new["id"], one["id"], "a new life, a new id");
    runner.run("one", &Query::sh("[ ! -e left ]")).await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn create_fields() {
    let runner = Runner::start();
    let body = json!({"name": "full", "wait_for_capacity": true, "labels": ["l1"], "runtime": "default",
        "url_settings": {"auth": "public", "private_access": "admins"},
        "config": {"ram_mb": 2048, "cpus": 2, "region": "x", "storageGB": 10},
        "environment": {"FROM_CREATE": "yes", "BOTH": "create"}});
    let full = runner.post("/v1/sprites", body).await.expect(201).json();
    assert_sprite(&full, "full");
    assert_eq!(full["url_settings"], json!({"auth": "public", "private_access": "admins"}));
    assert_eq!(full["labels"], json!(["l1"]));
    // create-time environment lies below everything else.
    let out = runner.run("full", &Query::sh("echo $FROM_CREATE $BOTH").env("BOTH=exec")).await;
    assert_eq!(out.out(), "yes exec\n");
    let again = runner.get("/v1/sprites/full").await.json();
    assert_eq!((&again["labels"], &again["url_settings"]), (&full["labels"], &full["url_settings"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn names() {
    let runner = Runner::start();
    let longest = "a".repeat(54);
    for good in ["a", "0", "a-b", "x1-2y", &longest] {
        runner.create(good).await;
    }
    let too_long = "a".repeat(55);
    let bad = ["", "-a", "a-", "A", "a_b", "a.b", "a/b", "..", ".", "a b", "ä", "a\u{0}", &too_long];
    for name in bad {
        let reply = runner.post("/v1/sprites", json!({"name": name})).await.expect(400);
        assert!(reply.json()["errors"].is_array(), "{reply:?}");
    }
    for body in [json!({}), json!({"name": null}), json!({"name": 7}), json!({"name": ["a"]})] {
        runner.post("/v1/sprites", body).await.expect(400);
    }
    let reply = runner.post("/v1/sprites", json!({"name": "w", "wait_for_capacity": "yes"})).await.expect(400);
    assert!(text(&reply.body).contains("invalid wait_for_capacity parameter"), "{reply:?}");
    runner.get("/v1/sprites/w").await.expect(404);
    for path in ["/v1/sprites/..%2f..%2fetc", "/v1/sprites/%2e%2e", "/v1/sprites/A", "/v1/sprites/%00"] {
        let status = runner.get(path).await.status;
        assert!(matches!(status, 400 | 404), "{path}: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_creates_of_one_name() {
    let runner = Runner::start();
    for round in 0..5 {
        let name = format!("n{round}");
        let replies = join_all((0..10).map(|_| runner.post("/v1/sprites", json!({ "name": name })))).await;
        let mut statuses: Vec<u16> = replies.iter().map(|r| r.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 409, 409, 409, 409, 409, 409, 409, 409, 409]);
        let id = replies.iter().find(|r| r.status == 201).unwrap().json()["id"].clone();
        assert_eq!(runner.get(&format!("/v1/sprites/{name}")).await.json()["id"], id);
    }
}

/// Fountain's retry: the create's answer is lost, the second says 409, and there is one machine.
#[tokio::test(flavor = "multi_thread")]
async fn delete_and_create_in_turns() {
    let runner = Runner::start();
    let mut ids = BTreeSet::new();
    for round in 0..10 {
        let sprite = runner.create("turn").await;
        assert!(ids.insert(sprite["id"].as_str().unwrap().to_owned()), "an id came back");
        let clean = runner.run("turn", &Query::sh("ls -A; echo x > mine")).await.expect(0);
        assert!(!clean.out().contains("mine"), "{}", clean.out());
        assert_eq!(runner.get("/v1/sprites").await.json()["sprites"].as_array().unwrap().len(), 1, "round {round}");
        runner.delete("/v1/sprites/turn").await.expect(204);
        runner.get("/v1/sprites/turn").await.expect(404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn list_and_page() {
    let runner = Runner::start();
    let empty = runner.get("/v1/sprites").await.expect(200).json();
    assert_eq!((&empty["sprites"], &empty["has_more"]), (&json!([]), &json!(false)));
    assert_eq!(empty["next_continuation_token"], Value::Null);
    for name in ["b", "a", "c", "ab-1", "ab-2"] {
        runner.create(name).await;
    }
    let all = runner.get("/v1/sprites").await.expect(200).json();
    let names = |page: &Value| -> Vec<String> {
        page["sprites"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&all), ["a", "ab-1", "ab-2", "b", "c"]);
    for sprite in all["sprites"].as_array().unwrap() {
        assert_sprite(sprite, sprite["name"].as_str().unwrap());
        assert!(sprite["org_slug"].is_string());
    }
    assert_eq!((&all["running"], &all["org"]["running"]), (&json!(5), &json!(5)));
    for field in ["warm", "cold"] {
        assert_eq!((&all[field], &all["org"][field]), (&json!(0), &json!(0)));
    }
    assert!(all["name"].is_string() && all["org"]["name"] == all["name"]);
    assert!(all["running_limit"].is_i64() && all["org"]["running_limit"].is_i64(), "{all}");

    let prefixed = runner.get("/v1/sprites?prefix=ab").await.json();
    assert_eq!(names(&prefixed), ["ab-1", "ab-2"]);
    // Page counts at the top, organisation totals in `org`.
    assert_eq!((&prefixed["running"], &prefixed["org"]["running"]), (&json!(2), &json!(5)));

    // A token names a place in the order, so what is deleted or made between pages neither hides nor repeats anything.
    let page = runner.get("/v1/sprites?max_results=2").await.json();
    assert_eq!((names(&page), &page["has_more"]), (vec!["a".to_owned(), "ab-1".to_owned()], &json!(true)));
    let token = page["next_continuation_token"].as_str().unwrap().to_owned();
    assert!(
        token.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'),
        "URL-safe without encoding: {token}"
    );
    runner.delete("/v1/sprites/ab-1").await.expect(204);
    runner.delete("/v1/sprites/ab-2").await.expect(204);
    runner.create("aa").await;
    runner.create("bb").await;
    let page = runner.get(&format!("/v1/sprites?max_results=2&continuation_token={token}")).await.json();
    assert_eq!((names(&page), &page["has_more"]), (vec!["b".to_owned(), "bb".to_owned()], &json!(true)));
    let token = page["next_continuation_token"].as_str().unwrap().to_owned();
    let page = runner.get(&format!("/v1/sprites?max_results=2&continuation_token={token}")).await.json();
    assert_eq!((names(&page), &page["has_more"]), (vec!["c".to_owned()], &json!(false)));
    assert_eq!(page["next_continuation_token"], Value::Null);

    // Clamped, never refused; nonsense is.
    for count in ["100", "500", "5000", "0", "-1"] {
        assert!(!names(&runner.get(&format!("/v1/sprites?max_results={count}")).await.expect(200).json()).is_empty());
    }
    runner.get("/v1/sprites?max_results=many").await.expect(400);
    runner.get("/v1/sprites?continuation_token=%21%21").await.expect(400);
    assert_eq!(names(&runner.get("/v1/sprites?bulk_load=true").await.expect(200).json()).len(), 5);
}

/// rest.md §8 item 2: three sprites, one a page.
#[tokio::test(flavor = "multi_thread")]
async fn three_pages() {
    let runner = Runner::start();
    for name in ["x", "y", "z"] {
        runner.create(name).await;
    }
    let mut path = "/v1/sprites?max_results=1".to_owned();
    let mut seen = Vec::new();
    loop {
        let page = runner.get(&path).await.expect(200).json();
        seen.push(page["sprites"][0]["name"].as_str().unwrap().to_owned());
        if page["has_more"] == false {
            assert_eq!(page["next_continuation_token"], Value::Null);
            break;
        }
        path = format!(
            "/v1/sprites?max_results=1&continuation_token={}",
            page["next_continuation_token"].as_str().unwrap()
        );
    }
    assert_eq!(seen, ["x", "y", "z"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ndjson_list() {
    let runner = Runner::start();
    runner.create("first").await;
    let mut stream = TcpStream::connect(runner.addr).await.unwrap();
    let head = format!(
        "GET /v1/sprites HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nAccept: application/x-ndjson\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    let mut wait_for = async |needle: &str| {
        while !processes::contains(&seen, needle.as_bytes()) {
            let read = within(needle, stream.read_buf(&mut seen)).await.unwrap();
            assert!(read > 0, "the stream ended: {}", text(&seen));
        }
        text(&seen)
    };
    let start = wait_for("\"name\":\"first\"").await;
    assert!(start.starts_with("HTTP/1.1 200 "), "{start}");
    assert!(start.to_ascii_lowercase().contains("content-type: application/x-ndjson"), "{start}");
    // Open-ended: what happens next is told too.
    runner.create("second").await;
    let all = wait_for("\"name\":\"second\"").await;
    let line = all.lines().find(|l| l.contains("\"second\"")).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert!(line["status"].is_string() && line["timestamp"].is_string() && line["org"]["name"].is_string(), "{line}");
}

fn token(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    let out = text(&output.stdout);
    let words: Vec<&str> = out.split(|c: char| c.is_whitespace() || c == '=').filter(|w| w.len() >= 32).collect();
    (*words.first().unwrap_or_else(|| panic!("no token in {out:?}"))).trim_matches(['"', '\'']).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_organisations() {
    let runner = Runner::start();
    let state = runner.state();
    let state = state.to_str().unwrap();
    let other = token(&runner.cli(&["token", "create", "--org", "other", "--state", state]));
    let mine = token(&runner.cli(&["token", "create", "--state", state]));
    assert_ne!(other, mine);
    runner.create("same").await;
    let as_other = |method: &str, path: &str| runner.call(method, path).token(Some(&other));
    // Names, lists and counts are per organisation.
    as_other("GET", "/v1/sprites/same").send().await.expect(404);
    let theirs = as_other("POST", "/v1/sprites").json(&json!({"name": "same"})).send().await.expect(201).json();
    assert_eq!((&theirs["organization"], &theirs["org_slug"]), (&json!("other"), &json!("other")));
    let ours = runner.get("/v1/sprites/same").await.expect(200).json();
    assert_ne!(ours["id"], theirs["id"]);
    let list = as_other("GET", "/v1/sprites").send().await.expect(200).json();
    assert_eq!(list["sprites"].as_array().unwrap().len(), 1);
    assert_eq!((&list["name"], &list["org"]["running"]), (&json!("other"), &json!(1)));
    assert_eq!(as_other("GET", "/v1/organization").send().await.expect(200).json()["name"], "other");
    assert_eq!(runner.get("/v1/organization").await.expect(200).json()["name"], ours["organization"]);
    as_other("GET", "/v1/sprites/same/exec?cmd=true").upgrade().send().await.expect(101);
    as_other("DELETE", "/v1/sprites/same").send().await.expect(204);
    runner.get("/v1/sprites/same").await.expect(200);
    runner.call("GET", "/v1/sprites/same").token(Some(&mine)).send().await.expect(200);

    // Listed without their secret, revoked for good.
    let list = runner.cli(&["token", "list", "--state", state]);
    let listed = text(&list.stdout);
    assert!(list.status.success() && listed.contains("other"), "{list:?}");
    assert!(!listed.contains(&other) && !listed.contains(&mine), "secrets are shown once: {listed}");
    let id = listed.lines().find(|l| l.contains("other")).unwrap();
    let id = id.split(|c: char| c.is_whitespace() || c == '│' || c == '|').find(|w| !w.is_empty()).unwrap();
    let revoked = runner.cli(&["token", "revoke", id, "--state", state]);
    assert!(revoked.status.success(), "{revoked:?}");
    as_other("GET", "/v1/sprites").send().await.expect(401);
    runner.call("GET", "/v1/sprites").token(Some(&mine)).send().await.expect(200);
    // Neither secret is anywhere on the disk.
    for path in walk(runner.folder()).into_iter().filter(|p| p.is_file()) {
        let bytes = fs::read(&path).unwrap();
        assert!(!processes::contains(&bytes, mine.as_bytes()), "{}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unauthorised() {
    let runner = Runner::start();
    runner.create("s").await;
    let wrong = format!("{TOKEN}x");
    for token in [None, Some("wrong-token"), Some(&wrong[..]), Some(""), Some(&TOKEN[..TOKEN.len() - 1])] {
        for (method, path) in [
            ("GET", "/v1/sprites"),
            ("POST", "/v1/sprites"),
            ("GET", "/v1/sprites/s"),
            ("GET", "/v1/sprites/nobody"),
            ("DELETE", "/v1/sprites/s"),
            ("POST", "/v1/sprites/s/exec?cmd=true"),
            ("GET", "/v1/sprites/s/exec"),
            ("GET", "/v1/sprites/s/fs/list?path=/"),
            ("POST", "/v1/sprites/s/checkpoint"),
            ("GET", "/v1/organization"),
        ] {
            let reply = runner.call(method, path).token(token).send().await.expect(401);
            assert!(!text(&reply.body).contains("nobody"), "{reply:?}");
        }
        for path in ["/v1/sprites/s/exec?cmd=true", "/v1/sprites/s/exec/s1", "/v1/sprites/s/control"] {
            runner.call("GET", path).token(token).upgrade().send().await.expect(401);
        }
    }
    for authorization in ["Basic YmVhcmVyOng=", TOKEN, "Bearer", "FlyV1 x", "bearer"] {
        let call = runner.call("GET", "/v1/sprites").token(None).header("authorization", authorization);
        call.send().await.expect(401);
    }
    let call = runner.call("GET", "/v1/sprites").token(None).header("authorization", &format!("bearer {TOKEN}"));
    call.send().await.expect(200);
    runner.get("/v1/sprites/s").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_json() {
    let runner = Runner::start();
    runner.create("s").await;
    for path in
        ["/v1/nothing", "/nothing", "/v1/sprites/s/nothing", "/v1/sprites/s/fs/nothing", "/v1/sprites/s/exec/s1/x"]
    {
        runner.get(path).await.expect(404);
    }
    let wrong = [
        ("PATCH", "/v1/sprites/s"),
        ("DELETE", "/v1/sprites"),
        ("POST", "/v1/sprites/s"),
        ("PUT", "/v1/sprites/s/exec"),
        ("GET", "/v1/sprites/s/checkpoint"),
        ("DELETE", "/v1/organization"),
    ];
    for (method, path) in wrong {
        runner.call(method, path).send().await.expect(405);
    }
    for body in ["", "{", "nonsense", "{\"name\":", "\u{feff}{}", "[1]", "null"] {
        let reply = runner.call("POST", "/v1/sprites").header("content-type", "application/json").body(body.to_owned());
        reply.send().await.expect(400);
    }
    let deep = "[".repeat(100_000);
    runner.call("POST", "/v1/sprites").body(deep).send().await.expect(400);
    // A JSON body whatever its Content-Type says.
    runner.call("POST", "/v1/sprites").body(r#"{"name":"untyped"}"#).send().await.expect(201);
    for (method, path, status) in [("POST", "/v1/sprites/s/upgrade", 204), ("GET", "/v1/sprites/s/check", 200)] {
        let reply = runner.call(method, path).send().await.expect(status);
        if status == 200 {
            let check = reply.json();
            assert_eq!(check["sprite_name"], "s");
            assert!(check["sprite_id"].is_string() && check["status"].is_string() && check["checked_at"].is_string());
        }
    }
    let restarted = runner.call("POST", "/v1/sprites/s/restart").send().await.expect(200).json();
    assert_eq!(restarted["sprite_name"], "s");
    runner.run("s", &Query::of(&["true"])).await.expect(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn network_policy_is_never_pretended() {
    let runner = Runner::start();
    runner.create("s").await;
    let path = "/v1/sprites/s/policy/network";
    assert!(runner.post(path, json!({"rules": []})).await.expect(204).body.is_empty());
    let rules = [
        json!({"rules": [{"domain": "example.com", "action": "allow"}]}),
        json!({"rules": [{"domain": "*", "action": "deny"}]}),
        json!({"rules": [{"include": "defaults"}]}),
    ];
    for body in rules {
        let reply = runner.post(path, body).await.expect(422);
        assert_eq!(reply.code(), "network_policy_unsupported");
    }
    for bad in [json!({"rules": "all"}), json!([])] {
        runner.post(path, bad).await.expect(400);
    }
    runner.call("POST", path).body("{").send().await.expect(400);
    runner.post("/v1/sprites/nobody/policy/network", json!({"rules": []})).await.expect(404);
}

/// Query strings, stdin, output, bodies and tokens reach no log, and no other sprite's eyes.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_log() {
    let mut runner = Runner::start_with(common::Options::args(&["--log", "trace"]));
    runner.create("s").await;
    let secret = |n: u32| format!("sk-secret-{n}-9f8e7d6c5b4a");
    let query = Query::sh("cat; echo $KEY >&2; exit 3").stdin().env(&format!("KEY={}", secret(1)));
    let mut socket = runner.exec("s", &query).await;
    socket.stdin(secret(2)).await;
    socket.eof().await;
    let all = socket.finish().await.expect(3);
    assert_eq!((all.out(), all.err()), (secret(2), format!("{}\n", secret(1))));
    let argv = Query::of(&["echo", &secret(3)]);
    runner.run("s", &argv).await.expect(0);
    runner.run("s", &Query::of(&[&secret(4)])).await.expect(127);
    runner.run("s", &Query::of(&["true"]).dir(&format!("/{}", secret(5)))).await.expect(1);
    let put = format!("/v1/sprites/s/fs/write?path=/home/sprite/f&x={}", secret(6));
    runner.call("PUT", &put).body(secret(7)).send().await.expect(200);
    runner.call("POST", "/v1/sprites").body(format!("{{\"name\": \"{}", secret(8))).send().await.expect(400);
    let bad = format!("/v1/sprites/s/exec?cmd=%00&env=K%3D{}", secret(9));
    runner.call("POST", &bad).send().await.expect(400);
    runner.call("GET", "/v1/sprites").token(Some(&secret(10))).send().await.expect(401);
    let attach = format!("/v1/sprites/s/exec/s99?x={}", secret(11));
    runner.call("GET", &attach).upgrade().send().await.expect(404);
    let create = json!({"name": "env", "environment": {"KEY": secret(12)}});
    runner.post("/v1/sprites", create).await.expect(201);
    runner.stop_all();

    let output = runner.output();
    assert!(!output.is_empty());
    for n in 1..=12 {
        assert!(!output.contains(&secret(n)), "secret {n} was printed:\n{output}");
    }
    assert!(!output.contains(TOKEN), "the token was printed");
    // Every file that is neither the sprite's disk, nor a journal, nor the record that must hold it.
    for path in walk(runner.folder()).into_iter().filter(|p| p.is_file()) {
        let place = path.to_str().unwrap();
        if place.contains("/disk/") || place.contains("/sessions/") {
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        for n in (1..=12).filter(|n| *n != 12 || !place.ends_with("sprite.json")) {
            assert!(!processes::contains(&bytes, secret(n).as_bytes()), "secret {n} is in {place}");
        }
        assert!(!processes::contains(&bytes, TOKEN.as_bytes()), "the token is in {place}");
    }
    // Journals may hold them, so they are for one pair of eyes, and so is the folder.
    use std::os::unix::fs::PermissionsExt;
    for path in walk(&runner.state()).into_iter().filter(|p| p.to_str().unwrap().contains("/sessions/") && p.is_file())
    {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
    }
    assert_eq!(fs::metadata(runner.state()).unwrap().permissions().mode() & 0o077, 0);
}

/// The sprite hears of its agent and token nothing.
#[tokio::test(flavor = "multi_thread")]
async fn agents_carry_no_token() {
    let runner = Runner::start();
    runner.create("s").await;
    let mut socket: Socket = runner.exec("s", &Query::sh("echo $$; exec cat").stdin()).await;
    let agent = common::agent_of(socket.number().await);
    let environ = fs::read(format!("/proc/{agent}/environ")).unwrap();
    let cmdline = fs::read(format!("/proc/{agent}/cmdline")).unwrap();
    assert!(!processes::contains(&environ, TOKEN.as_bytes()) && !processes::contains(&cmdline, TOKEN.as_bytes()));
    socket.eof().await;
    socket.finish().await.expect(0);
}

/// A token below eight characters or a public address without TLS is refused at the start.
#[tokio::test(flavor = "multi_thread")]
async fn starts_that_are_refused() {
    let runner = Runner::start();
    let fresh = runner.folder().join("fresh");
    let fresh = fresh.to_str().unwrap();
    let public = runner.cli(&["runner", "--listen", "0.0.0.0:0", "--state", fresh]);
    assert!(!public.status.success(), "{public:?}");
    assert!(text(&public.stderr).contains("--plain-http"), "says the way out: {public:?}");
    let short = runner.cli_with(&["runner", "--listen", "127.0.0.1:0", "--state", fresh], |command| {
        command.env("FOUNTAIN_RUNNER_TOKEN", "short");
    });
    assert!(!short.status.success(), "{short:?}");
    assert!(!text(&short.stderr).contains("short\""), "{short:?}");
    let wrong = runner.cli(&["runner", "--listen", "127.0.0.1:0", "--state", fresh, "--isolation", "perfect"]);
    assert!(!wrong.status.success(), "{wrong:?}");
}
