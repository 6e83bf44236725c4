//! Why a key of CouchDB's has no setting here: by the key, and by the section where the keys are
//! alike.

/// What this server does anyway, whatever the key says.
const ALWAYS: &str = "this server does that anyway";

/// Keys whose value is what this server does; with any other, what it does in its place.
const SAME: &[(&str, &str, &str, &str)] = &[
    ("chttpd", "admin_only_all_dbs", "true", "everything but /, /_up and /_session takes the administrator"),
    ("chttpd", "allow_jsonp", "false", "there is no JSONP"),
    ("chttpd", "buffer_response", "false", "answers are streamed"),
    ("chttpd", "enable_cors", "false", ""),
    ("chttpd", "enable_xframe_options", "false", "X-Frame-Options isn't sent"),
    (
        "chttpd_auth",
        "allow_persistent_cookies",
        "true",
        "sessions' cookies outlive the browser until they end",
    ),
    ("chttpd", "decode_plus_to_space", "true", ""),
    ("cluster", "n", "1", ONE_NODE),
    ("cluster", "q", "1", "a database isn't split into shards"),
    ("couch_peruser", "enable", "false", NO_USERS),
    ("couchdb", "default_security", "admin_only", "the administrator alone may read and write"),
    ("couchdb", "delayed_commits", "false", "every 2xx but 202 is on stable storage; batch=ok asks for less"),
    ("couchdb", "enable_database_recovery", "false", "a deleted database is gone"),
    ("couchdb", "maintenance_mode", "false", ""),
    ("couchdb", "max_partition_size", "10737418240", ""),
    ("couchdb", "single_node", "true", ONE_NODE),
    ("httpd", "enable_cors", "false", ""),
    ("log", "writer", "stderr", "the log goes to stderr unless `log_file` names a file"),
    (
        "prometheus",
        "additional_port",
        "false",
        "metrics are at /_node/_local/_prometheus, for the administrator",
    ),
    ("ssl", "enable", "false", "TLS isn't there yet: a proxy in front can speak it"),
    ("uuids", "algorithm", "sequential", ""),
];

const ONE_NODE: &str = "a server is one node";
const NO_USERS: &str = "there are no users but the administrator yet";
const NO_REPLICATOR: &str = "this server doesn't replicate by itself yet; others can replicate with it";
const NO_VIEWS: &str = "views and Mango aren't there yet";
const SOCKETS: &str = "sockets aren't configured";
const NO_PROCESSES: &str = "no programs are run for queries";

/// Keys that are set otherwise.
const KEYS: &[(&str, &str, &str)] = &[
    ("attachments", "compressible_types", "the types are CouchDB's default"),
    ("attachments", "compression_level", "the level is CouchDB's default, 8"),
    (
        "chttpd",
        "authentication_handlers",
        "basic authentication and cookies are there; proxies' and JWT aren't yet",
    ),
    ("chttpd", "backlog", SOCKETS),
    ("chttpd", "config_whitelist", "the administrator may change what can be changed over HTTP"),
    ("chttpd", "server_options", SOCKETS),
    ("chttpd", "socket_options", SOCKETS),
    ("chttpd_auth", "secret", "the secret of sessions' cookies is drawn at each start: they end then"),
    ("chttpd_auth", "same_site", "sessions' cookies are SameSite=Lax"),
    ("chttpd_auth", "upgrade_hash_on_auth", NO_USERS),
    ("couch_httpd_auth", "secret", "the secret of sessions' cookies is drawn at each start: they end then"),
    (
        "couchdb",
        "database_dir",
        "CouchDB's files aren't read: choose a directory of its own for `data_dir` [default: ./settee-data]",
    ),
    ("couchdb", "file_compression", "documents are stored as they came"),
    ("couchdb", "max_database_name_length", "a name has 238 bytes at most, CouchDB's default"),
    ("couchdb", "max_document_id_length", "an id has 8000 bytes at most"),
    ("couchdb", "os_process_timeout", NO_PROCESSES),
    ("couchdb", "uri_file", "the log tells the address at start"),
    ("couchdb", "users_db_security_editable", NO_USERS),
    ("couchdb", "users_db_suffix", NO_USERS),
    ("couchdb", "uuid", "the server draws its own and keeps it in the data directory, in server-uuid"),
    ("couchdb", "view_index_dir", NO_VIEWS),
    ("httpd", "bind_address", "CouchDB's node-local port isn't there: [chttpd] has the one that clients use"),
    ("httpd", "port", "CouchDB's node-local port isn't there: [chttpd] has the one that clients use"),
    ("log", "file", "CouchDB's log isn't appended to: `log_file` names another"),
    ("vendor", "name", "the vendor is Settee"),
    ("vendor", "version", "the version is that of the program"),
];

