//! What only a real API server can tell: whether the definitions are valid, what is refused at
//! admission and with which words, who may write what, and that the rendered chart applies.
//!
//! `AWAKEN_TEST_KUBECONFIG` names the cluster; `tests/cluster/cluster up --api-only` gives one. No
//! controller need run in it. The tests install the chart's rendering, without its workloads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod admission;
mod columns;
mod management;
mod policies;
mod rights;
mod samples;
mod server;
mod size;
