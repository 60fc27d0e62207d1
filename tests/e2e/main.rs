//! End to end on a real cluster: `cargo test --test e2e`.
//!
//! Needs `AWAKEN_E2E_KUBECONFIG` (or `AWAKEN_TEST_KUBECONFIG`) of a cluster that has the images,
//! whose pods and Services this machine reaches by their addresses, as it does with
//! `tests/cluster`. Installs the chart with helm if it is not there. Each test has a namespace of
//! its own and leaves nothing when it succeeds; tests that disturb the product run alone.
//! `AWAKEN_E2E_PATIENCE=4` makes every limit four times as long, for a machine that is busy.

#![allow(clippy::unwrap_used, reason = "a test ends where it goes wrong")]

mod bad_input;
mod broken_pods;
mod burst;
mod canary;
mod deletion;
mod export;
mod faults;
mod happy;
mod requests;
mod rotation;
mod sandbox;
mod support;
