//! The metrics registry. Each part registers its own; names begin with `awaken_`.

use prometheus_client::{
    encoding::text::encode,
    registry::{Metric, Registry},
};
use std::sync::{Arc, Mutex, PoisonError};

/// The registry of a process.
#[derive(Clone)]
pub struct Metrics(Arc<Mutex<Registry>>);

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// An empty registry.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Registry::with_prefix("awaken"))))
    }

    /// Registers a metric by its name without prefix and suffix, and gives it back.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).register(name, help, metric.clone());
        metric
    }

    /// The text that Prometheus reads.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        encode(&mut out, &self.0.lock().unwrap_or_else(PoisonError::into_inner))
            .expect("writing to a String cannot fail");
        out
    }
}
