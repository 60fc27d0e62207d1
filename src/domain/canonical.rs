//! The canonical form of JSON, of URLs and of addresses, and digests over them.
