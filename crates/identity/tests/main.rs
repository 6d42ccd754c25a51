//! Tokens, documents and roles, from the outside, in one binary.
//!
//! | module | question |
//! |---|---|
//! | `forge` | how a token is made: the keys, a good token, and how to spoil it |
//! | `forged` | is each forged token rejected, for its reason? |
//! | `shapes` | are the tokens accepted that CI systems, Kubernetes, Entra and Google issue? |
//! | `key_sets` | which keys of a JWKS are kept, and is their text canonical? |
//! | `documents` | does each wrong member of a provider have its problem? Which providers conflict? |
//! | `endpoints` | does a hostile discovery document lead nowhere? |
//! | `memberships` | who is a member of a role, and why? |
//! | `permissions` | what may somebody do by all of their roles? |
//! | `properties` | does it hold for generated input? |

#[cfg(test)]
mod documents;
#[cfg(test)]
mod endpoints;
#[cfg(test)]
mod forge;
#[cfg(test)]
mod forged;
#[cfg(test)]
mod key_sets;
#[cfg(test)]
mod memberships;
#[cfg(test)]
mod permissions;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod shapes;
