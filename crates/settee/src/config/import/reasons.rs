//! The reasons why keys of CouchDB have no setting, by key or by section.

/// Reason of a key whose value is this server's fixed behavior.
pub(super) const FIXED: &str = "this server always does that";

/// Keys with fixed behavior: the section, the key, the value that is this server's behavior, and the reason
/// for other values.
const FIXED_KEYS: &[(&str, &str, &str, &str)] = &[
    (
        "chttpd",
        "admin_only_all_dbs",
        "true",
        "everything but /, /_up and /_session requires the administrator",
    ),
    ("chttpd", "allow_jsonp", "false", "there is no JSONP"),
    ("chttpd", "buffer_response", "false", "answers are streamed"),
    ("chttpd", "enable_cors", "false", ""),
    ("chttpd", "enable_xframe_options", "false", "X-Frame-Options isn't sent"),
    (
        "chttpd_auth",
        "allow_persistent_cookies",
        "true",
        "session cookies outlive the browser until they expire",
    ),
    ("chttpd", "decode_plus_to_space", "true", ""),
    ("chttpd", "max_db_number_for_dbs_info_req", "100", ""),
    ("cluster", "n", "1", ONE_NODE),
    ("cluster", "q", "1", NOT_SHARDED),
    ("couch_peruser", "enable", "false", NO_USERS),
    ("couchdb", "default_security", "admin_only", "only the administrator may read and write"),
    ("couchdb", "delayed_commits", "false", "every 2xx but 202 is on stable storage; batch=ok asks for less"),
    ("couchdb", "enable_database_recovery", "false", "a deleted database can't be recovered"),
    ("couchdb", "maintenance_mode", "false", ""),
    ("couchdb", "max_partition_size", "10737418240", ""),
    ("couchdb", "single_node", "true", ONE_NODE),
    ("httpd", "enable_cors", "false", ""),
    ("log", "writer", "stderr", "the log is written to stderr unless `log_file` names a file"),
    ("prometheus", "additional_port", "false", METRICS),
    ("ssl", "enable", "false", NO_TLS),
    ("uuids", "algorithm", "sequential", ""),
    ("uuids", "max_count", "1000", ""),
];

const ONE_NODE: &str = "a server is one node";
const NO_USERS: &str = "users other than the administrator aren't supported yet";
const NO_USERS_SECTION: &str = "no counterpart: users other than the administrator aren't supported yet";
const NO_REPLICATOR: &str = "a replicator isn't supported yet; other servers can replicate with this one";
const VIEWS: &str = "[views] configures indexes and their builds";
const FUNCTIONS: &str = "javascript_bytes_max and javascript_ticks_max limit functions";
const NO_TLS: &str = "TLS isn't supported yet: a proxy in front of the server can provide it";
const NO_JWT: &str = "JWT isn't supported yet";
const NO_FULL_TEXT: &str = "full-text search isn't supported";
const NOT_SHARDED: &str = "a database isn't split into shards";
const METRICS: &str = "metrics are at /_node/_local/_prometheus, for the administrator";
const SESSION_SECRET: &str = "each start generates a new secret, which ends all sessions";
const NODE_LOCAL_PORT: &str = "there is no node-local port: [chttpd] has the port that clients use";
const SOCKETS: &str = "socket options aren't configurable";
const NO_PROCESSES: &str = "queries don't run external programs";

/// Keys that have no setting: the section, the key and the reason.
const KEYS: &[(&str, &str, &str)] = &[
    ("attachments", "compressible_types", "the types are CouchDB's default"),
    ("attachments", "compression_level", "the level is CouchDB's default, 8"),
    (
        "chttpd",
        "authentication_handlers",
        "basic and cookie authentication are supported; proxy and JWT authentication aren't yet",
    ),
    ("chttpd", "backlog", SOCKETS),
    ("chttpd", "config_whitelist", "the administrator may change everything that is configurable over HTTP"),
    ("chttpd", "server_options", SOCKETS),
    ("chttpd", "socket_options", SOCKETS),
    ("chttpd_auth", "secret", SESSION_SECRET),
    ("chttpd_auth", "same_site", "session cookies are SameSite=Lax"),
    ("chttpd_auth", "upgrade_hash_on_auth", NO_USERS),
    ("couch_httpd_auth", "secret", SESSION_SECRET),
    (
        "couchdb",
        "database_dir",
        "CouchDB's files aren't read: set `data_dir` to another directory [default: ./settee-data]",
    ),
    ("couchdb", "file_compression", "documents are stored as received"),
    ("couchdb", "max_database_name_length", "a name has 238 bytes at most, CouchDB's default"),
    ("couchdb", "max_document_id_length", "an id has 8000 bytes at most"),
    ("couchdb", "os_process_timeout", FUNCTIONS),
    ("couchdb", "uri_file", "the log contains the address at start"),
    ("couchdb", "users_db_security_editable", NO_USERS),
    ("couchdb", "users_db_suffix", NO_USERS),
    ("couchdb", "uuid", "the server generates its own and stores it in server-uuid in the data directory"),
    ("couchdb", "view_index_dir", "indexes are in views/ of the data directory"),
    ("httpd", "bind_address", NODE_LOCAL_PORT),
    ("httpd", "port", NODE_LOCAL_PORT),
    ("log", "file", "the server doesn't append to CouchDB's log: set `log_file` to another file"),
    ("vendor", "name", "the vendor is Settee"),
    ("vendor", "version", "the version is the program's"),
];

