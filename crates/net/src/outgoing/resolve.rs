//! Resolves the names of hosts.
//!
//! The lookup of the C library can't be cancelled: it keeps a thread for up to half a minute after the call has given
//! up. So the number of lookups is bounded, and a lookup keeps its place until it has ended.

use std::{fmt, io, net::IpAddr, sync::Arc};

use futures::future::BoxFuture;

use super::places::Places;

/// Lookups at once, with those whose calls have given up, and those of one host. Each has a thread.
const LOOKUPS_MAX: usize = 16;
pub(super) const LOOKUPS_OF_HOST_MAX: usize = 2;

/// Finds the addresses of a host.
pub trait Resolve: fmt::Debug + Send + Sync {
    /// The addresses of a host, the preferred one first.
    fn resolve(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The resolver of this machine.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

#[cfg(not(feature = "simulation"))]
impl Resolve for SystemResolver {
    fn resolve(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

/// A lookup takes a thread, and what threads do does not depend on the seed alone.
#[cfg(feature = "simulation")]
impl Resolve for SystemResolver {
    fn resolve(&self, _: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(std::future::ready(Err(io::Error::from(io::ErrorKind::Unsupported))))
    }
}

/// A resolver with a bounded number of lookups.
#[derive(Debug)]
pub(super) struct BoundedResolver {
    resolver: Arc<dyn Resolve>,
    places: Places,
}

impl BoundedResolver {
    pub(super) fn new(resolver: Arc<dyn Resolve>) -> Self {
        Self { resolver, places: Places::new(LOOKUPS_MAX, LOOKUPS_OF_HOST_MAX) }
    }

    /// The addresses of a host. Has no timeout: the call bounds the time.
    pub(super) async fn addresses(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        let place = self.places.take(host).await;
        let lookup = self.resolver.resolve(host.to_owned());
        // If the call gives up, the lookup goes on in this task, and has its place until it ends.
        let lookup = tokio::spawn(async move {
            let found = lookup.await;
            drop(place);
            found
        });
        lookup.await.map_err(io::Error::other)?
    }
}
