//! Every management tool against an API server in memory: what it does, what each failure says, and
//! what it never does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "../support/apiserver.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod apiserver;
mod desk;
mod fits;
mod limits;
mod reads;
mod refusals;
mod schemas;
mod traces;
mod waits;
mod writes;
