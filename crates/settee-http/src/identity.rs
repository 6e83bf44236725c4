//! What the server says of itself: the version of CouchDB whose API it speaks, its node name, its welcome.

use bytes::Bytes;

use crate::json;

/// The version of CouchDB whose API this server implements, as reported by `GET /`.
pub const COUCHDB_VERSION: &str = "3.5.0";

/// The name of this node: the one that CouchDB gives a node without a cluster.
pub(crate) const NODE: &str = "nonode@nohost";

/// The response to `GET /`. `git_sha` has Settee's version.
pub(crate) fn welcome_text(uuid: &str) -> Bytes {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = Vec::new();
    json::object(&mut text, |text| {
        let head = format!(
            "\"couchdb\":\"Welcome\",\"version\":\"{COUCHDB_VERSION}\",\"git_sha\":\"settee-{version}\",\"uuid\":"
        );
        text.extend_from_slice(head.as_bytes());
        settee_doc::write_json_string(uuid, text);
        let vendor = format!(
            ",\"features\":[\"partitioned\"],\"vendor\":{{\"name\":\"Settee\",\"version\":\"{version}\"}}"
        );
        text.extend_from_slice(vendor.as_bytes());
    });
    text.push(b'\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_welcome_names_the_version_spoken_and_the_vendor() {
        let welcome: serde_json::Value = serde_json::from_slice(&welcome_text("ab")).unwrap();
        assert_eq!(welcome["version"], "3.5.0");
        assert_eq!(welcome["vendor"]["name"], "Settee");
        assert_eq!(welcome["uuid"], "ab");
    }
}
