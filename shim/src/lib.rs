//! The codec and the challenge that shim and gateway share.
