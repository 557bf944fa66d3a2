//! Checkpoint and restore, beside `tar | zstd -1 -T0` and `zstd -d | tar` over the same files.

use std::fs::{File, create_dir_all};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use fountain::cli::client::Client;
use fountain::cli::exec::{Command, Exec};
use fountain::cli::throwaway::Throwaway;
use http::Method;

use super::report::{Bound, Report, median};
use super::{Measured, create, delete};

const ROUNDS: usize = 3;

/// What lies in the sprite.
#[derive(Clone, Copy, ValueEnum)]
pub enum Filling {
    /// 30 000 files of 100 bytes to 6 KB of source-like text in 300 folders.
    Small,
    /// 1 GiB in files of 64 KiB, 1 MiB and 64 MiB, half of it text-like and half random.
    Mixed,
}

/// Measures both fillings.
pub async fn measure(host: &Throwaway, client: &Client, percent: u64, report: &mut Report) -> Measured {
    for (filling, name) in [(Filling::Small, "small"), (Filling::Mixed, "mixed")] {
        eprintln!("checkpoint and restore, {name}");
        create(client, name).await?;
        let own = std::env::current_exe()?.display().to_string();
        let command = Command::new([&own, "fill", name, "data", &percent.to_string()]);
        let output = Exec::run(client, name, &command).await?;
        if output.exit != 0 {
            return Err(format!("fill: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        one(host, client, name, filling, report).await?;
        delete(client, name).await?;
    }
    Ok(())
}

async fn one(host: &Throwaway, client: &Client, name: &str, filling: Filling, report: &mut Report) -> Measured {
    let disk = disk(host, name)?;
    let peer = host.folder().join("peer.tar.zst");
    let copy = host.folder().join("copy");
    let pack = format!("tar c -C {} . | zstd -q -f -1 -T0 -o {}", disk.display(), peer.display());
    let unpack = format!("zstd -q -d -c {} | tar x -C {}", peer.display(), copy.display());
    let (mut create, mut tar, mut restore, mut untar) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    shell(&pack)?;
    for _ in 0..ROUNDS {
        rustix::fs::sync();
        tar.push(shell(&pack)?);
        rustix::fs::sync();
        create.push(post(client, &format!("/v1/sprites/{name}/checkpoint")).await?);
    }
    for _ in 0..ROUNDS {
        create_dir_all(&copy)?;
        rustix::fs::sync();
        untar.push(shell(&unpack)?);
        std::fs::remove_dir_all(&copy)?;
        rustix::fs::sync();
        restore.push(post(client, &format!("/v1/sprites/{name}/checkpoints/v1/restore")).await?);
    }
    let what = match filling {
        Filling::Small => "30 000 small files",
        Filling::Mixed => "1 GiB of mixed files",
    };
    for (verb, ours, theirs, tool) in
        [("checkpoint", create, tar, "tar \\| zstd -1 -T0"), ("restore", restore, untar, "zstd -d \\| tar x")]
    {
        let (ours, theirs) = (median(ours), median(theirs));
        let (figure, beside) = (format!("{ours:.2} s"), format!("{tool} {theirs:.2} s"));
        report.beside(&format!("{verb} of {what}"), figure, beside, ours / theirs, Some(Bound::AtMost(1.2)));
    }
    let size = |path: PathBuf| std::fs::metadata(path).map_or(0.0, |metadata| metadata.len() as f64 / (1 << 20) as f64);
    let archive = size(disk.with_file_name("checkpoints").join("v1.tar.zst"));
    let tarball = size(peer);
    report.beside(
        &format!("archive of {what}"),
        format!("{archive:.1} MiB"),
        format!("{tarball:.1} MiB"),
        archive / tarball,
        None,
    );
    Ok(())
}

/// Where plain mode keeps a sprite's files: the peer reads the very same ones.
fn disk(host: &Throwaway, name: &str) -> Measured<PathBuf> {
    for org in std::fs::read_dir(host.state().join("sprites"))? {
        let disk = org?.path().join(name).join("disk");
        if disk.is_dir() {
            return Ok(disk);
        }
    }
    Err(format!("no disk of {name} in the state folder").into())
}

/// Posts and reads to the `complete` line; the seconds it took.
async fn post(client: &Client, target: &str) -> Measured<f64> {
    let start = Instant::now();
    let mut lines = client.send(Method::POST, target, "").await?.success().await?.lines();
    let mut last = None;
    while let Some(line) = lines.next().await? {
        last = Some(line);
    }
    match last {
        Some(line) if line["type"] == "complete" => Ok(start.elapsed().as_secs_f64()),
        other => Err(format!("{target} ended with {other:?}").into()),
    }
}

/// Runs a pipeline; the seconds it took.
fn shell(script: &str) -> Measured<f64> {
    let start = Instant::now();
    let status = std::process::Command::new("bash").args(["-o", "pipefail", "-c", script]).status()?;
    if status.success() { Ok(start.elapsed().as_secs_f64()) } else { Err(format!("{script}: {status}").into()) }
}

/// Writes the files, the same ones every time.
pub fn fill(what: Filling, folder: &Path, percent: u64) -> io::Result<()> {
    let mut random = Random(0x5eed);
    match what {
        Filling::Small => {
            for number in 0..30_000 * percent / 100 {
                let folder = folder.join(format!("package-{}/src", number % 300));
                create_dir_all(&folder)?;
                let size = 100 + random.next() % 5900;
                File::create(folder.join(format!("file-{number}.js")))?.write_all(&text(&mut random, size))?;
            }
        }
        Filling::Mixed => {
            create_dir_all(folder)?;
            let mut left = (1u64 << 30) * percent / 100;
            let mut number = 0u64;
            while left > 0 {
                // Of every sixty-four files one is large, eight are middling.
                let size = [64 << 20, 1 << 20, 64 << 10]
                    [usize::from(!number.is_multiple_of(64)) + usize::from(!number.is_multiple_of(8))];
                let size = size.min(left);
                let mut file = File::create(folder.join(format!("file-{number}")))?;
                let mut written = 0;
                while written < size {
                    let chunk = (size - written).min(64 << 10);
                    // Thue and Morse's sequence shares out every size evenly.
                    let bytes = if number.count_ones().is_multiple_of(2) {
                        text(&mut random, chunk)
                    } else {
                        noise(&mut random, chunk)
                    };
                    file.write_all(&bytes)?;
                    written += chunk;
                }
                left -= size;
                number += 1;
            }
        }
    }
    Ok(())
}

/// xorshift64*: fast, the same on every machine, good enough to be incompressible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 8
    }
}

/// Words that compress about as well as source code does.
fn text(random: &mut Random, size: u64) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "const ",
        "function ",
        "return ",
        "(value) => ",
        "{\n  ",
        "}\n",
        "module.",
        "exports",
        " = ",
        "require(",
        ");\n",
        "if (",
        "null",
        "this.",
        "length",
        ", ",
    ];
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut text = Vec::with_capacity(size + 16);
    while text.len() < size {
        let draw = random.next();
        text.extend_from_slice(WORDS[(draw % 16) as usize].as_bytes());
        if draw & 0x70 == 0 {
            text.extend_from_slice(format!("name{:x}", draw >> 40).as_bytes());
        }
    }
    text.truncate(size);
    text
}

fn noise(random: &mut Random, size: u64) -> Vec<u8> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        bytes.extend_from_slice(&random.next().to_le_bytes()[..7]);
    }
    bytes.truncate(size);
    bytes
}