/// Sections without settings: the section and the reason for keys that aren't listed above.
const SECTIONS: &[(&str, &str)] = &[
    ("chttpd_auth", NO_USERS_SECTION),
    ("chttpd_auth_cache", NO_USERS),
    ("chttpd_auth_lockout", "failed logins aren't counted"),
    ("cluster", ONE_NODE),
    ("cors", "CORS per host isn't supported: [cors] applies to all hosts"),
    ("couch_httpd_auth", NO_USERS_SECTION),
    ("couch_mrview", VIEWS),
    ("couch_peruser", NO_USERS),
    ("couch_quickjs_scanner_plugin", "there is one JavaScript engine"),
    ("couchdb_engines", "there is one storage engine"),
    ("csp", "Content-Security-Policy isn't sent"),
    ("ddoc_cache", VIEWS),
    ("disk_monitor", "writes get 507 while the disk is full"),
    ("dreyfus", NO_FULL_TEXT),
    ("fabric", ONE_NODE),
    ("global_changes", "_db_updates is always available"),
    ("httpd_design_handlers", "handlers aren't configurable"),
    ("ioq", "[io] configures the queues of file operations"),
    ("jwt_auth", NO_JWT),
    ("jwt_keys", NO_JWT),
    ("ken", "view_autoupdate says whether indexes are built after writes"),
    ("mango", "Mango isn't configurable: a page has 25 results by default"),
    ("mem3", ONE_NODE),
    ("native_query_servers", NO_PROCESSES),
    ("nouveau", NO_FULL_TEXT),
    ("prometheus", METRICS),
    ("purge", "the limits of a purge are fixed"),
    ("query_server_config", FUNCTIONS),
    ("query_servers", NO_PROCESSES),
    ("replicator", NO_REPLICATOR),
    ("reshard", NOT_SHARDED),
    ("rexi", ONE_NODE),
    ("smoosh", "compaction is automatic: see garbage_percent_max and compaction_bytes_per_second"),
    ("ssl", NO_TLS),
    ("stats", "statistics aren't collected in intervals"),
    ("vhosts", "virtual hosts aren't supported"),
    ("view_updater", VIEWS),
    ("x_frame_options", "X-Frame-Options isn't sent"),
];

/// Returns why a key has no setting, and the alternative if there is one.
pub(super) fn reason(section: &str, key: &str, value: &str) -> String {
    let fixed_key = FIXED_KEYS.iter().find(|fixed| (fixed.0, fixed.1) == (section, key));
    match fixed_key {
        Some((.., fixed, _)) if *fixed == value => return FIXED.to_owned(),
        Some((.., reason)) if !reason.is_empty() => return (*reason).to_owned(),
        _ => {}
    }
    match (section, key) {
        ("couchdb", "maintenance_mode" | "max_partition_size")
        | ("uuids", "algorithm" | "utc_id_suffix" | "max_count")
        | ("cors", _)
        | ("chttpd" | "httpd", "enable_cors" | "WWW-Authenticate")
        | (
            "chttpd",
            "decode_plus_to_space"
            | "max_db_number_for_dbs_info_req"
            | "require_valid_user"
            | "require_valid_user_except_for_up",
        )
        | ("chttpd_auth" | "couch_httpd_auth", "require_valid_user") => {
            let json = serde_json::Value::from(value);
            return format!(
                "set it over HTTP while the server runs: PUT /_node/_local/_config/{section}/{key} {json}"
            );
        }
        _ => {}
    }
    // Sections such as smoosh.ratio_dbs and cors:http://example.com.
    let family = section.split(['.', ':']).next().unwrap_or(section);
    let of_key = KEYS.iter().find(|known| (known.0, known.1) == (section, key)).map(|known| known.2);
    let of_section =
        SECTIONS.iter().find(|known| known.0 == section || known.0 == family).map(|known| known.1);
    of_key.or(of_section).unwrap_or("no counterpart").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_fixed_behavior_is_distinguished() {
        assert_eq!(reason("couchdb", "single_node", "true"), FIXED);
        assert_eq!(reason("couchdb", "single_node", "false"), ONE_NODE);
        assert_eq!(reason("uuids", "algorithm", "sequential"), FIXED);
    }

    #[test]
    fn the_reason_of_a_key_that_is_set_over_http_contains_the_request() {
        let text = reason("uuids", "utc_id_suffix", "a \"b\"");
        assert!(text.ends_with("PUT /_node/_local/_config/uuids/utc_id_suffix \"a \\\"b\\\"\""), "{text}");
        assert!(reason("couchdb", "maintenance_mode", "nolb").contains("_config/couchdb/maintenance_mode"));
    }

    #[test]
    fn a_section_includes_its_subsections_and_an_unknown_key_has_no_counterpart() {
        assert!(reason("smoosh.ratio_dbs", "min_priority", "2.0").contains("garbage_percent_max"));
        assert!(reason("cors:http://example.com", "origins", "*").contains("CORS"));
        assert_eq!(reason("my", "own", "1"), "no counterpart");
        assert_eq!(reason("my", "backlog", "512"), "no counterpart");
    }
}
