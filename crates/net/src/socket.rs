//! The sockets of nodes: those of tokio, or those of a simulated network (`docs/internals/simulation.md`).
//!
//! Both have the same operations as far as nodes use them. The options of a socket exist for real ones only.

#[cfg(not(feature = "simulation"))]
pub use tokio::net::{TcpListener, TcpStream};
#[cfg(feature = "simulation")]
pub use turmoil::net::{TcpListener, TcpStream};
