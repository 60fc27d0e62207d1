//! Tables for the handshake.
