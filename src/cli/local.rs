//! Commands for the runner of this user on this host, over its admin socket.

use std::path::PathBuf;

use axum::body::Body;
use clap::ArgMatches;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use crate::runner::admin::{Contact, SECRET_HEADER};
use crate::runner::settings::default_state;

/// A sentence for the user.
type Outcome<T> = Result<T, String>;

/// `fountain token …`.
pub fn token(matches: &ArgMatches) -> Outcome<()> {
    match matches.subcommand() {
        Some(("create", args)) => {
            let contact = contact(args)?;
            let text = |key: &str| args.get_one::<String>(key).cloned().unwrap_or_default();
            let made = ask(
                &contact,
                Method::POST,
                "/tokens",
                &json!({"org": text("org"), "description": text("description")}),
            )?;
            println!("# shown this once; token id {}", made["id"].as_str().unwrap_or_default());
            println!("export SPRITES_BASE_URL={}", contact.url);
            println!("export SPRITES_TOKEN={}", made["token"].as_str().unwrap_or_default());
            Ok(())
        }
        Some(("list", args)) => {
            let answer = ask(&contact(args)?, Method::GET, "/tokens", &Value::Null)?;
            let mut table = comfy_table::Table::new();
            table.set_header(["ID", "ORG", "CREATED", "DESCRIPTION"]);
            for token in answer["tokens"].as_array().into_iter().flatten() {
                let text = |key: &str| token[key].as_str().unwrap_or_default().to_owned();
                table.add_row([text("id"), text("org"), text("created_at"), text("description")]);
            }
            println!("{table}");
            Ok(())
        }
        Some(("revoke", args)) => {
            let id = args.get_one::<String>("id").cloned().unwrap_or_default();
            let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric());
            if !plain {
                return Err("a token's id is letters and digits; `fountain token list` shows it".into());
            }
            ask(&contact(args)?, Method::DELETE, &format!("/tokens/{id}"), &Value::Null)?;
            println!("token {id} is revoked");
            Ok(())
        }
        _ => Err("there is no such command".into()),
    }
}

/// `fountain stop [--all | SPRITE…]`.
pub fn stop(args: &ArgMatches) -> Outcome<()> {
    let all = args.get_flag("all");
    let sprites: Vec<&String> = args.get_many::<String>("sprites").into_iter().flatten().collect();
    let contact = match contact(args) {
        Ok(contact) => contact,
        // Agents outlive the runner: without one there may still be something to end.
        Err(_) if all => return stop_without_runner(args),
        Err(error) => return Err(error),
    };
    let pid = contact.pid;
    let body = json!({"all": all, "sprites": sprites, "org": args.get_one::<String>("org")});
    let answer = ask(&contact, Method::POST, "/stop", &body)?;
    let stopped = answer["stopped"].as_u64().unwrap_or_default();
    if sprites.is_empty() {
        wait_for(pid);
        println!(
            "the runner is stopped{}",
            if all { format!("; {stopped} sprites were ended") } else { String::new() }
        );
    } else {
        println!("{stopped} sprites were ended");
    }
    Ok(())
}

/// Waits until the runner's process has gone; it has little left to do.
fn wait_for(pid: u32) {
    let Ok(file) = rustix::process::pidfd_open(
        match rustix::process::Pid::from_raw(pid as i32) {
            Some(pid) => pid,
            None => return,
        },
        rustix::process::PidfdFlags::empty(),
    ) else {
        return;
    };
    let mut fds = [rustix::event::PollFd::new(&file, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
    let _ = rustix::event::poll(&mut fds, Some(&limit));
}

fn state(args: &ArgMatches) -> Outcome<PathBuf> {
    let state = args.get_one::<String>("state").map_or_else(default_state, PathBuf::from);
    std::path::absolute(&state).map_err(|error| format!("{}: {error}", state.display()))
}

fn contact(args: &ArgMatches) -> Outcome<Contact> {
    let state = state(args)?;
    let contact = Contact::read(&state).map_err(|_| {
        format!("no runner runs with the state folder {}; start one with `fountain runner`", state.display())
    })?;
    match std::os::unix::net::UnixStream::connect(&contact.socket) {
        Ok(_) => Ok(contact),
        Err(_) => Err(format!(
            "no runner runs with the state folder {} any more; start it again with `fountain runner`",
            state.display()
        )),
    }
}

fn ask(contact: &Contact, method: Method, path: &str, body: &Value) -> Outcome<Value> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let failed = |error: &dyn std::fmt::Display| format!("the runner cannot be asked: {error}");
        let stream = UnixStream::connect(&contact.socket).await.map_err(|error| failed(&error))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        tokio::spawn(connection);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "runner")
            .header(SECRET_HEADER, &contact.secret)
            .body(Body::from(body))
            .map_err(|error| failed(&error))?;
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|error| failed(&error))?.to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        match status.is_success() {
            true => Ok(answer),
            false => Err(answer["message"].as_str().unwrap_or("the runner refused").to_owned()),
        }
    })
}

/// Ends every agent of a state folder whose runner is gone.
fn stop_without_runner(args: &ArgMatches) -> Outcome<()> {
    let state = state(args)?;
    if !state.join("sprites").is_dir() {
        return Err(format!("there is nothing to stop in {}", state.display()));
    }
    let count = crate::runner::stop_agents(state)?;
    println!("no runner was running; {count} sprites were ended");
    Ok(())
}
