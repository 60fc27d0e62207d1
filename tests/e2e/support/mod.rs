//! What every end-to-end test needs: the cluster, a namespace with the usual objects, servers,
//! clients, waits. Decides nothing; a wait that ends without success shows the object.

pub mod clients;
pub mod cluster;
pub mod endpoint;
pub mod objects;
pub mod server;
pub mod team;
pub mod wait;

pub use endpoint::Endpoint;
pub use server::Server;
pub use team::Team;
pub use wait::{LIMIT, until};
