//! An API server in memory and a scripted gateway, for scenarios of the operator.

pub mod apiserver;
pub mod gateway;
pub mod world;
