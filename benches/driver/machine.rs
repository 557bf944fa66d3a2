//! What /proc says about this machine and about single processes.

use super::Measured;

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

/// Processor time that a process has used, in seconds.
pub fn processor_seconds(pid: u32) -> Measured<f64> {
    let mut nanoseconds = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanoseconds += text.split(' ').next().unwrap_or_default().parse::<f64>().unwrap_or_default();
    }
    Ok(nanoseconds / 1e9)
}
