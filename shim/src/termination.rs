//! The termination message: what the kubelet copies into the pod's status.
//!
//! First line `Reason: sentence`, then the last lines of stderr. Best effort: a failure to write
//! changes nothing.

use std::path::Path;

use crate::child::{Ended, SpawnError};
use crate::stderr::TAIL;

/// Bytes of the whole message; the kubelet takes 4,096.
const LIMIT: usize = TAIL + 512;

/// The message for a child that never was.
pub fn not_started(error: &SpawnError) -> String {
    let reason = match error {
        SpawnError::NotFound(_) | SpawnError::NoInterpreter(_) => "CommandNotFound",
        SpawnError::NotExecutable(..) => "CommandNotExecutable",
    };
    cut(format!("{reason}: {error}"))
}

/// The message for a child that ended, perhaps for memory.
pub fn ended(ended: Ended, out_of_memory: bool, stderr_tail: &str) -> String {
    let reason = if out_of_memory { "OutOfMemory" } else { "ServerExited" };
    let how = match ended {
        Ended::Code(code) => format!("exit code {code}"),
        Ended::Signal(signal) => format!("signal {signal}"),
    };
    let tail = if stderr_tail.is_empty() { String::new() } else { format!("\n{stderr_tail}") };
    cut(format!("{reason}: {how}{tail}"))
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LIMIT));
    text
}

/// Writes it.
pub fn write(path: &Path, message: &str) {
    // The file is there already in a pod; elsewhere it may be missing or forbidden.
    let _ = std::fs::write(path, message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        let missing = not_started(&SpawnError::NotFound("x".into()));
        assert_eq!(missing, "CommandNotFound: command not found: x");
        let denied = not_started(&SpawnError::NotExecutable("x".into(), "y".into()));
        assert_eq!(denied, "CommandNotExecutable: command not executable: x (y)");
        assert_eq!(ended(Ended::Code(3), false, "a\nb"), "ServerExited: exit code 3\na\nb");
        assert_eq!(ended(Ended::Signal(9), false, ""), "ServerExited: signal 9");
        assert_eq!(ended(Ended::Signal(9), true, "x"), "OutOfMemory: signal 9\nx");
        assert!(ended(Ended::Code(1), false, &"ä".repeat(9000)).len() <= LIMIT);
    }
}
