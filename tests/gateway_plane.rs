//! The gateway against a scripted operator, scripted reviews and scripted servers: no cluster, no
//! network.

#![allow(clippy::unwrap_used, reason = "a test ends where it goes wrong")]

#[path = "gateway_plane/calls.rs"]
mod calls;
#[path = "gateway_plane/hosting.rs"]
mod hosting;
#[path = "gateway_plane/routes.rs"]
mod routes;
#[path = "gateway_plane/support.rs"]
mod support;
