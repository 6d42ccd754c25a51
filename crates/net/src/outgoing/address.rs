//! The addresses that outgoing calls may reach.
//!
//! The list is of what is allowed: IPv6 outside `2000::/3` is rejected unless a rule here allows it. A list of what is
//! forbidden would miss the next range that a cloud invents.
//!
//! An IPv6 address with an IPv4 address in it is allowed as that one is: the kernel or a NAT64 gateway connects to it. 6to4 and
//! Teredo have one, too; both are out of use, and rejected.
//!
//! **Invariant:** no policy allows loopback, link-local, multicast or reserved addresses, or a metadata service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The addresses that outgoing calls may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutgoingPolicy {
    /// Addresses of the internet: global unicast.
    Public,
    /// Private addresses as well, for a provider in the same network.
    Any,
    /// None: nothing is called, and no name is resolved.
    Off,
}

/// A range of IPv4: its first address and the length of its prefix.
type RangeV4 = (Ipv4Addr, u32);
/// A range of IPv6.
type RangeV6 = (Ipv6Addr, u32);

/// Ranges of IPv4 that no policy allows.
const NEVER_V4: [RangeV4; 13] = [
    // This host.
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    // The metadata service of Alibaba Cloud, in the shared address space.
    (Ipv4Addr::new(100, 100, 100, 200), 32),
    // Loopback.
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    // The host agent of Azure, at a public address.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    // Link-local, with the metadata services of most clouds.
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    // Protocol assignments, with a metadata service of Oracle at 192.0.0.192.
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    // Documentation.
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    // Relays of 6to4.
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    // Benchmarks.
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    // Documentation.
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    // Multicast.
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    // Reserved, and broadcast.
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Ranges of IPv4 that [`OutgoingPolicy::Any`] allows in addition.
const PRIVATE_V4: [RangeV4; 4] = [
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    // The shared address space of network operators, which clouds and overlay networks use.
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
];

/// Ranges of IPv6 whose addresses end with an IPv4 address.
const EMBEDDING_V6: [RangeV6; 3] = [
    // IPv4-compatible; its first addresses are `::` and `::1`, which are 0.0.0.0 and 0.0.0.1 here.
    (Ipv6Addr::UNSPECIFIED, 96),
    // IPv4-mapped.
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    // NAT64.
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
];

/// Global unicast of IPv6.
const GLOBAL_V6: RangeV6 = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Ranges within [`GLOBAL_V6`] that no policy allows.
const NEVER_V6: [RangeV6; 4] = [
    // Protocol assignments: Teredo, benchmarks, ORCHID.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    // Documentation.
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    // 6to4.
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    // Documentation.
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Private addresses of IPv6, which [`OutgoingPolicy::Any`] allows in addition.
const PRIVATE_V6: RangeV6 = (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7);

/// Metadata services within [`PRIVATE_V6`].
const METADATA_V6: [RangeV6; 6] = [
    // AWS: metadata at `::254`, identities of pods at `::23`.
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32),
    // Google Cloud.
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128),
    // Oracle.
    (Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128),
    // Scaleway.
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42), 128),
    // Akamai.
    (Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1), 128),
    // Alibaba Cloud.
    (Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200), 128),
];

/// Whether an outgoing call may connect to an address.
#[must_use]
pub fn is_allowed(policy: OutgoingPolicy, address: IpAddr) -> bool {
    let has_private = match policy {
        OutgoingPolicy::Public => false,
        OutgoingPolicy::Any => true,
        OutgoingPolicy::Off => return false,
    };
    match address {
        IpAddr::V4(address) => is_allowed_v4(has_private, address),
        IpAddr::V6(address) => match embedded(address) {
            Some(embedded) => is_allowed_v4(has_private, embedded),
            None => is_allowed_v6(has_private, address),
        },
    }
}

fn is_allowed_v4(has_private: bool, address: Ipv4Addr) -> bool {
    let is_in = |range: &RangeV4| is_in_v4(address, *range);
    !NEVER_V4.iter().any(is_in) && (has_private || !PRIVATE_V4.iter().any(is_in))
}

fn is_allowed_v6(has_private: bool, address: Ipv6Addr) -> bool {
    let is_in = |range: &RangeV6| is_in_v6(address, *range);
    let is_global = is_in(&GLOBAL_V6) && !NEVER_V6.iter().any(is_in);
    let is_private = is_in(&PRIVATE_V6) && !METADATA_V6.iter().any(is_in);
    is_global || (has_private && is_private)
}

/// The IPv4 address in an address of IPv6.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let has_one = EMBEDDING_V6.iter().any(|range| is_in_v6(address, *range));
    let [.., a, b, c, d] = address.octets();
    has_one.then(|| Ipv4Addr::new(a, b, c, d))
}

