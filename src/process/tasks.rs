//! Tasks that are joined: a required one that ends takes the process down with its name.

use std::future::Future;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// The required tasks of a process, and the token that stops them.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<(&'static str, Result<(), String>)>,
    stop: CancellationToken,
}

/// Which task ended the process.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// It failed or ended before it was told to.
    #[error("{name} ended: {problem}")]
    Ended {
        /// The task.
        name: &'static str,
        /// What it said.
        problem: String,
    },
    /// It panicked.
    #[error("a task panicked: {0}")]
    Panicked(String),
    /// Signals cannot be heard.
    #[error("cannot listen for signals: {0}")]
    Signals(#[from] std::io::Error),
}

impl Tasks {
    /// The token that is cancelled when the process stops.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a required task.
    pub fn spawn<E: std::fmt::Display>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.set.spawn(async move { (name, task.await.map_err(|e| e.to_string())) });
    }

    /// Runs until SIGTERM or SIGINT, or until a task ends; then stops the rest and joins them.
    ///
    /// # Errors
    /// The first task that ended unasked.
    pub async fn run(mut self) -> Result<(), TaskError> {
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let mut result = tokio::select! {
            _ = term.recv() => Ok(()),
            _ = int.recv() => Ok(()),
            () = self.stop.cancelled() => Ok(()),
            Some(ended) = self.set.join_next() => Err(match ended {
                Ok((name, Ok(()))) => TaskError::Ended { name, problem: "it was not told to".into() },
                Ok((name, Err(problem))) => TaskError::Ended { name, problem },
                Err(panic) => TaskError::Panicked(panic.to_string()),
            }),
        };
        tracing::info!(failed = result.is_err(), "stopping");
        self.stop.cancel();
        while let Some(ended) = self.set.join_next().await {
            let problem = match ended {
                Ok((_, Ok(()))) => continue,
                Ok((name, Err(problem))) => TaskError::Ended { name, problem },
                Err(panic) => TaskError::Panicked(panic.to_string()),
            };
            tracing::error!(%problem, "while stopping");
            result = result.and(Err(problem));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_required_task_that_ends_stops_the_others_and_is_named() {
        let mut tasks = Tasks::default();
        let stop = tasks.stop();
        tasks.spawn("waits", async move {
            stop.cancelled().await;
            Ok::<_, String>(())
        });
        tasks.spawn("journal", async { Err("disk full") });
        let error = tasks.run().await.unwrap_err();
        assert_eq!(error.to_string(), "journal ended: disk full");
    }
}
