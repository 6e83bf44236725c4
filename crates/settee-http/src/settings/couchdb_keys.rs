//! CouchDB's configuration keys, and which of them have an effect here. Setting a key that has an effect in
//! CouchDB but not here is refused, because it would be stored and change nothing.

/// CouchDB's keys that have an effect here.
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

/// Sections that CouchDB 3.5 reads, and families of them: `smoosh` includes `smoosh.ratio_dbs`, `cors`
/// includes `cors:HOST`.
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

/// The current name of a section that CouchDB also reads under an older name. Key by key, the current name
/// takes precedence.
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

/// Whether a key has an effect in CouchDB but not here.
pub(super) fn has_no_effect(section: &str, key: &str) -> bool {
    let family = section.split(['.', ':']).next().unwrap_or(section);
    SECTIONS.contains(&family) && !ACTING.contains(&(section, key))
}
