//! The gateway against a scripted operator, scripted reviews and scripted servers: no cluster, no
//! network.

#![allow(clippy::unwrap_used, reason = "a test ends where it goes wrong")]

#[path = "support/apiserver.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod apiserver;
#[path = "gateway_plane/calls.rs"]
mod calls;
#[path = "gateway_plane/coming.rs"]
mod coming;
#[path = "gateway_plane/export.rs"]
mod export;
#[path = "gateway_plane/export_calls.rs"]
mod export_calls;
#[path = "gateway_plane/hosting.rs"]
mod hosting;
#[path = "gateway_plane/idle.rs"]
mod idle;
#[path = "gateway_plane/own.rs"]
mod own;
#[path = "gateway_plane/platform.rs"]
mod platform;
#[path = "gateway_plane/refused.rs"]
mod refused;
#[path = "gateway_plane/routes.rs"]
mod routes;
#[path = "gateway_plane/sets.rs"]
mod sets;
#[path = "gateway_plane/support.rs"]
mod support;
