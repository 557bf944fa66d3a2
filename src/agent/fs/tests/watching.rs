//! fs/watch over a real socket.

use super::*;
use crate::agent::fs::watcher::{Message as Told, Watcher};
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use std::os::unix::fs::symlink;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

struct Client {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Client {
    async fn of(sprite: &Box) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = sprite.router.clone();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let (socket, _) = connect_async(format!("ws://{address}/fs/watch")).await.unwrap();
        Self { socket }
    }

    async fn say(&mut self, message: Value) {
        self.socket.send(Message::text(message.to_string())).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        loop {
            let next = tokio::time::timeout(Duration::from_secs(10), self.socket.next());
            match next.await.expect("a message within ten seconds").unwrap().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Hears events until the one for `path`; answers `event path` of all, without the home.
    async fn events_until(&mut self, path: &str) -> Vec<String> {
        let mut heard = Vec::new();
        loop {
            let message = self.hear().await;
            assert_eq!(message["type"], "event", "{message}");
            message["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
            let full = message["path"].as_str().unwrap();
            let short = full.strip_prefix("/home/sprite/").unwrap_or(full).to_owned();
            heard.push(format!("{} {short}", message["event"].as_str().unwrap()));
            if short == path {
                return heard;
            }
        }
    }

    async fn subscribe(&mut self, paths: &[&str], recursive: bool) {
        let message =
            json!({"type": "subscribe", "paths": paths, "recursive": recursive, "workingDir": "/home/sprite"});
        self.say(message).await;
        assert_eq!(self.hear().await, json!({"type": "subscribed", "paths": paths}));
    }
}

#[tokio::test]
async fn changes_of_a_folder_are_told() {
    let sprite = Box::new();
    sprite.put("src/old", "12345");
    sprite.put("src/sub/deep", "");
    let mut client = Client::of(&sprite).await;
    client.subscribe(&["src"], false).await;
    std::fs::write(sprite.host("src/new"), "123").unwrap();
    let first = client.hear().await;
    assert_eq!((&first["event"], &first["path"]), (&"create".into(), &"/home/sprite/src/new".into()));
    assert_eq!((&first["isDir"], first["size"].is_u64()), (&false.into(), true));
    std::fs::rename(sprite.host("src/new"), sprite.host("src/newer")).unwrap();
    std::fs::remove_file(sprite.host("src/newer")).unwrap();
    std::fs::write(sprite.host("src/sub/deep"), "not told").unwrap();
    std::fs::set_permissions(sprite.host("src/old"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let heard = client.events_until("src/old").await;
    let heard: Vec<_> = heard.iter().map(String::as_str).collect();
    let expected = ["rename src/new", "create src/newer", "remove src/newer", "chmod src/old"];
    assert!(heard.ends_with(&expected), "{heard:?}");
    assert!(heard.iter().all(|event| !event.contains("deep")));
}

#[tokio::test]
async fn folders_made_after_the_subscription_are_watched_and_nothing_in_them_is_lost() {
    let sprite = Box::new();
    sprite.put("src/sub/x", "");
    let mut client = Client::of(&sprite).await;
    client.subscribe(&["src"], true).await;
    std::fs::write(sprite.host("src/sub/x"), "told").unwrap();
    assert_eq!(client.events_until("src/sub/x").await, ["write src/sub/x"]);
    for number in 0..50 {
        let folder = format!("src/n{number}/a/b");
        sprite.put(&format!("{folder}/f"), "x");
        let heard = client.events_until(&format!("{folder}/f")).await;
        for path in [format!("src/n{number}"), format!("src/n{number}/a"), folder.clone(), format!("{folder}/f")] {
            let made = heard.iter().filter(|event| **event == format!("create {path}")).count();
            assert_eq!(made, 1, "{path} in {heard:?}");
        }
        // The folder is watched by now: what changes later is told too.
        sprite.put(&format!("{folder}/g"), "x");
        client.events_until(&format!("{folder}/g")).await;
        // Writing is told after creating.
        loop {
            let message = client.hear().await;
            if message["event"] == "write" && message["path"].as_str().unwrap().ends_with("/g") {
                break;
            }
        }
    }
}

#[tokio::test]
async fn moved_folders_are_told_under_their_new_name() {
    let sprite = Box::new();
    sprite.put("src/old/x", "");
    sprite.put("away/y", "");
    let mut client = Client::of(&sprite).await;
    client.subscribe(&["src"], true).await;
    std::fs::rename(sprite.host("src/old"), sprite.host("src/new")).unwrap();
    assert_eq!(client.events_until("src/new/x").await, ["rename src/old", "create src/new", "create src/new/x"]);
    std::fs::write(sprite.host("src/new/x"), "more").unwrap();
    assert_eq!(client.events_until("src/new/x").await, ["write src/new/x"]);
    std::fs::rename(sprite.host("src/new"), sprite.host("out")).unwrap();
    std::fs::write(sprite.host("out/x"), "not told").unwrap();
    std::fs::rename(sprite.host("away"), sprite.host("src/in")).unwrap();
    assert_eq!(client.events_until("src/in/y").await, ["rename src/new", "create src/in", "create src/in/y"]);
}

#[tokio::test]
async fn writes_by_the_api_are_one_event_without_temporary_names() {
    let sprite = Box::new();
    let mut client = Client::of(&sprite).await;
    client.subscribe(&["."], true).await;
    sprite.write("path=f", "1").await.ok();
    sprite.write("path=f", "2").await.ok();
    sprite.write("path=end", "").await.ok();
    assert_eq!(client.events_until("end").await, ["create f", "write f", "create end"]);
}

#[tokio::test]
async fn a_file_is_watched_through_its_replacements() {
    let sprite = Box::new();
    sprite.put("dir/f", "");
    sprite.put("dir/other", "");
    let mut client = Client::of(&sprite).await;
    client.subscribe(&["dir/f"], true).await;
    std::fs::write(sprite.host("dir/other"), "not told").unwrap();
    std::fs::rename(sprite.host("dir/other"), sprite.host("dir/f")).unwrap();
    assert_eq!(client.events_until("dir/f").await, ["create dir/f"]);
    std::fs::write(sprite.host("dir/f"), "more").unwrap();
    assert_eq!(client.events_until("dir/f").await, ["write dir/f"]);
}

#[tokio::test]
async fn mistakes_are_told_and_the_socket_stays() {
    let sprite = Box::new();
    sprite.put("ok/x", "");
    let mut client = Client::of(&sprite).await;
    for bad in [json!("nonsense"), json!({"type": "what"}), json!({"type": "subscribe", "paths": 7}), json!([])] {
        client.say(bad).await;
        assert_eq!(client.hear().await["type"], "error");
    }
    client.say(json!({"type": "subscribe", "paths": ["missing", "", "ok"]})).await;
    let error = client.hear().await;
    assert_eq!(error["message"], "watch /home/sprite/missing: no such file or directory");
    assert_eq!(client.hear().await["type"], "error");
    assert_eq!(client.hear().await, json!({"type": "subscribed", "paths": ["ok"]}));
    client.say(json!({"type": "unsubscribe", "paths": ["ok"], "workingDir": "/home/sprite"})).await;
    assert_eq!(client.hear().await, json!({"type": "unsubscribed", "paths": ["ok"]}));
    sprite.put("ok/not-told", "");
    sprite.put("yes/x", "");
    client.subscribe(&["yes"], false).await;
    std::fs::remove_file(sprite.host("yes/x")).unwrap();
    assert_eq!(client.events_until("yes/x").await, ["remove yes/x"]);
    client.socket.send(Message::binary("x".repeat(300 << 10))).await.unwrap();
    match client.socket.next().await.unwrap().unwrap() {
        Message::Close(Some(frame)) => assert_eq!(u16::from(frame.code), 1009),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watched_folder_that_goes_is_told_and_links_are_not_followed_below() {
    let sprite = Box::new();
    sprite.put("dir/x", "");
    sprite.put("other/x", "");
    symlink("../other", sprite.host("dir/link")).unwrap();
    let mut client = Client::of(&sprite).await;
    client.subscribe(&["dir"], true).await;
    std::fs::write(sprite.host("other/x"), "not told").unwrap();
    std::fs::remove_dir_all(sprite.host("dir")).unwrap();
    let heard = client.events_until("dir").await;
    assert_eq!(heard.last().unwrap(), "remove dir");
    assert!(heard.contains(&"remove dir/x".to_owned()));
    assert!(heard.iter().all(|event| !event.contains("other")));
}

fn drain(watcher: &mut Watcher) -> Vec<Told> {
    let mut all = Vec::new();
    while let Some(messages) = watcher.drain().unwrap() {
        all.extend(messages);
    }
    all
}

#[test]
fn lost_events_are_told_and_the_folders_they_were_about_are_watched() {
    let queue = std::fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let queue: usize = queue.trim().parse().unwrap();
    if queue > 100_000 {
        return;
    }
    let sprite = Box::new();
    sprite.put("dir/x", "");
    sprite.put("dir/y", "");
    let mut watcher = Watcher::new(sprite.paths.clone()).unwrap();
    watcher.subscribe(std::path::Path::new("/home/sprite/dir"), true).unwrap();
    for _ in 0..=queue / 2 {
        // The kernel merges an event with its like, so the two files take turns.
        for name in ["dir/x", "dir/y"] {
            std::fs::set_permissions(sprite.host(name), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        }
    }
    std::fs::create_dir(sprite.host("dir/late")).unwrap();
    let told = drain(&mut watcher);
    assert!(told.iter().any(|message| matches!(message, Told::Error { message } if message.contains("lost"))));
    std::fs::write(sprite.host("dir/late/f"), "").unwrap();
    let told = drain(&mut watcher);
    assert!(told.iter().any(|message| matches!(message, Told::Event { path, .. } if path.ends_with("dir/late/f"))));
}
