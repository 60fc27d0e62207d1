//! Health for the kubelet and metrics for Prometheus, on a port of their own.
//!
//! Readiness is a set of named guards: a part that must come up takes one at the start and drops
//! it when it is up. The program is ready when none is held; `/readyz` names those that are.

use super::{
    listen::{self, Limits, Meter},
    metrics::Metrics,
};
use axum::{Router, extract::State, http::StatusCode, routing::get};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio_util::sync::CancellationToken;

/// What still has to come up.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<&'static str, usize>>>);

/// Held while something is not up. Dropped when it is.
#[derive(Debug)]
pub struct Guard {
    name: &'static str,
    readiness: Readiness,
}

impl Readiness {
    /// Registers something that must come up, by the name that `/readyz` shows.
    #[must_use]
    pub fn guard(&self, name: &'static str) -> Guard {
        *self.lock().entry(name).or_default() += 1;
        Guard { name, readiness: self.clone() }
    }

    /// The names of what is not up.
    pub fn waiting(&self) -> Vec<&'static str> {
        self.lock().keys().copied().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = self.readiness.lock();
        if let Some(n) = held.get_mut(self.name) {
            *n -= 1;
            if *n == 0 {
                held.remove(self.name);
            }
        }
    }
}

/// `/healthz`, `/readyz` and `/metrics`.
pub fn router(readiness: Readiness, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(readiness)
        .route("/metrics", get(move || async move { metrics.encode() }))
}

async fn readyz(State(readiness): State<Readiness>) -> (StatusCode, String) {
    match readiness.waiting() {
        names if names.is_empty() => (StatusCode::OK, "ok\n".to_owned()),
        names => (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for {}\n", names.join(", "))),
    }
}

/// Connections at one time: the kubelet's, and some that scrape.
const CONNECTIONS: usize = 256;

/// Serves the router until `stop`.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    router: Router,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::bind(address).await?;
    listen::serve(listener, router, Limits::new(CONNECTIONS), Meter::default(), stop).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    async fn ask(router: &Router, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn ready_when_no_guard_is_held() {
        let readiness = Readiness::default();
        let router = router(readiness.clone(), Metrics::new());
        let (journal, watch, watch2) =
            (readiness.guard("journal"), readiness.guard("watch"), readiness.guard("watch"));
        let (status, body) = ask(&router, "/readyz").await;
        assert_eq!(
            (status, &*body),
            (StatusCode::SERVICE_UNAVAILABLE, "waiting for journal, watch\n")
        );
        drop((journal, watch));
        assert_eq!(ask(&router, "/readyz").await.0, StatusCode::SERVICE_UNAVAILABLE);
        drop(watch2);
        assert_eq!(ask(&router, "/readyz").await.0, StatusCode::OK);
        assert_eq!(ask(&router, "/healthz").await.0, StatusCode::OK);
    }
}
