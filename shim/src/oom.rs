//! Whether the kernel ended a process of this container for memory. Best effort: where the cgroup
//! cannot be read, it says no. Reads files, changes nothing.

use std::path::Path;

/// Where a container sees its own memory cgroup, version 2 and version 1.
const FILES: [&str; 2] =
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// Whether a process of this container was ended for memory.
pub fn happened() -> bool {
    FILES
        .iter()
        .any(|file| std::fs::read_to_string(Path::new(file)).is_ok_and(|text| kills(&text) > 0))
}

fn kills(text: &str) -> u64 {
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|n| n.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_read() {
        assert_eq!(kills("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), 2);
        assert_eq!(kills("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"), 1);
        assert_eq!(kills("oom_kill_disable 1\nunder_oom 0\n"), 0);
    }
}
