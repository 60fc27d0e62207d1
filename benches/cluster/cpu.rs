//! CPU time of the product's processes, read from /proc: the cluster runs on this machine.

use std::fs;

/// A process that is watched.
pub struct Process {
    pid: u32,
}

impl Process {
    /// This one.
    pub fn own() -> Self {
        Self { pid: std::process::id() }
    }

    /// The process with this program name in the pod; none if it is not on this machine.
    pub fn of_pod(pod_uid: &str, program: &str) -> Option<Self> {
        let dashed = pod_uid.replace('-', "_");
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            let cgroup = read("cgroup");
            if (cgroup.contains(pod_uid) || cgroup.contains(&dashed))
                && read("comm").trim() == program
            {
                return Some(Self { pid });
            }
        }
        None
    }

    /// Time on a processor so far, of all threads that live, in microseconds. Not the ticks of
    /// `stat`: they are a sample, and threads that sleep much are sampled when they wake.
    pub fn micros(&self) -> f64 {
        let threads = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        let nanos = threads.flatten().filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        });
        nanos.sum::<f64>() / 1e3
    }

    /// Resident memory, in MiB.
    pub fn memory(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|v| v.parse::<f64>().ok()).unwrap_or(f64::NAN)
            / 1024.0
    }
}
