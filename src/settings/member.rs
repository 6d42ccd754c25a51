//! A member of the cluster, as the command line names it: with its id and both addresses.

use concord_net::Member;
use concord_service::membership::check_address;

/// Parses a member of the command line.
///
/// # Errors
/// When it is not `ID=API_HOST:PORT@PEER_HOST:PORT`.
pub fn parse_member(text: &str) -> Result<Member, String> {
    let parts = text.split_once('=').and_then(|(id, rest)| Some((id, rest.split_once('@')?)));
    let (id, (api_addr, peer_addr)) = parts.ok_or("expected ID=API_HOST:PORT@PEER_HOST:PORT")?;
    check_address(api_addr)?;
    check_address(peer_addr)?;
    match id.parse() {
        Ok(id) if id > 0 => Ok(Member { id, api_addr: api_addr.into(), peer_addr: peer_addr.into() }),
        _ => Err(format!("`{id}` is not a node id")),
    }
}