/// Whether an address is in a range, whose prefix has at least one bit.
fn is_in_v4(address: Ipv4Addr, (first, bits): RangeV4) -> bool {
    (address.to_bits() ^ first.to_bits()) >> (32 - bits) == 0
}

/// Whether an address is in a range, whose prefix has at least one bit.
fn is_in_v6(address: Ipv6Addr, (first, bits): RangeV6) -> bool {
    (address.to_bits() ^ first.to_bits()) >> (128 - bits) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which policies allow an address.
    #[derive(Debug, PartialEq, Eq)]
    enum By {
        /// Public and any.
        Both,
        /// Any.
        Any,
        /// No policy.
        None,
    }

    const ADDRESSES: [(&str, By); 146] = [
        // This host, and the first address after it.
        ("0.0.0.0", By::None),
        ("0.0.0.1", By::None),
        ("0.255.255.255", By::None),
        ("1.0.0.0", By::Both),
        // Private.
        ("9.255.255.255", By::Both),
        ("10.0.0.0", By::Any),
        ("10.96.0.1", By::Any),
        ("10.255.255.255", By::Any),
        ("11.0.0.0", By::Both),
        ("172.15.255.255", By::Both),
        ("172.16.0.0", By::Any),
        ("172.31.255.255", By::Any),
        ("172.32.0.0", By::Both),
        ("192.167.255.255", By::Both),
        ("192.168.0.0", By::Any),
        ("192.168.255.255", By::Any),
        ("192.169.0.0", By::Both),
        // Shared address space, with a metadata service.
        ("100.63.255.255", By::Both),
        ("100.64.0.0", By::Any),
        ("100.100.100.199", By::Any),
        ("100.100.100.200", By::None),
        ("100.100.100.201", By::Any),
        ("100.127.255.255", By::Any),
        ("100.128.0.0", By::Both),
        // Loopback.
        ("126.255.255.255", By::Both),
        ("127.0.0.0", By::None),
        ("127.0.0.1", By::None),
        ("127.255.255.255", By::None),
        ("128.0.0.0", By::Both),
        // The host agent of Azure.
        ("168.63.129.15", By::Both),
        ("168.63.129.16", By::None),
        ("168.63.129.17", By::Both),
        // Link-local.
        ("169.253.255.255", By::Both),
        ("169.254.0.0", By::None),
        ("169.254.169.254", By::None),
        ("169.254.170.2", By::None),
        ("169.254.255.255", By::None),
        ("169.255.0.0", By::Both),
        // Protocol assignments.
        ("191.255.255.255", By::Both),
        ("192.0.0.0", By::None),
        ("192.0.0.192", By::None),
        ("192.0.0.255", By::None),
        ("192.0.1.0", By::Both),
        // Documentation.
        ("192.0.1.255", By::Both),
        ("192.0.2.0", By::None),
        ("192.0.2.255", By::None),
        ("192.0.3.0", By::Both),
        ("198.51.99.255", By::Both),
        ("198.51.100.0", By::None),
        ("198.51.100.255", By::None),
        ("198.51.101.0", By::Both),
        ("203.0.112.255", By::Both),
        ("203.0.113.0", By::None),
        ("203.0.113.255", By::None),
        ("203.0.114.0", By::Both),
        // Relays of 6to4.
        ("192.88.98.255", By::Both),
        ("192.88.99.0", By::None),
        ("192.88.99.255", By::None),
        ("192.88.100.0", By::Both),
        // Benchmarks.
        ("198.17.255.255", By::Both),
        ("198.18.0.0", By::None),
        ("198.19.255.255", By::None),
        ("198.20.0.0", By::Both),
        // Multicast, reserved, broadcast.
        ("223.255.255.255", By::Both),
        ("224.0.0.0", By::None),
        ("239.255.255.255", By::None),
        ("240.0.0.0", By::None),
        ("255.255.255.254", By::None),
        ("255.255.255.255", By::None),
        ("8.8.8.8", By::Both),
        // Unspecified, loopback, IPv4-compatible.
        ("::", By::None),
        ("::1", By::None),
        ("::2", By::None),
        ("::127.0.0.1", By::None),
        ("::169.254.169.254", By::None),
        ("::10.0.0.1", By::Any),
        ("::8.8.8.8", By::Both),
        ("::1:0:0", By::None),
        // IPv4-mapped, and what is beside it.
        ("::fffe:8.8.8.8", By::None),
        ("::ffff:0.0.0.0", By::None),
        ("::ffff:127.0.0.1", By::None),
        ("::ffff:169.254.169.254", By::None),
        ("::ffff:100.100.100.200", By::None),
        ("::ffff:10.0.0.1", By::Any),
        ("::ffff:192.168.1.1", By::Any),
        ("::ffff:8.8.8.8", By::Both),
        ("::ffff:255.255.255.255", By::None),
        ("::ffff:0:8.8.8.8", By::None),
        ("::1:0:8.8.8.8", By::None),
        // NAT64.
        ("64:ff9a:ffff:ffff:ffff:ffff:8.8.8.8", By::None),
        ("64:ff9b::8.8.8.8", By::Both),
        ("64:ff9b::10.0.0.1", By::Any),
        ("64:ff9b::127.0.0.1", By::None),
        ("64:ff9b::169.254.169.254", By::None),
        ("64:ff9b::1:8.8.8.8", By::None),
        ("64:ff9b:1::", By::None),
        ("64:ff9b:1::8.8.8.8", By::None),
        ("64:ff9b:1:ffff:ffff:ffff:ffff:ffff", By::None),
        ("64:ff9b:2::8.8.8.8", By::None),
        // Discard.
        ("100::", By::None),
        ("100::ffff:ffff:ffff:ffff", By::None),
        ("100:0:0:1::", By::None),
        // The edges of global unicast.
        ("1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", By::None),
        ("2000::", By::Both),
        ("3fff:1000::", By::Both),
        ("3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", By::Both),
        ("4000::", By::None),
        ("5f00::1", By::None),
        // Protocol assignments, with Teredo.
        ("2000:ffff:ffff:ffff:ffff:ffff:ffff:ffff", By::Both),
        ("2001::", By::None),
        ("2001:0:ffff:ffff:ffff:ffff:ffff:ffff", By::None),
        ("2001:1::1", By::None),
        ("2001:2::1", By::None),
        ("2001:20::1", By::None),
        ("2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", By::None),
        ("2001:200::", By::Both),
        // Documentation.
        ("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", By::Both),
        ("2001:db8::", By::None),
        ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", By::None),
        ("2001:db9::", By::Both),
        ("3ffe:ffff:ffff:ffff:ffff:ffff:ffff:ffff", By::Both),
        ("3fff::", By::None),
        ("3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", By::None),
        // 6to4, also with a public address inside.
        ("2001:ffff:ffff:ffff:ffff:ffff:ffff:ffff", By::Both),
        ("2002::", By::None),
        ("2002:7f00:1::", By::None),
        ("2002:808:808::1", By::None),
        ("2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", By::None),
        ("2003::", By::Both),
        ("2606:4700:4700::1111", By::Both),
        // Private, with the metadata services.
        ("fbff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", By::None),
        ("fc00::", By::Any),
        ("fd00:ec1:ffff:ffff:ffff:ffff:ffff:ffff", By::Any),
        ("fd00:ec2::23", By::None),
        ("fd00:ec2::254", By::None),
        ("fd00:ec3::", By::Any),
        ("fd20:ce::254", By::None),
        ("fd00:c1::a9fe:a9fe", By::None),
        ("fd00:42::42", By::None),
        ("fd00:a9fe:a9fe::1", By::None),
        ("fd00:100::100:200", By::None),
        ("fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", By::Any),
        // Link-local, site-local, multicast.
        ("fe00::", By::None),
        ("fe80::1", By::None),
        ("fec0::1", By::None),
        ("ff02::1", By::None),
    ];

    #[test]
    fn the_edges_of_each_range_are_judged() {
        for (text, by) in &ADDRESSES {
            let address: IpAddr = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            let allowed =
                [OutgoingPolicy::Public, OutgoingPolicy::Any].map(|policy| is_allowed(policy, address));
            let found = match allowed {
                [true, true] => By::Both,
                [false, true] => By::Any,
                [false, false] => By::None,
                [true, false] => panic!("`Public` allows {text}, and `Any` does not"),
            };
            assert_eq!(&found, by, "{text}");
            assert!(!is_allowed(OutgoingPolicy::Off, address), "{text}");
        }
    }

    /// A second opinion: what the standard library calls special is never public.
    #[test]
    fn no_address_that_the_standard_library_calls_special_is_public() {
        for step in 0..1_u32 << 16 {
            // One address of each /16, whose other half differs between steps.
            let address = Ipv4Addr::from_bits(step << 16 | step.wrapping_mul(40_503) & 0xffff);
            let is_special = address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_documentation()
                || address.is_unspecified();
            let forms = [address.to_ipv6_mapped(), address.to_ipv6_compatible()];
            let allowed = is_allowed(OutgoingPolicy::Public, address.into());
            assert!(!(is_special && allowed), "{address}");
            for form in forms {
                assert_eq!(is_allowed(OutgoingPolicy::Public, form.into()), allowed, "{form}");
            }
        }
    }
}
