//! The queue in front of a process's input: memory first, then a spill file, in order, nothing dropped.
//!
//! A socket that is not read cannot answer pings, and signals would be stuck behind data (wire/exec.md §2.3), so input
//! that a process does not take yet is kept here: a few MiB in memory, more on the sprite's disk.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use bytes::{Buf, Bytes};

/// Input kept in memory.
const MEMORY: usize = 4 << 20;
/// Input kept on disk; beyond it the clients have to wait.
const SPILL: u64 = 4 << 30;
/// How much of the file is read back at once.
const READ_BACK: usize = 256 << 10;

/// Input that waits for its process.
#[derive(Debug)]
pub struct Queue {
    memory: VecDeque<Bytes>,
    in_memory: usize,
    spill: Option<Spill>,
    path: PathBuf,
}

#[derive(Debug)]
struct Spill {
    file: File,
    read: u64,
    written: u64,
}

impl Queue {
    /// An empty queue that spills to `path` when it must.
    pub fn new(path: PathBuf) -> Self {
        Self { memory: VecDeque::new(), in_memory: 0, spill: None, path }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty() && self.spill.is_none()
    }

    /// Whether no more should be taken from clients for now.
    pub fn is_full(&self) -> bool {
        self.spill.as_ref().is_some_and(|spill| spill.written - spill.read >= SPILL)
    }

    /// Adds input. When the disk refuses, it stays in memory: late is better than lost.
    pub fn push(&mut self, bytes: Bytes) {
        let bytes = match &self.spill {
            None if self.in_memory + bytes.len() <= MEMORY || self.memory.is_empty() => Some(bytes),
            _ => match self.spill_over(&bytes) {
                Ok(()) => None,
                Err(error) => {
                    tracing::warn!(%error, "input could not be kept on disk; it is kept in memory");
                    self.unspill();
                    Some(bytes)
                }
            },
        };
        if let Some(bytes) = bytes {
            self.in_memory += bytes.len();
            self.memory.push_back(bytes);
        }
    }

    /// The oldest bytes; empty when none wait.
    pub fn front(&mut self) -> &[u8] {
        if self.memory.is_empty()
            && let Err(error) = self.read_back(READ_BACK)
        {
            // Input that cannot be read back is gone; the process sees its end rather than a gap.
            tracing::error!(%error, "input kept on disk could not be read back");
            self.spill = None;
        }
        self.memory.front().map_or(&[], |bytes| bytes)
    }

    /// Takes `count` bytes off the front.
    pub fn consume(&mut self, count: usize) {
        self.in_memory -= count;
        if let Some(front) = self.memory.front_mut() {
            front.advance(count);
            if front.is_empty() {
                self.memory.pop_front();
            }
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.memory.clear();
        self.in_memory = 0;
        self.spill = None;
    }

    fn spill_over(&mut self, bytes: &[u8]) -> io::Result<()> {
        let spill = match &mut self.spill {
            Some(spill) => spill,
            None => {
                let mut options = File::options();
                let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&self.path)?;
                // Nameless from now on: it goes with the descriptor, also when the agent is killed.
                std::fs::remove_file(&self.path)?;
                self.spill.insert(Spill { file, read: 0, written: 0 })
            }
        };
        spill.file.write_all_at(bytes, spill.written)?;
        spill.written += bytes.len() as u64;
        Ok(())
    }

    fn read_back(&mut self, max: usize) -> io::Result<()> {
        let Some(spill) = &mut self.spill else { return Ok(()) };
        let count = (spill.written - spill.read).min(max as u64) as usize;
        if count > 0 {
            let mut buffer = vec![0; count];
            spill.file.read_exact_at(&mut buffer, spill.read)?;
            spill.read += count as u64;
            self.in_memory += count;
            self.memory.push_back(Bytes::from(buffer));
        }
        if spill.read == spill.written {
            self.spill = None;
        }
        Ok(())
    }

    /// Brings everything back to memory, so that what comes next stays behind it.
    fn unspill(&mut self) {
        while self.spill.is_some() {
            if let Err(error) = self.read_back(READ_BACK) {
                tracing::error!(%error, "input kept on disk could not be read back");
                self.spill = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_holds_across_memory_and_disk() {
        let dir = tempfile::tempdir().unwrap();
        let mut queue = Queue::new(dir.path().join("stdin"));
        let block: Vec<u8> = (0..1_000_003u32).map(|n| n as u8).collect();
        let mut expected = Vec::new();
        let mut got = Vec::new();
        let take = |queue: &mut Queue, got: &mut Vec<u8>, mut count: usize| {
            while count > 0 && !queue.is_empty() {
                let part = queue.front();
                let taken = part.len().min(count);
                got.extend_from_slice(&part[..taken]);
                queue.consume(taken);
                count -= taken;
            }
        };
        for round in 0..12 {
            expected.extend_from_slice(&block);
            queue.push(Bytes::from(block.clone()));
            take(&mut queue, &mut got, round * 100_000);
        }
        assert!(queue.spill.is_some());
        assert!(queue.in_memory <= MEMORY + block.len());
        assert!(!dir.path().join("stdin").exists());
        take(&mut queue, &mut got, usize::MAX);
        assert!(queue.is_empty() && got == expected);
    }
}
