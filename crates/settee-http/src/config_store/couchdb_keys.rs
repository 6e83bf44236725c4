//! Which keys are CouchDB's, and which of them act here too. One that CouchDB acts on and this server
//! doesn't is refused when it is set: it would be kept and change nothing.

/// CouchDB's keys that act here.
const ACTING: &[(&str, &str)] = &[
    ("chttpd", "WWW-Authenticate"),
    ("chttpd", "changes_timeout"),
    ("chttpd", "decode_plus_to_space"),
    ("chttpd", "enable_cors"),
    ("chttpd", "max_db_number_for_dbs_info_req"),
    ("chttpd", "max_http_request_size"),
    ("chttpd", "require_valid_user"),
    ("chttpd", "require_valid_user_except_for_up"),
    ("chttpd_auth", "require_valid_user"),
    ("chttpd_auth", "timeout"),
    ("cors", "credentials"),
    ("cors", "exposed_headers"),
    ("cors", "headers"),
    ("cors", "max_age"),
    ("cors", "methods"),
    ("cors", "origins"),
    ("couch_httpd_auth", "require_valid_user"),
    ("couch_httpd_auth", "timeout"),
    ("couchdb", "maintenance_mode"),
    ("couchdb", "max_attachment_size"),
    ("couchdb", "max_document_size"),
    ("couchdb", "max_partition_size"),
    ("httpd", "WWW-Authenticate"),
    ("httpd", "changes_timeout"),
    ("httpd", "enable_cors"),
    ("httpd", "max_http_request_size"),
    ("uuids", "algorithm"),
    ("uuids", "max_count"),
    ("uuids", "utc_id_suffix"),
];

/// Sections that CouchDB 3.5 reads, and families of them: `smoosh` stands for `smoosh.ratio_dbs` too,
/// `cors` for `cors:HOST`.
const SECTIONS: &[&str] = &[
    "attachments",
    "chttpd",
    "chttpd_auth",
    "chttpd_auth_cache",
    "chttpd_auth_lockout",
    "cluster",
    "cors",
    "couch_auto_purge_plugin",
    "couch_httpd_auth",
    "couch_mrview",
    "couch_peruser",
    "couch_quickjs_scanner_plugin",
    "couch_scanner",
    "couch_scanner_plugins",
    "couchdb",
    "couchdb_engines",
    "csp",
    "ddoc_cache",
    "disk_monitor",
    "dreyfus",
    "fabric",
    "global_changes",
    "httpd",
    "ioq",
    "jwt_auth",
    "jwt_keys",
    "ken",
    "log",
    "mango",
    "mem3",
    "nouveau",
    "process_priority",
    "prometheus",
    "purge",
    "query_server_config",
    "quota",
    "replicator",
    "reshard",
    "rexi",
    "smoosh",
    "ssl",
    "stats",
    "uuids",
    "vhosts",
    "view_updater",
    "view_upgrade",
    "x_frame_options",
];

/// A section's name now, where CouchDB reads an older one too: the newer goes before it, key by key.
pub(super) fn current_name(section: &str) -> &str {
    match section {
        "httpd" => "chttpd",
        "couch_httpd_auth" => "chttpd_auth",
        other => other,
    }
}

/// The older name of a section.
pub(super) fn older_name(section: &str) -> Option<&'static str> {
    match section {
        "chttpd" => Some("httpd"),
        "chttpd_auth" => Some("couch_httpd_auth"),
        _ => None,
    }
}

/// Whether CouchDB acts on a key and this server doesn't.
pub(super) fn is_pretence(section: &str, key: &str) -> bool {
    let family = section.split(['.', ':']).next().unwrap_or(section);
    SECTIONS.contains(&family) && !ACTING.contains(&(section, key))
}
