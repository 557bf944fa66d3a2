//! What /proc says about this machine and about single processes.

use super::Measured;

/// Linux shows times to programs in hundredths of a second, whatever it counts in itself.
const TICKS: f64 = 100.0;

/// One line about the machine.
pub fn describe() -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("unknown CPU", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    format!("{cores} × {model}, Linux {}, load at the end {load}, {:.0}", kernel.trim(), jiff::Timestamp::now())
}

/// Resident memory of a process, in MB (10⁶ bytes): what `ps` shows, and the part of it that no file backs.
pub fn resident(pid: u32) -> Measured<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| {
        let kib =
            status.lines().find_map(|line| line.strip_prefix(name)?.trim().split(' ').next()?.parse::<f64>().ok());
        kib.map(|kib| kib * 1024.0 / 1e6).ok_or_else(|| format!("/proc/{pid}/status has no {name}"))
    };
    Ok((field("VmRSS:")?, field("RssAnon:")?))
}

/// Processor time that a process has used, threads that have ended included, in seconds.
pub fn processor_seconds(pid: u32) -> Measured<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold spaces; user and system time are the twelfth and thirteenth field behind it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: Vec<f64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    match ticks[..] {
        [user, system] => Ok((user + system) / TICKS),
        _ => Err(format!("/proc/{pid}/stat cannot be read").into()),
    }
}
