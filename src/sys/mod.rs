//! What only the kernel can do for us. The one room with `unsafe` in it; each block says why it is sound.

pub mod cgroup;
pub mod memory;
pub mod proc;
pub mod pty;
pub mod spawn;