/// Sections of which no key has a counterpart.
const SECTIONS: &[(&str, &str)] = &[
    ("chttpd_auth", "no counterpart: there are no users but the administrator yet"),
    ("chttpd_auth_cache", NO_USERS),
    ("chttpd_auth_lockout", "failed logins aren't counted"),
    ("cluster", ONE_NODE),
    ("cors", "CORS for each host isn't there: [cors] holds for all"),
    ("couch_httpd_auth", "no counterpart: there are no users but the administrator yet"),
    ("couch_mrview", NO_VIEWS),
    ("couch_peruser", NO_USERS),
    ("couch_quickjs_scanner_plugin", NO_VIEWS),
    ("couchdb_engines", "there is one engine"),
    ("csp", "Content-Security-Policy isn't sent"),
    ("ddoc_cache", NO_VIEWS),
    ("disk_monitor", "a full disk answers 507 until there is room"),
    ("dreyfus", "there is no full-text search"),
    ("fabric", ONE_NODE),
    ("global_changes", "_db_updates is always there"),
    ("httpd_design_handlers", "handlers aren't configured"),
    ("ioq", "operations on files are queued otherwise: see [io]"),
    ("jwt_auth", "JWT isn't there yet"),
    ("jwt_keys", "JWT isn't there yet"),
    ("ken", NO_VIEWS),
    ("mango", NO_VIEWS),
    ("mem3", ONE_NODE),
    ("native_query_servers", NO_PROCESSES),
    ("nouveau", "there is no full-text search"),
    ("prometheus", "metrics are at /_node/_local/_prometheus, for the administrator"),
    ("purge", "how much a purge takes is fixed"),
    ("query_server_config", NO_VIEWS),
    ("query_servers", NO_PROCESSES),
    ("replicator", NO_REPLICATOR),
    ("reshard", "a database isn't split into shards"),
    ("rexi", ONE_NODE),
    ("smoosh", "compaction runs by itself: see garbage_percent_max and compaction_bytes_per_second"),
    ("ssl", "TLS isn't there yet: a proxy in front can speak it"),
    ("stats", "counts aren't gathered in intervals"),
    ("vhosts", "virtual hosts aren't there"),
    ("view_updater", NO_VIEWS),
    ("x_frame_options", "X-Frame-Options isn't sent"),
];

/// Why a key has no setting; in place of which, where there is something.
pub(super) fn reason(section: &str, key: &str, value: &str) -> String {
    let same = SAME.iter().find(|same| (same.0, same.1) == (section, key));
    match same {
        Some((.., same, _)) if *same == value => return ALWAYS.to_owned(),
        Some((.., otherwise)) if !otherwise.is_empty() => return (*otherwise).to_owned(),
        _ => {}
    }
    match (section, key) {
        ("couchdb", "maintenance_mode" | "max_partition_size")
        | ("uuids", "algorithm" | "utc_id_suffix")
        | ("cors", _)
        | ("chttpd" | "httpd", "enable_cors" | "WWW-Authenticate")
        | ("chttpd", "decode_plus_to_space" | "require_valid_user" | "require_valid_user_except_for_up")
        | ("chttpd_auth" | "couch_httpd_auth", "require_valid_user") => {
            let json = serde_json::Value::from(value);
            return format!(
                "set over HTTP, while the server runs: PUT /_node/_local/_config/{section}/{key} {json}"
            );
        }
        _ => {}
    }
    // smoosh.ratio_dbs and the like, cors:http://example.com.
    let family = section.split(['.', ':']).next().unwrap_or(section);
    let of_key = KEYS.iter().find(|known| (known.0, known.1) == (section, key)).map(|known| known.2);
    let of_section =
        SECTIONS.iter().find(|known| known.0 == section || known.0 == family).map(|known| known.1);
    of_key.or(of_section).unwrap_or("no counterpart here").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_server_does_anyway_is_told_apart() {
        assert_eq!(reason("couchdb", "single_node", "true"), ALWAYS);
        assert_eq!(reason("couchdb", "single_node", "false"), ONE_NODE);
        assert_eq!(reason("uuids", "algorithm", "sequential"), ALWAYS);
    }

    #[test]
    fn what_can_be_set_otherwise_says_how() {
        let told = reason("uuids", "utc_id_suffix", "a \"b\"");
        assert!(told.ends_with("PUT /_node/_local/_config/uuids/utc_id_suffix \"a \\\"b\\\"\""), "{told}");
        assert!(reason("couchdb", "maintenance_mode", "nolb").contains("_config/couchdb/maintenance_mode"));
    }

    #[test]
    fn a_section_answers_for_its_family_and_an_unknown_key_has_no_counterpart() {
        assert!(reason("smoosh.ratio_dbs", "min_priority", "2.0").contains("garbage_percent_max"));
        assert!(reason("cors:http://example.com", "origins", "*").contains("CORS"));
        assert_eq!(reason("my", "own", "1"), "no counterpart here");
        assert_eq!(reason("my", "backlog", "512"), "no counterpart here");
    }
}
