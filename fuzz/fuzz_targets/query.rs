//! Any query, any control arguments: a validated request or an error, never a NUL in what a process would be given.
#![no_main]

use fountain::wire::exec::ExecRequest;
use fountain::wire::query::{Query, decode, decode_segment};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert!(decode(bytes).len() <= bytes.len() && decode_segment(bytes).len() <= bytes.len());
    check(ExecRequest::from_query(&Query::parse(bytes)));
    if let Ok(args) = serde_json::from_slice(bytes) {
        check(ExecRequest::from_control_args(&args));
    }
});

fn check<E>(request: Result<ExecRequest, E>) {
    if let Ok(ExecRequest::Start(command)) = request {
        assert!(!command.argv.is_empty() && !command.path.is_empty());
        let parts = command.argv.iter().chain(&command.env).chain(&command.dir).chain([&command.path]);
        parts.for_each(|part| assert!(!part.contains(&0)));
        assert!(command.size.0 > 0 && command.size.1 > 0);
    }
}
