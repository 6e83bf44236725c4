//! The process's limit on open file descriptors (getrlimit(2)), which bounds the number of connections.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit on open file descriptors to at least `needed`.
pub(crate) fn raise_limit(needed: u64) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(limit.current) {
        return Ok(());
    }
    let maximum = if enough(limit.maximum) { limit.maximum } else { Some(needed) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).map_err(|error| {
        let granted = limit.maximum.map_or("unlimited".to_owned(), |limit| limit.to_string());
        format!(
            "{needed} descriptors are needed and {granted} granted ({error}): \
             see ulimit -Hn, or take a smaller --scale"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_descriptors_than_the_system_grants_are_refused_with_both_figures() {
        let refused = raise_limit(1 << 40).unwrap_err();
        assert!(refused.contains("1099511627776 descriptors are needed"), "{refused}");
    }
}
