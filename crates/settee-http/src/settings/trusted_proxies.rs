//! The addresses of proxies, which may have more connections than a client.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// Addresses to which only the limit for all connections applies.
///
/// Default: the loopback addresses. Reverse proxies must be listed, because the connections of all their
/// clients have the proxy's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

impl FromStr for TrustedProxies {
    type Err = String;

    /// Parses a comma-separated list of addresses and networks, such as `10.0.0.1, 10.1.0.0/16`.
    ///
    /// # Errors
    /// The item that is neither an address nor a network.
    fn from_str(text: &str) -> Result<TrustedProxies, String> {
        let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
        let parse = |text: &str| {
            let address = text.parse::<IpAddr>().map(IpNet::from);
            text.parse().or(address).map_err(|_| format!("{text:?} is no address and no network"))
        };
        texts.map(parse).collect::<Result<_, _>>().map(TrustedProxies)
    }
}

impl fmt::Display for TrustedProxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, network) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            match network.prefix_len() == network.max_prefix_len() {
                true => write!(f, "{separator}{}", network.addr())?,
                false => write!(f, "{separator}{network}")?,
            }
        }
        Ok(())
    }
}

impl TrustedProxies {
    /// Whether connections from this address are those of a proxy.
    pub(crate) fn contains(&self, address: &IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

impl Default for TrustedProxies {
    fn default() -> TrustedProxies {
        "127.0.0.0/8, ::1".parse().expect("these are addresses")
    }
}
