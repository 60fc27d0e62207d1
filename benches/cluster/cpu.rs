//! CPU time of the product's processes, read from /proc: the cluster runs on this machine.

use std::fs;

/// Clock ticks in a second, as /proc counts them on Linux.
const TICKS: f64 = 100.0;

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

    /// User and system time so far, in microseconds.
    pub fn micros(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks =
            |i: usize| fields.get(i).and_then(|v| v.parse::<f64>().ok()).unwrap_or(f64::NAN);
        (ticks(11) + ticks(12)) / TICKS * 1e6
    }

    /// Resident memory, in MiB.
    pub fn memory(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|v| v.parse::<f64>().ok()).unwrap_or(f64::NAN)
            / 1024.0
    }
}
