//! The child: started without a shell in a process group of its own, reaped, and ended with its
//! whole group.
//!
//! This process collects every ended process below it, as PID 1 must, and is the only one that
//! waits for the child, so no status is ever stolen.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, timeout_at};

/// Time between the polite signal and the last one.
pub const GRACE: Duration = Duration::from_secs(5);

/// Why there is no child; the exit codes are those of a shell.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SpawnError {
    /// No such program.
    #[error("command not found: {0}")]
    NotFound(String),
    /// The program is there, what its first line names is not.
    #[error("command not found: {0} (its interpreter is missing)")]
    NoInterpreter(String),
    /// It may not be executed, or is no program.
    #[error("command not executable: {0} ({1})")]
    NotExecutable(String, String),
}

impl SpawnError {
    /// 127 or 126.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) | Self::NoInterpreter(_) => 127,
            Self::NotExecutable(..) => 126,
        }
    }
}

/// Whether a variable stays out of the child's environment.
pub fn is_withheld(name: &str) -> bool {
    name.starts_with("KUBERNETES_") || name.starts_with("AWAKEN_")
}

/// Starts the command with pipes on all three streams.
pub fn spawn(command: &[String], env: &[(OsString, OsString)]) -> Result<Child, SpawnError> {
    let (program, args) = command.split_first().expect("a command line is never empty");
    let kept = env.iter().filter(|(name, _)| !is_withheld(&name.to_string_lossy()));
    Command::new(program)
        .args(args)
        .env_clear()
        .envs(kept.map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                if std::fs::metadata(program).is_ok_and(|file| file.is_file()) {
                    SpawnError::NoInterpreter(program.clone())
                } else {
                    SpawnError::NotFound(program.clone())
                }
            }
            _ => SpawnError::NotExecutable(program.clone(), error.to_string()),
        })
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Collects the ended processes and knows the child's status.
pub struct Reaper {
    child: Option<Pid>,
    ended: Option<Ended>,
    signals: unix::Signal,
}

impl Reaper {
    /// Listens for ended processes; make it before the child.
    pub fn new() -> std::io::Result<Self> {
        let signals = unix::signal(SignalKind::child())?;
        Ok(Self { child: None, ended: None, signals })
    }

    /// Names the child.
    pub fn watch(&mut self, pid: u32) {
        self.child = i32::try_from(pid).ok().map(Pid::from_raw);
    }

    fn collect(&mut self) {
        loop {
            let (pid, ended) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Ended::Code(code)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, Ended::Signal(signal as i32)),
                Err(Errno::EINTR) => continue,
                Ok(WaitStatus::StillAlive) | Err(_) => return,
                Ok(_) => continue,
            };
            if Some(pid) == self.child {
                self.ended = Some(ended);
            }
        }
    }

    /// Waits for the child's end, as long as it takes. May be dropped and called again.
    pub async fn ended(&mut self) -> Ended {
        loop {
            self.collect();
            if let Some(ended) = self.ended {
                return ended;
            }
            self.signals.recv().await;
        }
    }

    /// Waits for the child's end, at most so long.
    pub async fn ended_within(&mut self, limit: Duration) -> Option<Ended> {
        timeout_at(Instant::now() + limit, self.ended()).await.ok()
    }

    /// Sends a signal to the whole group; false when there is no one left in it.
    pub fn signal_group(&self, signal: impl Into<Option<Signal>>) -> bool {
        self.child.is_some_and(|group| killpg(group, signal) != Err(Errno::ESRCH))
    }

    /// Ends what is left of the group: politely, then for good.
    pub async fn end_group(&mut self) {
        let deadline = Instant::now() + GRACE;
        let mut more = self.signal_group(Signal::SIGTERM);
        while more && Instant::now() < deadline {
            // Members that are not our own children end without a signal to us.
            let look = (Instant::now() + Duration::from_millis(50)).min(deadline);
            let _ = timeout_at(look, self.signals.recv()).await;
            self.collect();
            more = self.signal_group(None);
        }
        if more {
            self.signal_group(Signal::SIGKILL);
            let _ =
                timeout_at(Instant::now() + Duration::from_millis(200), self.signals.recv()).await;
            self.collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn withheld_names() {
        for name in ["KUBERNETES_SERVICE_HOST", "KUBERNETES_PORT", "AWAKEN_POD_UID", "AWAKEN_"] {
            assert!(is_withheld(name), "{name}");
        }
        for name in ["PATH", "MY_KUBERNETES_X", "AWAKENING", "kubernetes_x"] {
            assert!(!is_withheld(name), "{name}");
        }
    }
}
